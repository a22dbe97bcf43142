"""The processes of a run on this machine: starts them in order, keeps them running, ends them in order.

hetero-rl train (this process)
├── main thread ........ the trainer; `stop` (an event) asks it to drain
├── keeper-hub ......... waits for the hub's end; starts it again on the same journal and address
├── keeper-worker-* .... one for each local worker; starts it again, a bounded number of times
└── first-worker ....... waits until a worker is at work, at most inference.start_timeout; for one that has to be
                         started on another machine inference.remote_worker_timeout

start:    hub ──► its address file and an answer ──► workers ──► (trainer opens the run) ──► first worker joins
failure:  hub given up, no worker left, none joined in time
              ──► on_failure(error) once ──► the caller sets `stop` ──► the trainer drains and returns
shutdown: the trainer closed the run ──► close(): workers asked together, waited for, killed after the grace
              ──► then the hub the same way ──► keepers joined
we die:   kill -9 closes every lifeline: children drain and end on their own (`launch.lifeline`)
"""

import contextlib
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from hetero_rl.config import Config
from hetero_rl.errors import HeteroRLError, LaunchError, ProtocolError
from hetero_rl.files import write_whole
from hetero_rl.launch import plan
from hetero_rl.launch.devices import usable_ids
from hetero_rl.launch.keeper import Keeper, Kept
from hetero_rl.launch.readiness import await_backends, await_first_worker, await_hub, start_error
from hetero_rl.launch.remote import remote_instructions
from hetero_rl.launch.restart import RestartPolicy
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.wire.messages import WorkerState
from hetero_rl.wire.ports import FleetPort
from hetero_rl.worker.backend import Backend

__all__ = ["PlaceWorker", "Supervisor"]

PlaceWorker = Callable[[plan.PlannedWorker, Backend, str, Callable[[Kept], None]], Kept]
"""Starts a worker elsewhere: which one, its backend, the hub's address, what is called when it ended for good."""

HUB_START_SECONDS = 120.0
WORKER_GRACE_SECONDS = 35.0
"""Longer than a worker gives its running completions and the results on their way."""
HUB_GRACE_SECONDS = 20.0


class Supervisor:
    """Hub and workers of one run; a context manager that ends what it started.

    Args:
        config: The resolved settings; `run.prepare()` was called and they lie in `run.config`.
        run: The directory of the run.
        backends: The backends whose workers are started here; workers of others are asked for on other machines.
        probe: Raises UnreachableError while no hub serves at an address.
        connect: Makes a fleet client of a hub's address; entered at start, left at close.
        on_failure: Takes the one error that makes going on pointless; called on a thread of this class.
        notify: Takes a sentence for people.
        policy: When a process that died is started again.
        place: Starts workers on other hosts; None starts them here.
    """

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        *,
        backends: Mapping[str, Backend],
        probe: Callable[[str], None],
        connect: Callable[[str], AbstractContextManager[FleetPort]],
        on_failure: Callable[[HeteroRLError], None],
        notify: Callable[[str], None],
        policy: RestartPolicy | None = None,
        place: PlaceWorker | None = None,
    ) -> None:
        self._config = config
        self._place = place or self._start_here
        self._run = run
        self._backends = backends if config.inference.workers else {}
        self._planned = plan.planned_workers(config)
        self._remote = [worker for worker in self._planned if worker.backend not in self._backends]
        self._probe = probe
        self._connect = connect
        self._connections = contextlib.ExitStack()
        self._on_failure = on_failure
        self._notify = notify
        self._policy = policy or RestartPolicy()
        self._hub: Keeper | None = None
        self._workers: list[Kept] = []
        self._first_worker: threading.Thread | None = None
        self._closing = threading.Event()
        self._failed = threading.Lock()
        self.fleet: FleetPort | None = None
        self.hub_address = config.hub.address

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> str:
        """Starts hub and workers; returns the hub's address.

        Raises:
            LaunchError: The hub did not come up.
            UnreachableError: A hub that was given does not answer; nothing was started.
        """
        if self.hub_address is not None:
            self._probe(self.hub_address)
        address = self.hub_address = self.hub_address or self._start_hub()
        fleet = self.fleet = self._connections.enter_context(self._connect(address))
        for worker in self._planned:
            if worker.backend in self._backends:
                backend = self._backends[worker.backend]
                self._workers.append(self._place(worker, backend, address, self._process_ended))
        self._ask_for_remote_workers(address)
        self._first_worker = threading.Thread(
            target=self._await_first_worker, args=(fleet,), name="first-worker", daemon=True
        )
        self._first_worker.start()
        return address

    def close(self) -> None:
        """Ends workers, then the hub, each within its grace; safe to call twice."""
        self._closing.set()
        for worker in self._workers:
            worker.request_stop()
        for worker in self._workers:
            worker.close(WORKER_GRACE_SECONDS)
        if self._hub is not None:
            self._hub.close(HUB_GRACE_SECONDS)
        if self._first_worker is not None:
            self._first_worker.join()
        self._connections.close()

    def kill(self) -> None:
        """Kills every process that was started here, at once."""
        self._closing.set()
        for keeper in (*self._workers, *((self._hub,) if self._hub is not None else ())):
            keeper.kill()

    def _start_hub(self) -> str:
        self._run.hub_address.unlink(missing_ok=True)  # a hub that was killed leaves its address behind
        hub = self._hub = Keeper(
            lambda: plan.hub_spec(self._run, self.hub_address),
            self._policy,
            self._notify,
            self._process_ended,
            may_leave=False,
        )
        hub.start()
        return await_hub(hub, self._run.hub_address, self._probe, HUB_START_SECONDS)

    def _start_here(
        self, worker: plan.PlannedWorker, backend: Backend, address: str, on_end: Callable[[Kept], None]
    ) -> Kept:
        workers = sum(other.backend == worker.backend for other in self._planned)
        ids = () if workers < 2 or not backend.visible_devices else usable_ids(backend)
        spec = plan.worker_spec(
            self._config,
            self._run,
            worker,
            hub=address,
            backend=backend,
            environment=plan.visible_devices(backend, ids, worker.index, workers),
        )
        keeper = Keeper(lambda: spec, self._policy, self._notify, on_end, may_leave=True)
        keeper.start()
        return keeper

    def _ask_for_remote_workers(self, address: str) -> None:
        """Says what to type on other machines; it stays in a file of the run."""
        if not self._remote:
            return
        lines = remote_instructions(self._config, self._remote, address)
        write_whole(self._run.remote_workers, "\n".join(lines) + "\n")
        for line in lines:
            self._notify(line)

    def _process_ended(self, keeper: Kept) -> None:
        error = start_error(keeper, "cannot be started again")
        if keeper is self._hub:
            if self.hub_address is not None:  # before that, start() itself reports it
                self._fail(error)
        elif all(worker.ended for worker in self._workers) and not self._somebody_works():
            self._fail(error)
        else:
            self._notify(str(error).splitlines()[0])

    def _somebody_works(self) -> bool:
        """Whether the hub knows a worker, remote ones included, that is at work."""
        if self.fleet is None:
            return False
        with contextlib.suppress(ProtocolError):
            workers = self.fleet.list_workers(include_gone=False)
            return any(worker.state is WorkerState.ACTIVE for worker in workers)
        return False

    def _await_first_worker(self, fleet: FleetPort) -> None:
        settings = self._config.inference
        here = bool(self._workers) or settings.workers == 0
        timeout = settings.start_timeout if here else settings.remote_worker_timeout
        if not await_first_worker(fleet, timeout, self._closing):
            self._fail(self._nobody_joined(timeout))
        elif self._workers and self._remote:
            self._await_remote_workers(fleet, settings.remote_worker_timeout)

    def _nobody_joined(self, timeout: float) -> LaunchError:
        if self._workers:
            return start_error(self._workers[0], f"did not join the run within {timeout:g} s")
        lines = remote_instructions(self._config, self._remote, self.hub_address or self._config.hub.listen)
        return LaunchError(
            f"no worker joined within {timeout:g} s; inference.remote_worker_timeout sets how long to wait. "
            + "\n".join(lines)
        )

    def _await_remote_workers(self, fleet: FleetPort, timeout: float) -> None:
        """Tells when backends of other machines join, or that they have not in time; the run goes on without them."""
        wanted = {worker.label for worker in self._remote}
        missing = await_backends(fleet, wanted, timeout, self._closing, self._notify)
        if missing and not self._closing.is_set():
            self._notify(
                f"no worker of {', '.join(sorted(missing))} joined within {timeout:g} s; the run goes on without, and takes "
                "one that joins later"
            )

    def _fail(self, error: HeteroRLError) -> None:
        # The first failure is the cause; what follows from it would only hide it. The lock is never given back.
        if not self._closing.is_set() and self._failed.acquire(blocking=False):
            self._on_failure(error)
