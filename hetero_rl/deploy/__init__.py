"""Getting a worker onto another machine: what containers need, as data. Imports neither torch nor grpc."""
