"""Made starter models, kept by content: the name of the directory is the hash of everything that shaped the model.

    settings + task + seed + sources of the recipe ──SHA-256──► CACHE/starters/3f9c…/   there: use it
                                                                       │ not there
                                     CACHE/starters/.making-…/  ◄──────┘ train, write, fsync, rename

A directory under its final name is complete: it appears in one rename. Two processes that make the same model at the
same time both finish; the second finds the first's and drops its own.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from hetero_rl.config.tree import Config
from hetero_rl.errors import ConfigError, StorageError
from hetero_rl.tasks import PromptEncoder, open_task

__all__ = ["ensure_starter", "starter_directory"]

_SOURCES = ("recipe.py", "tokenizer.py")


def ensure_starter(config: Config, report: Callable[[Any], None] = lambda _: None) -> Path:
    """The starter model of a configuration, made now unless it is there.

    Args:
        config: The whole tree; model.starter, task, sampling, evaluation.prompts and run.seed shape the model.
        report: Called with a `hetero_rl.starter.Progress` after every supervised step, not at all when the model is
            there.

    Returns:
        A Hugging Face model directory in safetensors.

    Raises:
        TaskError: If the task cannot be opened or has no solutions to learn from.
        ConfigError: If the sizes do not fit each other.
        StorageError: If the cache directory cannot be written.
    """
    directory = starter_directory(config)
    if directory.is_dir():
        return directory
    _check_sizes(config)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=".making-", dir=directory.parent))
    except OSError as error:
        raise StorageError(
            f"starter models cannot be kept in {directory.parent} ({error.strerror}); set model.starter.cache_dir"
        ) from error
    try:
        _make(config, making, report)
        _move_into_place(making, directory)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return directory


def starter_directory(config: Config) -> Path:
    """Where the starter model of a configuration is kept, made or not."""
    root = config.model.starter.cache_dir or _user_cache() / "hetero-rl"
    canonical = json.dumps(_identity(config), sort_keys=True, separators=(",", ":"))
    return root / "starters" / hashlib.sha256(canonical.encode()).hexdigest()[:32]


def _identity(config: Config) -> dict[str, Any]:
    """Everything that shapes the model."""
    sources = [hashlib.sha256((Path(__file__).parent / name).read_bytes()).hexdigest() for name in _SOURCES]
    task = config.task.model_dump(mode="json", exclude={"grading_timeout", "grading_processes"})
    if config.task.path is not None and config.task.path.is_file():
        task["content"] = hashlib.sha256(config.task.path.read_bytes()).hexdigest()
    return {
        "sources": sources,
        "starter": config.model.starter.model_dump(mode="json", exclude={"cache_dir"}),
        "task": task,
        "held_out": config.evaluation.prompts,
        "max_new_tokens": config.sampling.max_new_tokens,
        "seed": config.run.seed,
    }


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _check_sizes(config: Config) -> None:
    starter = config.model.starter
    head_size, rest = divmod(starter.hidden_size, starter.num_heads)
    if rest or head_size % 2:
        raise ConfigError(
            f"model.starter.hidden_size {starter.hidden_size} must be an even number of times "
            f"model.starter.num_heads {starter.num_heads}"
        )


def _make(config: Config, directory: Path, report: Callable[[Any], None]) -> None:
    """Trains the model and writes it with its tokenizer."""
    from hetero_rl.starter.recipe import new_model, shared_instruction, supervise
    from hetero_rl.starter.tokenizer import build_tokenizer

    context_tokens = config.task.max_prompt_tokens + config.sampling.max_new_tokens
    task = open_task(config.task, seed=config.run.seed, held_out=config.evaluation.prompts)
    tokenizer = build_tokenizer(context_tokens, shared_instruction(task))
    encoder = PromptEncoder(tokenizer, config.task, max_new_tokens=config.sampling.max_new_tokens)
    model = new_model(
        config.model.starter,
        vocabulary_size=len(tokenizer),
        context_tokens=context_tokens,
        seed=config.run.seed,
    )
    with _one_thread():
        supervise(model, task, encoder, config.model.starter, report)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


@contextlib.contextmanager
def _one_thread() -> Generator[None, None, None]:
    """A model this small is made fastest on one thread, and its sums do not depend on the number of cores."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _move_into_place(making: Path, directory: Path) -> None:
    """Makes the files durable and gives the directory its name in one step."""
    for path in (*making.iterdir(), making):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    making.chmod(0o755)
    try:
        making.rename(directory)
    except OSError as error:
        if not directory.is_dir():
            raise StorageError(f"{directory} cannot be written: {error.strerror}") from error
