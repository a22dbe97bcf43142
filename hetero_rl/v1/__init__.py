"""Code generated from proto/hetero_rl/v1 by `make proto`; do not edit."""
