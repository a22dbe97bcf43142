"""The CPU backend of hetero-rl."""
