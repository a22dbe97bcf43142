"""`hetero-rl bench safety`: what mutual TLS, tokens, syncs and checks cost in submitted trajectories per second.

    this process                                         hub processes, taking turns
      workers with a certificate and a token each ────►    as it is delivered
      the same workers in plaintext ──────────────────►    without what can be left out (`unsafe_hub`)

Both sides take the same completions through the worker's own submit loop. Every guard is also measured by itself: a hub with
nothing but it, against the hub with nothing at all.

A cost is the share of the submissions per second that is lost: 1 - (seconds without) / (seconds with). In processor time,
of the hub and of all workers together, it says what is lost where processors are what there is too little of; a sync then
costs next to nothing, as it is waited for and not computed.
"""

import contextlib
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Literal

import grpc

from hetero_rl.bench.engineless import NUMERICS
from hetero_rl.bench.ingest import IngestShape
from hetero_rl.bench.ingest_fleet import Fleet, Results
from hetero_rl.bench.ingest_run import Run, check_stored, event_loop, hub_config, open_run
from hetero_rl.bench.processes import Served, served
from hetero_rl.bench.samples import sample_batch
from hetero_rl.bench.schema import BenchReport, Figure
from hetero_rl.bench.timing import Ratio, compare_costs, spent
from hetero_rl.bench.unsafe_hub import Guards, serve_with
from hetero_rl.config.tree import SecurityConfig
from hetero_rl.deploy.authority import Authority
from hetero_rl.hub.server import ADDRESS_FILE
from hetero_rl.wire.bundle import write_bundle
from hetero_rl.wire.credentials import channel_credentials
from hetero_rl.wire.messages import TrajectoryBatch
from hetero_rl.wire.roles import Role

__all__ = ["SafetyShape", "run", "safety_figures"]

_TARGET = 0.1
_ALL = Guards(transport=True, sync=True, checks=True)
_NONE = Guards(transport=False, sync=False, checks=False)
_COMPARED = {
    "throughput_cost_of_safety": _ALL,
    "throughput_cost_of_transport": Guards(transport=True, sync=False, checks=False),
    "throughput_cost_of_sync": Guards(transport=False, sync=True, checks=False),
    "throughput_cost_of_checks": Guards(transport=False, sync=False, checks=True),
}
_DAYS = 30


@dataclasses.dataclass(frozen=True, slots=True)
class SafetyShape(IngestShape):
    """How much is handed in."""

    pairs: int = 21


def run(*, quick: bool = False) -> BenchReport:
    """Measures all costs.

    Args:
        quick: Take seconds; the figures prove nothing.
    """
    return BenchReport(bench="safety", figures=safety_figures(quick=quick))


def safety_figures(*, quick: bool = False, directory: Path | None = None) -> tuple[Figure, ...]:
    """Shares of the submissions per second that guards cost.

    Args:
        quick: Take seconds; the figures prove nothing.
        directory: Where the hubs write, None for the current one: a temporary directory is often in memory, where a
            sync costs nothing.
    """
    shape = SafetyShape(workers=2, pairs=5, waiting=2, tokens_each=16) if quick else SafetyShape()
    batch = sample_batch(samples=shape.samples, tokens_each=shape.tokens_each, seed=2)
    batch = dataclasses.replace(batch, numerics_id=NUMERICS.numerics_id)
    with tempfile.TemporaryDirectory(prefix="bench-safety-", dir=directory or Path.cwd()) as scratch:
        credentials = _Credentials(Path(scratch) / "certs", shape.workers)
        figures = [
            _figures(name, guards, _costs(guards, shape, batch, credentials, Path(scratch) / name), shape)
            for name, guards in _COMPARED.items()
        ]
    return tuple(itertools.chain.from_iterable(figures))


def _figures(
    name: str, guards: Guards, costs: tuple[Ratio, ...], shape: SafetyShape
) -> tuple[Figure, Figure]:
    wall, cpu = costs
    named = [field.name for field in dataclasses.fields(guards) if getattr(guards, field.name)]
    words = (
        f"{shape.workers} workers with {shape.waiting} finished groups of {shape.samples} completions of"
        f" {shape.tokens_each} tokens waiting at each; {', '.join(named)} against plaintext without token, sync and checks"
    )
    whole = guards == _ALL
    return (
        _cost(wall, name, f"{words}; wall time", target=_TARGET if whole else None),
        _cost(cpu, name.replace("throughput_", "processor_"), f"{words}; processor time of hub and workers"),
    )


def _cost(ratio: Ratio, name: str, baseline: str, *, target: float | None = None) -> Figure:
    relation: Literal["<="] | None = None if target is None else "<="
    return Figure(
        name=name,
        value=1 - ratio.value,
        unit="share",
        low=1 - ratio.high,
        high=1 - ratio.low,
        target=target,
        relation=relation,
        baseline=baseline,
    )


class _Credentials:
    """Bundles of an authority of the benchmark's own."""

    def __init__(self, directory: Path, workers: int) -> None:
        authority = Authority.create(directory, _DAYS)
        self.workers = [f"worker-{number}" for number in range(workers)]
        self.registry = authority.registry
        self._directory = directory
        roles = {"hub": Role.HUB, "trainer": Role.TRAINER, **dict.fromkeys(self.workers, Role.WORKER)}
        for name, role in roles.items():
            hosts = ["127.0.0.1"] if role is Role.HUB else []
            write_bundle(authority.issue(name, role, hosts, _DAYS), self.bundle(name))

    def bundle(self, name: str) -> Path:
        """The file of a name."""
        return self._directory / f"{name}.credentials"

    def shown(self, name: str) -> grpc.ChannelCredentials | None:
        """What the holder of a name shows."""
        return channel_credentials(SecurityConfig(credentials=self.bundle(name)))


@dataclasses.dataclass(frozen=True, slots=True)
class _Side:
    """A hub and the workers that hand in to it."""

    hub: Served
    fleet: Fleet
    rounds: Iterator[list[Results]]
    run: Run

    def hand_in(self) -> tuple[float, ...]:
        """Wall and processor seconds of one round."""
        return spent(
            lambda: self.run(self.fleet.hand_in(next(self.rounds))),
            time.perf_counter,
            lambda: time.process_time() + self.hub.cpu_seconds,
        )


def _costs(
    guards: Guards, shape: SafetyShape, batch: TrajectoryBatch, credentials: _Credentials, scratch: Path
) -> tuple[Ratio, ...]:
    """Wall and processor seconds without any guard over those with these."""
    with (
        event_loop() as run,
        _side(guards, shape, batch, credentials, scratch / "guarded", run) as guarded,
        _side(_NONE, shape, batch, credentials, scratch / "bare", run) as bare,
    ):
        return compare_costs(guarded.hand_in, bare.hand_in, pairs=shape.pairs)


@contextlib.contextmanager
def _side(
    guards: Guards,
    shape: SafetyShape,
    batch: TrajectoryBatch,
    credentials: _Credentials,
    directory: Path,
    run: Run,
) -> Generator[_Side]:
    directory.mkdir(parents=True)
    security: dict[str, str] = {}
    workers: Mapping[str, grpc.ChannelCredentials | None] = dict.fromkeys(credentials.workers)
    trainer = None
    if guards.transport:
        security = {"credentials": str(credentials.bundle("hub")), "registry": str(credentials.registry)}
        workers = {name: credentials.shown(name) for name in credentials.workers}
        trainer = credentials.shown("trainer")
    rounds = shape.pairs + 1
    groups = rounds * shape.submissions
    serving = served(
        serve_with, guards, hub_config(**security), directory, address_file=directory / ADDRESS_FILE
    )
    with serving as hub:
        open_run(
            hub.address,
            groups=groups,
            samples=shape.samples,
            tokens_each=shape.tokens_each,
            credentials=trainer,
        )
        fleet = run(Fleet.join(hub.address, workers, groups * shape.samples, batch))
        try:
            leased = run(fleet.lease_rounds(rounds, shape.waiting))
            yield _Side(hub, fleet, iter(leased), run)
            check_stored(hub.address, groups, trainer)
        finally:
            run(fleet.close())
