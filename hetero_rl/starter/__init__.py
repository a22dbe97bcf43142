"""The starter model: a fixture for people to see the job run, made on the spot in under a minute, not a model to use.

`ensure_starter(config)` returns its directory. A real run sets `model.path` instead.
"""

from hetero_rl.starter.cache import ensure_starter, starter_directory

__all__ = ["ensure_starter", "starter_directory"]
