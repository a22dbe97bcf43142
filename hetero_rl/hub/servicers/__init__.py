"""The hub's side of the protocol: messages in, values to the core, values out. Nothing is decided here."""
