"""What a process tells of itself beside metrics: log records and traces. Standard library and grpc only."""
