"""A view as a sink of the trainer."""

from typing_extensions import override

from hetero_rl.observe.view import View
from hetero_rl.trainer.sinks import MetricsRecord, Sink

__all__ = ["ViewSink"]


class ViewSink(Sink):
    """Hands metrics to a view; whoever opened the view closes it."""

    def __init__(self, view: View) -> None:
        self._view = view

    @override
    def start(self, *, resume_step: int) -> None:
        self._view.begin(max(resume_step, 0))

    @override
    def write(self, record: MetricsRecord) -> None:
        self._view.write(record.step, record.values)

    @override
    def close(self) -> None:
        """The view stays open for what is said after training."""
