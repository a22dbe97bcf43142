"""What a person sees of a run while it goes on. Imports neither torch nor grpc."""
