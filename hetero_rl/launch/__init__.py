"""Starts and keeps the hub and the workers of a run on this machine. Imports neither torch nor grpc."""
