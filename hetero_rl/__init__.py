"""RL post-training of language models across accelerators of several vendors."""

__version__ = "0.1.0"

__all__ = ["__version__"]
