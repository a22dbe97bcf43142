"""TensorBoard event files."""

from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from hetero_rl.trainer.sinks.base import MetricsRecord, Sink

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["TensorBoardSink"]


class TensorBoardSink(Sink):
    """Writes scalars. A run that continues marks later events of its earlier life as void, as TensorBoard defines it.

    Args:
        directory: Where event files go.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: SummaryWriter | None = None

    @override
    def start(self, *, resume_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._directory.mkdir(parents=True, exist_ok=True)
        # An event with a step at or above purge_step that an earlier file holds is no longer shown.
        self._writer = SummaryWriter(str(self._directory), purge_step=resume_step + 1)

    @override
    def write(self, record: MetricsRecord) -> None:
        if self._writer is None:
            raise ValueError(f"{self._directory} is written before start()")
        for name, value in record.values.items():
            self._writer.add_scalar(name, value, record.step)
        self._writer.flush()

    @override
    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
