"""Decides what a checkpoint holds and tells the hub when one is durable."""

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from hetero_rl.trainer.checkpoint import CheckpointStore, Manifest
from hetero_rl.trainer.patience import Patience
from hetero_rl.trainer.shards import write_shards
from hetero_rl.trainer.state import capture_tensors
from hetero_rl.trainer.step import Learner
from hetero_rl.wire.ports import TrainingPort

__all__ = ["CheckpointKeeper"]

_LOG = logging.getLogger(__name__)


class CheckpointKeeper:
    """Saves the state of a learner.

    Args:
        store: Where checkpoints go.
        learner: What is saved.
        describe: Makes the manifest of a step, without its files.
        model_files: Configuration and tokenizer, which make the directory a Hugging Face model.
        port: The hub, which is told.
        patience: Repeats calls.
        newest: The checkpoint that the run continues from.
        newest_step: Its step; 0 without one.
        sharded: Whether every rank writes its own rows.
    """

    def __init__(
        self,
        store: CheckpointStore,
        learner: Learner,
        describe: Callable[[int], Manifest],
        *,
        model_files: Sequence[Path],
        port: TrainingPort,
        patience: Patience,
        newest: Path | None,
        newest_step: int,
        sharded: bool = False,
    ) -> None:
        self._store = store
        self._learner = learner
        self._describe = describe
        self._model_files = model_files
        self._sharded = sharded
        self._port = port
        self._patience = patience
        self.newest = newest
        """The newest checkpoint; None before the first."""
        self.newest_step = newest_step

    @property
    def failures(self) -> int:
        """Checkpoints in a row that failed."""
        return self._store.failures

    def save(self, step: int, *, required: bool) -> None:
        """Writes the checkpoint of a step and tells the hub.

        Args:
            step: Optimizer steps in the weights.
            required: Whether a failure is raised at once: nothing comes after that could try again.

        Raises:
            DiskFullError: The disk is full, and it was required or too many in a row failed.
            StorageError: The same for another reason.
        """
        policy, optimizer = self._learner.policy, self._learner.optimizer
        tensors = {} if self._sharded else capture_tensors(policy, optimizer)
        shards = functools.partial(write_shards, policy, optimizer) if self._sharded else None
        save = self._store.save if required else self._store.try_save
        path = save(self._describe(step), tensors, self._model_files, shards)
        if path is None:
            return
        self.newest, self.newest_step = path, step
        _LOG.info("checkpoint of step %d is in %s", step, path)
        oldest = self._store.oldest_step()
        self._patience(
            lambda: self._port.commit_checkpoint(step, oldest), f"announcing the checkpoint of step {step}"
        )
