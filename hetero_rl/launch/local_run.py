"""A whole run on this machine, from checked settings to the closing summary.

checks ──► starter model ──► supervisor: hub, workers ──► trainer (this thread) ──► close: run, workers, hub ──► summary

What ends it early sets one event, `stop`, and the trainer drains: a checkpoint, then the ordinary shutdown. That is the
first Ctrl-C or SIGTERM, or a failure that the supervisor reports, which is then raised. The second Ctrl-C kills the
children and leaves at once; so does kill -9, whose children see the end of their lifeline.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_rl.config import Config
from hetero_rl.errors import HeteroRLError
from hetero_rl.files import write_whole
from hetero_rl.launch.checks import STARTER
from hetero_rl.launch.hub_access import connect_fleet, probe_hub
from hetero_rl.launch.interrupts import INTERRUPTED_EXIT_CODE, Interrupts
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.launch.supervisor import PlaceWorker, Supervisor
from hetero_rl.metrics.exporter import Exporter, exporting
from hetero_rl.metrics.fleet import FleetReadings, state_of
from hetero_rl.observe.sink import ViewSink
from hetero_rl.observe.summary import RunResult, result_of
from hetero_rl.observe.view import View
from hetero_rl.trainer.patience import InterruptedRunError
from hetero_rl.trainer.session import train
from hetero_rl.trainer.sinks import JsonlSink, PrometheusSink, Sink, TensorBoardSink, tracker_sinks
from hetero_rl.wire.blocking_clients import TrainingClient
from hetero_rl.wire.credentials import channel_credentials
from hetero_rl.wire.ports import FleetPort
from hetero_rl.worker.backend import Backend

if TYPE_CHECKING:
    from hetero_rl.starter.recipe import Progress

__all__ = ["LocalRun"]


class LocalRun:
    """Trains one run with hub and workers of its own; checks were made before.

    Args:
        config: The resolved settings.
        backends: Backends of the local workers.
        view: Shows the run; already open.
        resume: Whether an earlier part of the run is continued.
        place: Starts workers on other hosts; None starts them here.
    """

    def __init__(
        self,
        config: Config,
        backends: Mapping[str, Backend],
        view: View,
        *,
        resume: bool,
        place: PlaceWorker | None = None,
    ) -> None:
        self._config = config
        self._view = view
        self._resume = resume
        self._stop = threading.Event()
        self._failure: HeteroRLError | None = None
        self.run = RunDirectory(config.run.dir)
        self._supervisor = Supervisor(
            config,
            self.run,
            backends=backends,
            probe=lambda address: probe_hub(address, config),
            connect=lambda address: connect_fleet(address, config),
            on_failure=self._fail,
            notify=view.notify,
            place=place,
        )

    def execute(self) -> RunResult:
        """Runs it; raises what made going on pointless."""
        self.run.prepare()
        write_whole(self.run.config, self._config.model_dump_json(indent=2) + "\n")
        with (
            exporting(self._config, "trainer") as exporter,
            Interrupts(self._drain, self._abort),
            self._supervisor,
        ):
            try:
                result = self._train(self._model_directory(), exporter)
            except InterruptedRunError:
                result = self._nothing_done()
            except HeteroRLError as error:
                # What the trainer met may only follow from what the supervisor reported.
                if self._failure is not None:
                    raise self._failure from error
                raise
        if self._failure is not None and not result.complete:
            raise self._failure
        return result

    def _train(self, model_dir: Path | None, exporter: Exporter) -> RunResult:
        trackers = tracker_sinks(self._config, self.run.root)
        self._view.phase("starting the hub and the workers")
        address = self._supervisor.start()
        self._view.phase(f"hub at {address}; loading the model and waiting for a worker")
        if self._supervisor.fleet is not None:
            self._view.watch(self._supervisor.fleet)
            self._export_fleet(exporter, self._supervisor.fleet)
        return self._steps(address, model_dir, exporter, trackers)

    def _steps(
        self, address: str, model_dir: Path | None, exporter: Exporter, trackers: list[Sink]
    ) -> RunResult:
        """Trains with the hub at an address."""
        credentials = channel_credentials(self._config.security)
        limit = self._config.hub.max_message_bytes
        with TrainingClient(address, credentials, max_message_bytes=limit) as port:
            summary = train(
                self._config,
                port,
                self._sinks(exporter, trackers),
                resume=self._resume,
                stop=self._stop,
                model_dir=model_dir,
            )
        return result_of(
            self.run,
            complete=summary.complete,
            step=summary.step,
            total_steps=summary.total_steps,
            seconds=summary.seconds,
            checkpoint=summary.checkpoint,
        )

    def _export_fleet(self, exporter: Exporter, fleet: FleetPort) -> None:
        """A hub that was started here leaves its metrics to this process; any other has an exporter of its own."""
        if self._config.hub.address is None:
            exporter.add(FleetReadings(lambda after: state_of(fleet, after)))

    def _sinks(self, exporter: Exporter, trackers: list[Sink]) -> list[Sink]:
        prometheus = PrometheusSink()
        exporter.add(prometheus)
        sinks: list[Sink] = [JsonlSink(self.run.metrics), ViewSink(self._view), prometheus]
        if self._config.logging.tensorboard:
            sinks.append(TensorBoardSink(self.run.tensorboard))
        return [*sinks, *trackers]

    def _model_directory(self) -> Path | None:
        if self._config.model.path != STARTER:
            return None
        from hetero_rl.starter import ensure_starter

        return ensure_starter(self._config, self._report_starter)

    def _report_starter(self, progress: "Progress") -> None:
        """Shows the supervised steps; an interruption ends them."""
        if self._stop.is_set():
            raise InterruptedRunError("interrupted while the starter model was made")
        self._view.phase(
            f"making the starter model: supervised step {progress.step} of at most {progress.steps}, "
            f"loss {progress.loss:.3f}"
        )

    def _nothing_done(self) -> RunResult:
        return RunResult(
            complete=False,
            step=0,
            total_steps=self._config.run.steps,
            seconds=0.0,
            accuracies=(),
            rewards=(),
            checkpoint=None,
        )

    def _fail(self, error: HeteroRLError) -> None:
        self._failure = error
        self._view.notify(str(error).splitlines()[0])
        self._stop.set()

    def _drain(self) -> None:
        self._view.notify(
            "stopping: the step under way and a checkpoint are finished first; again to stop at once"
        )
        self._stop.set()

    def _abort(self) -> None:
        self._supervisor.kill()
        with contextlib.suppress(Exception):  # whatever the view is doing, the process ends now
            self._view.close()
        sys.stderr.write(
            "stopped at once; what was made since the last checkpoint is made again on --resume\n"
        )
        sys.stderr.flush()
        os._exit(INTERRUPTED_EXIT_CODE)
