"""A run whose workers and trainer ranks are placed on a Ray cluster; hub and person stay on this host.

    this process (a driver of Ray)                         nodes of the cluster
    ├── hub (a child, as in a local run)  ◄──── gRPC ────┬── worker in a holder      label and resource of its vendor
    ├── supervisor: one RayKeeper for each worker        ├── worker in a holder
    ├── main thread: RankGang.run ───────────────────────┼── rank 0 in a holder ─┐ torch.distributed
    └── metrics follower ◄── RUN/metrics.jsonl           └── rank 1 in a holder ─┘

start:    joined cluster ──► hub ──► workers placed ──► ranks placed ──► steps
shutdown: rank 0 closes the run ──► ranks end ──► workers drain ──► hub ──► the cluster is left, not stopped
stop:     first signal ──► rank 0 drains; second ──► this process ends, and Ray ends what it placed
"""

import contextlib
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

from typing_extensions import override

from hetero_rl.config import Config
from hetero_rl.launch import plan
from hetero_rl.launch.checks import split_address
from hetero_rl.launch.keeper import Kept
from hetero_rl.launch.local_run import LocalRun
from hetero_rl.launch.metrics_follower import MetricsFollower
from hetero_rl.launch.placement import (
    absolute_paths,
    all_placements,
    check_reachable,
    check_room,
    check_trainer_device,
    engine_spreads_itself,
    placeable,
    rank_placement,
    worker_placement,
)
from hetero_rl.launch.rank import read_result
from hetero_rl.launch.ray_cluster import Cluster
from hetero_rl.launch.ray_holder import CONFIG_FILE, RESULT_FILE, Order, Place
from hetero_rl.launch.ray_keeper import RayKeeper
from hetero_rl.launch.ray_ranks import RankGang, Rendezvous
from hetero_rl.launch.restart import RestartPolicy
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.metrics.exporter import Exporter
from hetero_rl.observe.sink import ViewSink
from hetero_rl.observe.summary import RunResult, result_of
from hetero_rl.observe.view import View
from hetero_rl.trainer.sinks import PrometheusSink, Sink
from hetero_rl.worker.backend import Backend, find_backend

__all__ = ["RayRun", "hub_address_for", "rank_order", "worker_order"]

_EVERYWHERE = {"0.0.0.0", "::"}  # ruff: ignore[hardcoded-bind-all-interfaces] - compared with, never bound


class RayRun(LocalRun):
    """Trains one run on a joined cluster.

    Args:
        config: The resolved settings.
        backends: The backends of the settings, as installed here: they say what to ask for.
        view: Shows the run; already open.
        cluster: Where workers and ranks are placed.
        resume: Whether an earlier part of the run is continued.

    Raises:
        ConfigError: The settings and the cluster do not fit together.
    """

    def __init__(
        self,
        config: Config,
        backends: Mapping[str, Backend],
        view: View,
        cluster: Cluster,
        *,
        resume: bool,
    ) -> None:
        self._cluster = cluster
        self._trainer = find_backend(config.launcher.trainer_backend)
        check_trainer_device(config, self._trainer)
        nodes = cluster.await_nodes(
            all_placements(config, self._trainer, backends),
            config.launcher.node_timeout,
            lambda asked: view.phase(f"waiting for a node of the Ray cluster with {asked.describe()}"),
        )
        check_reachable(config, cluster.own_address, nodes)
        check_room("the trainer", rank_placement(config, self._trainer), nodes)
        super().__init__(
            config,
            placeable(config, backends, nodes, view.notify),
            view,
            resume=resume,
            place=self._place_worker,
        )
        self._shipped = absolute_paths(config)
        self.gang: RankGang | None = None
        self.workers: list[RayKeeper] = []

    def _place_worker(
        self, worker: plan.PlannedWorker, backend: Backend, address: str, on_end: Callable[[Kept], None]
    ) -> Kept:
        hub = hub_address_for(address, self._cluster.own_address)
        keeper = RayKeeper(
            f"worker-{worker.name}",
            lambda place: worker_order(
                self._shipped, worker, backend, hub=hub, place=place, gcs_address=self._cluster.gcs_address
            ),
            worker_placement(self._config, worker, backend),
            self._policy(),
            self._view.notify,
            on_end,
        )
        self.workers.append(keeper)
        keeper.start()
        return keeper

    @override
    def _steps(
        self, address: str, model_dir: Path | None, exporter: Exporter, trackers: list[Sink]
    ) -> RunResult:
        hub = hub_address_for(address, self._cluster.own_address)
        gang = self.gang = RankGang(
            self._config.launcher.trainer_ranks,
            rank_placement(self._config, self._trainer),
            lambda told: rank_order(self._shipped, self._trainer, hub=hub, told=told),
            self._policy(),
            self._view.notify,
        )
        prometheus = PrometheusSink()
        exporter.add(prometheus)
        with self._shown(prometheus):
            end = gang.run(self._stop)
        result = read_result(end.result)
        return result_of(
            self.run,
            complete=result.complete,
            step=result.step,
            total_steps=self._config.run.steps,
            seconds=result.seconds,
            checkpoint=Path(result.checkpoint) if result.checkpoint else None,
        )

    @contextlib.contextmanager
    def _shown(self, prometheus: Sink) -> Generator[None]:
        sinks: list[Sink] = [ViewSink(self._view), prometheus]
        for sink in sinks:
            sink.start(resume_step=0 if self._resume else -1)
        with MetricsFollower(self.run.metrics, sinks):
            yield

    def _policy(self) -> RestartPolicy:
        return RestartPolicy(max_restarts=self._config.launcher.max_restarts)


def hub_address_for(address: str, own_address: str) -> str:
    """host:port at which nodes reach a hub that listens at `address`: everywhere means the address of its host."""
    host, port = split_address(address, "the hub's address")
    return f"{own_address}:{port}" if host in _EVERYWHERE else address


def worker_order(
    config: Config,
    worker: plan.PlannedWorker,
    backend: Backend,
    *,
    hub: str,
    place: Place,
    gcs_address: str,
) -> Order:
    """What is started for a worker, wherever it was placed: the command of a local one, with files of its node."""
    spec = plan.worker_spec(
        config, RunDirectory(config.run.dir), worker, hub=hub, backend=backend, environment={}
    )
    spreads = engine_spreads_itself(config, worker, backend)
    # vLLM's executor joins the cluster by itself, and would take devices that Ray hid from its parent for none.
    joined = {"RAY_ADDRESS": gcs_address, "VLLM_HOST_IP": place.address} if spreads else {}
    own = tuple(
        CONFIG_FILE if part == str(config.run.dir / "config.json") else part
        for part in spec.arguments[len(plan.COMMAND) :]
    )
    return Order(
        name=spec.name,
        command=own,
        config=config.model_dump_json(),
        log=str(spec.log),
        environment={**spec.environment, **joined},
        unset=(backend.visible_devices,) if spreads and backend.visible_devices else (),
    )


def rank_order(config: Config, backend: Backend, *, hub: str, told: Rendezvous) -> Order:
    """What is started for a rank of the trainer."""
    name = f"trainer-{told.rank}"
    threads = config.trainer.threads
    return Order(
        name=name,
        command=(
            *("trainer-rank", CONFIG_FILE, "--hub", hub, "--result", RESULT_FILE),
            *("--set", "observability.metrics_listen=''", plan.LIFELINE_FLAG),
        ),
        config=config.model_dump_json(),
        log=str(RunDirectory(config.run.dir).log(name)),
        environment={
            **backend.process_environment(),
            **told.environment(),
            **({"OMP_NUM_THREADS": str(threads)} if threads else {}),
        },
    )
