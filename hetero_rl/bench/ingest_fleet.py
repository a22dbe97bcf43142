"""The workers of the ingest benchmark: real sessions and the real submit loop, without an engine."""

import asyncio
import contextlib
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Self

import grpc

from hetero_rl.bench.engineless import join_without_engine
from hetero_rl.errors import UnreachableError
from hetero_rl.wire.clients import RolloutClient, WeightClient
from hetero_rl.wire.messages import (
    GenerateWork,
    Lease,
    ModelDigests,
    Submission,
    TrajectoryBatch,
)
from hetero_rl.worker.session import Session
from hetero_rl.worker.submit_loop import submit_loop

__all__ = ["DIGESTS", "RUN_ID", "Fleet", "Results"]

RUN_ID = "bench"
DIGESTS = ModelDigests(
    config=hashlib.sha256(b"config").hexdigest(), tokenizer=hashlib.sha256(b"").hexdigest()
)
_MAX_LEASES_PER_CALL = 64
_FIRST_LONE_SEQUENCE = 10**6

Results = list[tuple[str, TrajectoryBatch]]
"""Lease ids of one worker with what answers them."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Worker:
    """One worker that has joined, with its connections and its running submit loop."""

    client: RolloutClient
    weights: WeightClient
    session: Session
    submitting: asyncio.Task[None]

    @classmethod
    async def join(
        cls, address: str, name: str, capacity: int, credentials: grpc.ChannelCredentials | None
    ) -> Self:
        client, weights = RolloutClient(address, credentials), WeightClient(address, credentials)
        session = await join_without_engine(client, weights, name=name, capacity=capacity)
        return cls(client, weights, session, asyncio.create_task(submit_loop(session)))

    async def lease(self, groups: int, samples: int) -> list[Lease]:
        leases: list[Lease] = []
        while len(leases) < groups:
            wanted = min(groups - len(leases), _MAX_LEASES_PER_CALL)
            grant = await self.client.lease_work(
                self.session.link.identity,
                loaded_weight_version=1,
                free_sequences=wanted * samples,
                wait=1.0,
            )
            if not grant.leases:
                raise UnreachableError(f"the hub gave no lease: {grant.no_work_reason}")
            leases += grant.leases
        return leases

    async def hand_in(self, results: Results) -> None:
        """Everything at once into the outbox; returns when the hub has answered for all of it."""
        for lease_id, batch in results:
            self.session.hand_in(lease_id, [batch])
        emptied = asyncio.create_task(self.session.outbox.join())
        await asyncio.wait([emptied, self.submitting], return_when=asyncio.FIRST_COMPLETED)
        if self.submitting.done():
            emptied.cancel()
            await self.submitting

    async def one_by_one(self, results: Results, first: int) -> None:
        for sequence, (lease_id, batch) in enumerate(results, start=first):
            await self.client.submit_results(
                Submission(
                    worker=self.session.link.identity,
                    sequence=sequence,
                    lease_id=lease_id,
                    final=True,
                    results=batch,
                )
            )

    async def close(self) -> None:
        self.submitting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.submitting
        await self.client.close()
        await self.weights.close()


class Fleet:
    """Workers that have joined; `join` makes it."""

    def __init__(self, workers: Sequence[_Worker], batch: TrajectoryBatch) -> None:
        self._workers = workers
        self._batch = batch
        self._lone_sequence = _FIRST_LONE_SEQUENCE

    @classmethod
    async def join(
        cls,
        address: str,
        credentials: Mapping[str, grpc.ChannelCredentials | None],
        capacity: int,
        batch: TrajectoryBatch,
    ) -> Self:
        """Workers with room for `capacity` completions each; all of them answer a lease with `batch`.

        Args:
            address: Of the hub.
            credentials: What each worker shows, by its name; None for plaintext.
            capacity: Completions that a worker may have at once.
            batch: The answer.
        """
        return cls(
            [await _Worker.join(address, name, capacity, shown) for name, shown in credentials.items()], batch
        )

    async def lease_rounds(self, rounds: int, waiting: int) -> list[list[Results]]:
        """For each round, for each worker: `waiting` leases and what answers them."""
        samples = len(self._batch.lengths)
        shares = [await worker.lease(rounds * waiting, samples) for worker in self._workers]
        return [
            [
                [self._result(lease) for lease in share[number * waiting : (number + 1) * waiting]]
                for share in shares
            ]
            for number in range(rounds)
        ]

    def _result(self, lease: Lease) -> tuple[str, TrajectoryBatch]:
        if not isinstance(lease.work, GenerateWork):
            raise TypeError(f"lease {lease.lease_id} is not of completions")
        return lease.lease_id, dataclasses.replace(self._batch, group_id=lease.work.group_id)

    async def hand_in(self, results: list[Results]) -> None:
        """Every worker has all of its results waiting; its submit loop brings them to the hub."""
        async with asyncio.TaskGroup() as tasks:
            for worker, share in zip(self._workers, results, strict=True):
                tasks.create_task(worker.hand_in(share))

    async def one_by_one(self, results: list[Results]) -> None:
        """Every worker hands in one submission after the acknowledgement of the other."""
        first, self._lone_sequence = self._lone_sequence, self._lone_sequence + len(results[0])
        async with asyncio.TaskGroup() as tasks:
            for worker, share in zip(self._workers, results, strict=True):
                tasks.create_task(worker.one_by_one(share, first))

    async def close(self) -> None:
        """Ends the connections."""
        for worker in self._workers:
            await worker.close()
