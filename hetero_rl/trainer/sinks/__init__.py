"""Where metrics go. Every sink passes `tests/contract/test_sink.py`."""

from hetero_rl.trainer.sinks.base import MetricsRecord, Sink
from hetero_rl.trainer.sinks.jsonl import JsonlSink
from hetero_rl.trainer.sinks.memory import MemorySink
from hetero_rl.trainer.sinks.prometheus import PrometheusSink
from hetero_rl.trainer.sinks.tensorboard import TensorBoardSink
from hetero_rl.trainer.sinks.trackers import TrackerSink, tracker_sinks

__all__ = [
    "JsonlSink",
    "MemorySink",
    "MetricsRecord",
    "PrometheusSink",
    "Sink",
    "TensorBoardSink",
    "TrackerSink",
    "tracker_sinks",
]
