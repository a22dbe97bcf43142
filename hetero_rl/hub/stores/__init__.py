"""Persistence of the hub: one interface, an embedded journal and a store in memory."""
