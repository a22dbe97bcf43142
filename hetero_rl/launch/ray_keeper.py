"""Keeps one process running on a Ray cluster: places it, waits for its end, places it again or gives up.

    start() ──► thread: ┌► actor placed ──► process started ──► wait ──► ended, or actor or node lost
                        │     (pends until a node has room)                 │
                        │                               closing? ── yes ──► done
                        │                               left on its own ──► on_end(keeper)
                        │                               policy: delay or give up ── give up ──► on_end(keeper)
                        └────── again ◄── wait for the delay, or for close()

The same rules as `launch.keeper`. A lost node counts as a death of its processes; time spent waiting for room does not
count as life. close(): asks the process to drain, waits for its grace, ends the actor, joins the thread.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from hetero_rl.launch.placement import Placement
from hetero_rl.launch.ray_holder import End, Order, Place, holder_on
from hetero_rl.launch.restart import RestartPolicy

__all__ = ["LOST", "RayKeeper", "answer", "end_actor", "in_short"]

LOST = -1
"""Stands for the exit code of a process whose node or actor is gone."""
WAIT_SECONDS = 2.0
LOOK_SECONDS = 0.5
PATIENT_SECONDS = 15.0
"""After this long without room somebody is told."""


def answer(ref: Any, given_up: Callable[[], bool], *, waiting: Callable[[], None] | None = None) -> Any:
    """What an actor answers; None once `given_up()`.

    Args:
        ref: The pending call.
        given_up: Asked twice a second.
        waiting: Called once when the answer takes long.

    Raises:
        ray.exceptions.RayError: The actor or its node is gone.
    """
    import ray

    started = time.monotonic()
    while not given_up():
        ready, _ = ray.wait([ref], timeout=LOOK_SECONDS)
        if ready:
            return ray.get(ref)
        if waiting is not None and time.monotonic() - started > PATIENT_SECONDS:
            waiting()
            waiting = None
    return None


def in_short(error: Exception) -> str:
    """An error of Ray on one line: its messages hold tracebacks and advice about Ray itself."""
    lines = str(error).strip().splitlines()
    return (
        f"{type(error).__name__}: {lines[-1 if 'Traceback' in str(error) else 0][:200]}"
        if lines
        else type(error).__name__
    )


def end_actor(actor: Any) -> None:
    """Ends an actor at once; its process sees the end of its lifeline and drains."""
    import ray

    ray.kill(actor, no_restart=True)


class RayKeeper:
    """One kept process on the cluster.

    Args:
        name: Of the process, for people.
        order: Makes what to start, once it is known where.
        placement: What it asks for.
        policy: When placing it again is worth it.
        notify: Takes a sentence for people.
        on_end: Called once, on the keeper's thread, when the process ended for good and nobody asked for it.
    """

    def __init__(
        self,
        name: str,
        order: Callable[[Place], Order],
        placement: Placement,
        policy: RestartPolicy,
        notify: Callable[[str], None],
        on_end: "Callable[[RayKeeper], None]",
    ) -> None:
        self._name = name
        self._order = order
        self._placement = placement
        self._policy = policy
        self._notify = notify
        self._on_end = on_end
        self._closing = threading.Event()
        self._killed = threading.Event()
        self._handing_over = threading.Lock()
        self._actor: Any = None
        self._last: End | None = None
        self._thread = threading.Thread(target=self._keep, name=f"keeper-{name}", daemon=True)
        self.place: Place | None = None
        self.restarts = 0
        self.ended = False

    def start(self) -> None:
        """Places the process and begins to watch it."""
        self._thread.start()

    def describe(self, complaint: str) -> str:
        """What is wrong with the process, for people; `complaint` unless it has ended."""
        if self._last is None:
            asked = f"; it asks for {self._placement.describe()}" if self.place is None else ""
            return f"{self._name} {complaint}{asked}"
        what = self._last.sentence if self.ended else complaint
        return f"{self._name} {what}. The end of its log:\n{self._last.tail}"

    def request_stop(self) -> None:
        """Asks the process to end; it is not placed again."""
        self._closing.set()
        with self._handing_over:
            if self._actor is not None:
                self._actor.request_stop.remote()

    def close(self, grace: float) -> None:
        """Ends the process within `grace` seconds."""
        self.request_stop()
        # A process that still waits for room has nothing to drain.
        if self.place is not None:
            self._thread.join(grace)
        self.kill()
        self._thread.join()

    def kill(self) -> None:
        """Ends the actor at once; the process is not placed again."""
        self._closing.set()
        self._killed.set()
        with self._handing_over:
            if self._actor is not None:
                end_actor(self._actor)

    def _keep(self) -> None:
        deaths = 0
        while True:
            end, seconds = self._live()
            if self._closing.is_set():
                return
            self._last = end
            if end.code == 0:
                break
            deaths = self._policy.deaths_after(deaths, seconds)
            delay = self._policy.delay(deaths, end.code)
            if delay is None:
                break
            self._notify(f"{self._name} {end.sentence}; placing it again in {delay:g} s")
            if self._closing.wait(delay):
                return
            self.restarts += 1
        self.ended = True
        self._on_end(self)

    def _live(self) -> tuple[End, float]:
        """One life of the process: how it ended, and after how many seconds of life."""
        from ray.exceptions import RayError

        started = time.monotonic()
        try:
            actor = self._placed()
            started = time.monotonic()
            end = _gone("was not wanted any more") if actor is None else self._watched(actor)
        except RayError as error:
            end = _gone(f"is lost with its node or actor ({in_short(error)})")
        finally:
            seconds = time.monotonic() - started
            self._let_go()
        return end, seconds

    def _placed(self) -> Any:
        """The actor, with its process started; None once closing."""
        with self._handing_over:
            if self._closing.is_set():
                return None
            actor = self._actor = holder_on(self._placement.options())
        place = answer(actor.place.remote(), self._closing.is_set, waiting=self._no_room)
        if place is None:
            return None
        self.place = place
        answer(actor.start.remote(self._order(place)), self._killed.is_set)
        if self._closing.is_set():  # asked while it was being started, when there was nothing to ask
            actor.request_stop.remote()
        return actor

    def _watched(self, actor: Any) -> End:
        """Waits for the end of the process."""
        while not self._killed.is_set():
            end: End | None = answer(actor.wait.remote(WAIT_SECONDS), self._killed.is_set)
            if end is not None:
                answer(actor.close.remote(), self._killed.is_set)
                return end
        return _gone("was ended")

    def _let_go(self) -> None:
        with self._handing_over:
            actor, self._actor = self._actor, None
            self.place = None
        if actor is not None:
            end_actor(actor)

    def _no_room(self) -> None:
        self._notify(f"{self._name} waits for a node with {self._placement.describe()}")


def _gone(sentence: str) -> End:
    return End(code=LOST, sentence=sentence, tail="  (its log is on the node)")
