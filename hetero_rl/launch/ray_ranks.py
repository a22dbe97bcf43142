"""The trainer's ranks on a Ray cluster: placed together, started together, started again together.

    run() ──► placement group: room for all ranks or for none
          ──► one actor for each ──► rank 0 says its address and a free port ──► every rank starts with them
          ──► wait ──► rank 0 ended: complete, or drained after stop ──────────────► its end
                   ──► any rank failed, or its node is lost ──► all are ended ──► delay ──► again, from the checkpoint

torch's own rendezvous joins the ranks (gloo or NCCL, `trainer.ranks`); Ray only says where they are. A rank that is lost
leaves the others in a collective that never ends, so all are ended; the hub keeps what was generated meanwhile. Ray Train
would do the same by its own rules, with a function of Python that it pickles, and its rules differ between the versions
that vendors' images hold.
"""

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

from hetero_rl.errors import LaunchError
from hetero_rl.launch.interrupts import INTERRUPTED_EXIT_CODE
from hetero_rl.launch.placement import Placement
from hetero_rl.launch.ray_holder import End, Order, Place, holder_on
from hetero_rl.launch.ray_keeper import LOOK_SECONDS, LOST, WAIT_SECONDS, answer, end_actor, in_short
from hetero_rl.launch.restart import RestartPolicy

__all__ = ["RankGang", "Rendezvous"]

FOLLOWERS_SECONDS = 60.0
"""How long other ranks may take to end after rank 0 has."""
GROUP_STRATEGY = "PACK"
"""Ranks on as few nodes as have room: their collectives are faster there."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """What a rank is told so that it finds the others."""

    rank: int
    world: int
    address: str
    """Host of rank 0."""
    port: int

    def environment(self) -> dict[str, str]:
        """As torch reads it. Ray shows each rank its own devices only, so that the first of them is its own."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


class RankGang:
    """The ranks of one trainer.

    Args:
        world: How many.
        placement: What each asks for.
        order: Makes what to start for a rank.
        policy: When starting them again is worth it.
        notify: Takes a sentence for people.
    """

    def __init__(
        self,
        world: int,
        placement: Placement,
        order: Callable[[Rendezvous], Order],
        policy: RestartPolicy,
        notify: Callable[[str], None],
    ) -> None:
        self._world = world
        self._placement = placement
        self._order = order
        self._policy = policy
        self._notify = notify
        self._killed = threading.Event()
        self.places: tuple[Place, ...] = ()
        self.restarts = 0

    def run(self, stop: threading.Event) -> End:
        """Keeps the ranks running until rank 0 has made all steps, or has drained after `stop`.

        Raises:
            LaunchError: They fail too often, or in a way that another start would meet again.
        """
        deaths = 0
        while True:
            end, seconds = self._attempt(stop)
            if end.code in {0, INTERRUPTED_EXIT_CODE} or self._killed.is_set():
                return end
            deaths = self._policy.deaths_after(deaths, seconds)
            delay = self._policy.delay(deaths, end.code)
            if delay is None:
                raise LaunchError(f"{end.sentence}. The end of its log:\n{end.tail}")
            if stop.wait(0):
                return dataclasses.replace(end, code=INTERRUPTED_EXIT_CODE)
            self._notify(f"{end.sentence}; the trainer goes on from its checkpoint in {delay:g} s")
            stop.wait(delay)
            self.restarts += 1

    def kill(self) -> None:
        """Makes `run` end the ranks and return."""
        self._killed.set()

    def _attempt(self, stop: threading.Event) -> tuple[End, float]:
        """One life of all ranks: how rank 0 ended, or the first that failed; and after how many seconds of life."""
        import ray
        from ray.exceptions import RayError

        group: Any = None
        actors: list[Any] = []
        started = time.monotonic()
        try:
            group = self._room()
            actors = self._placed(group, stop)
            if not actors:
                return End(code=INTERRUPTED_EXIT_CODE, sentence="was not started", tail=""), 0.0
            started = time.monotonic()
            end = self._watched(actors, stop)
        except RayError as error:
            end = _lost("a trainer rank", error)
        finally:
            seconds = time.monotonic() - started
            for actor in actors:
                end_actor(actor)
            if group is not None:
                ray.util.remove_placement_group(group)
        return end, seconds

    def _room(self) -> Any:
        from ray.util.placement_group import placement_group

        labels = [dict(self._placement.labels)] * self._world if self._placement.labels else None
        bundles = [self._placement.bundle()] * self._world
        return placement_group(
            bundles, strategy=GROUP_STRATEGY, **({"bundle_label_selector": labels} if labels else {})
        )

    def _placed(self, group: Any, stop: threading.Event) -> list[Any]:
        """Actors with their ranks started; none once asked to stop."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        def given_up() -> bool:
            return stop.is_set() or self._killed.is_set()

        if answer(group.ready(), given_up, waiting=self._no_room) is None:
            return []
        options = {**self._placement.options()}
        options.pop("label_selector", None)  # the group has chosen the nodes
        actors = [
            holder_on(
                options,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=index
                ),
            )
            for index in range(self._world)
        ]
        places = [answer(actor.place.remote(), given_up) for actor in actors]
        port = answer(actors[0].free_port.remote(), given_up)
        if None in places or port is None:
            for actor in actors:
                end_actor(actor)
            return []
        self.places = tuple(places)
        for rank, actor in enumerate(actors):
            told = Rendezvous(rank=rank, world=self._world, address=places[0].address, port=port)
            answer(actor.start.remote(self._order(told)), self._killed.is_set)
        return actors

    def _watched(self, actors: list[Any], stop: threading.Event) -> End:
        """Waits for the end of rank 0, or of one that failed; passes `stop` on to rank 0, which commands the others."""
        import ray

        waits = {actor.wait.remote(WAIT_SECONDS): rank for rank, actor in enumerate(actors)}
        asked = False
        while not self._killed.is_set():
            if stop.is_set() and not asked:
                asked = True
                actors[0].request_stop.remote()
            ready, _ = ray.wait(list(waits), timeout=LOOK_SECONDS)
            for ref in ready:
                rank = waits.pop(ref)
                end = self._end_of(ref, rank)
                if end is None:
                    waits[actors[rank].wait.remote(WAIT_SECONDS)] = rank
                elif rank == 0 or end.code != 0:
                    return _finished(actors, end) if rank == 0 else end
        return End(code=INTERRUPTED_EXIT_CODE, sentence="was ended", tail="")

    def _end_of(self, ref: Any, rank: int) -> End | None:
        """How a rank ended; None while it runs."""
        import ray
        from ray.exceptions import RayError

        try:
            end: End | None = ray.get(ref)
        except RayError as error:
            return _lost(self._who(rank), error)
        return None if end is None else dataclasses.replace(end, sentence=f"{self._who(rank)} {end.sentence}")

    def _who(self, rank: int) -> str:
        return f"trainer rank {rank} on {self.places[rank].address}"

    def _no_room(self) -> None:
        self._notify(f"the trainer waits for room for {self._world} x ({self._placement.describe()})")


def _finished(actors: list[Any], end: End) -> End:
    """Lets the other ranks end by themselves, as rank 0 told them."""
    import ray

    if end.code in {0, INTERRUPTED_EXIT_CODE} and len(actors) > 1:
        ray.wait(
            [actor.wait.remote(FOLLOWERS_SECONDS) for actor in actors[1:]],
            num_returns=len(actors) - 1,
            timeout=FOLLOWERS_SECONDS,
        )
    ray.wait([actor.close.remote() for actor in actors], num_returns=len(actors), timeout=WAIT_SECONDS)
    return end


def _lost(who: str, error: Exception) -> End:
    return End(
        code=LOST,
        sentence=f"{who} is lost with its node or actor ({in_short(error)})",
        tail="  (its log is on the node)",
    )
