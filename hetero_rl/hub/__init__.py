"""The hub of a run: work, weights and results, durable before they are acknowledged. Standard library and gRPC only."""
