"""The inference worker: leases work from the hub, generates, submits, pulls weights. Holds no state a kill may lose."""
