"""One validated tree of settings: TOML, `--set key=value`, unknown keys refused. Imports neither torch nor grpc."""

from hetero_rl.config.load import load_config
from hetero_rl.config.show import show_config
from hetero_rl.config.tree import Config

__all__ = ["Config", "load_config", "show_config"]
