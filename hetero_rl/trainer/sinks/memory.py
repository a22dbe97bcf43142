"""Metrics in memory, for tests and notebooks."""

from typing_extensions import override

from hetero_rl.trainer.sinks.base import MetricsRecord, Sink

__all__ = ["MemorySink"]


class MemorySink(Sink):
    """Keeps every record in `records`."""

    def __init__(self) -> None:
        self.records: list[MetricsRecord] = []

    @override
    def start(self, *, resume_step: int) -> None:
        self.records = [record for record in self.records if record.step <= resume_step]

    @override
    def write(self, record: MetricsRecord) -> None:
        self.records.append(record)

    @override
    def close(self) -> None:
        pass
