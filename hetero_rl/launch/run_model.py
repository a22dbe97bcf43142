"""The model of a run as a directory: the newest checkpoint, or what the run started from."""

from pathlib import Path
from typing import Any

from hetero_rl.config import Config, load_config
from hetero_rl.errors import ConfigError
from hetero_rl.launch.checks import STARTER
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.trainer.checkpoint import list_checkpoints

__all__ = ["load_tokenizer", "model_directory_of", "starting_model"]


def model_directory_of(run: RunDirectory) -> Path:
    """A directory with the configuration and tokenizer of the run's model."""
    checkpoints = dict(list_checkpoints(run.checkpoints))
    return checkpoints[max(checkpoints)] if checkpoints else starting_model(load_config([run.config]))


def starting_model(config: Config) -> Path:
    """Where the weights that a run starts from lie; for the starter model, whether it is made already or not."""
    if config.model.path != STARTER:
        return Path(config.model.path).expanduser()
    from hetero_rl.starter import starter_directory

    return starter_directory(config)


def load_tokenizer(directory: Path) -> Any:
    """The tokenizer of a model directory; raises ConfigError when there is none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except (ValueError, OSError, KeyError) as error:
        raise ConfigError(f"{directory} has no usable tokenizer: {error}") from error
