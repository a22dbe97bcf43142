"""One process of the trainer that a launcher placed: hub and workers are elsewhere, and so is the person who watches.

rank 0: the training loop, which writes metrics and checkpoints into the run directory    others: follow rank 0
SIGTERM, or the end of the launcher: rank 0 drains with a checkpoint, and lets the others go
"""

import dataclasses
import json
import signal
import threading
from pathlib import Path

from hetero_rl.config import Config
from hetero_rl.files import write_whole
from hetero_rl.launch.interrupts import INTERRUPTED_EXIT_CODE, Interrupts
from hetero_rl.launch.lifeline import follow_parent
from hetero_rl.launch.rundir import RunDirectory

__all__ = ["RankResult", "read_result", "run_rank"]

DRAIN_SECONDS = 300.0
"""How long a step under way and a checkpoint may take once the launcher is gone."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """What came of the run, as rank 0 tells its launcher."""

    complete: bool
    step: int
    seconds: float
    checkpoint: str
    """Path of the newest checkpoint; empty without one."""


def read_result(text: str) -> RankResult:
    """What rank 0 wrote; of a rank that wrote nothing, nothing is known."""
    if not text:
        return RankResult(complete=False, step=0, seconds=0.0, checkpoint="")
    found = json.loads(text)
    return RankResult(
        complete=bool(found["complete"]),
        step=int(found["step"]),
        seconds=float(found["seconds"]),
        checkpoint=str(found["checkpoint"]),
    )


def run_rank(config: Config, hub: str, result: Path, *, end_with_parent: bool) -> int:
    """Trains, or follows, until the run is complete or this process is asked to stop.

    Args:
        config: The resolved settings. The run is gone on with where it has a checkpoint.
        hub: host:port of the hub.
        result: File that rank 0 writes at the end.
        end_with_parent: Whether the end of standard input means that the launcher is gone.

    Returns:
        The exit code: 0 for a complete run, and for a rank that followed one to its end; 130 for one that was stopped.
    """
    from hetero_rl.trainer.ranks import rank_of_environment

    if end_with_parent:
        follow_parent(DRAIN_SECONDS)
    if rank_of_environment():
        # Rank 0 is asked too, makes its checkpoint with this one's help, and then lets it go.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        from hetero_rl.trainer.session import follow_rank

        follow_rank(config, resume=True)
        return 0
    outcome = _lead(config, hub)
    write_whole(result, json.dumps(dataclasses.asdict(outcome)))
    return 0 if outcome.complete else INTERRUPTED_EXIT_CODE


def _lead(config: Config, hub: str) -> RankResult:
    from hetero_rl.trainer.session import train
    from hetero_rl.trainer.sinks import JsonlSink, Sink, TensorBoardSink, tracker_sinks
    from hetero_rl.wire.blocking_clients import TrainingClient
    from hetero_rl.wire.credentials import channel_credentials

    run = RunDirectory(config.run.dir)
    stop = threading.Event()
    sinks: list[Sink] = [JsonlSink(run.metrics), *tracker_sinks(config, run.root)]
    if config.logging.tensorboard:
        sinks.append(TensorBoardSink(run.tensorboard))
    credentials = channel_credentials(config.security)
    with (
        Interrupts(stop.set, stop.set),
        TrainingClient(hub, credentials, max_message_bytes=config.hub.max_message_bytes) as port,
    ):
        summary = train(config, port, sinks, resume=True, stop=stop)
    return RankResult(
        complete=summary.complete,
        step=summary.step,
        seconds=summary.seconds,
        checkpoint=str(summary.checkpoint or ""),
    )
