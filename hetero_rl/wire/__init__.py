"""The protocol seam: frozen messages, their validation and conversion, channels and clients."""
