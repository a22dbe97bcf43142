"""What the hub decides: plain synchronous functions on a store and a clock. No gRPC, no protobuf, no waiting."""
