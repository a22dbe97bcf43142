"""What the worker and the trainer call, as interfaces: the gRPC clients implement them, and so do test doubles.

Every method raises `RefusedError` (the hub said no), `FencedError` (a newer incarnation took over) or
`UnreachableError` (no answer within the deadline). None of them retries; who calls decides that.
"""

import dataclasses
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from typing import Protocol

from hetero_rl.errors import HeteroRLError
from hetero_rl.wire.messages import (
    BlobReference,
    EnqueueReceipt,
    Event,
    FinishedGroup,
    Heartbeat,
    HeartbeatReply,
    JoinGrant,
    JoinRequest,
    LeaseGrant,
    ProbeCard,
    ProbeResult,
    PromptGroup,
    RunDescription,
    RunGrant,
    RunRequest,
    RunStatus,
    ScoreStatus,
    SequenceOutcome,
    Submission,
    SubmissionReceipt,
    WeightEncoding,
    WeightManifest,
    WorkerIdentity,
    WorkerSummary,
)


@dataclasses.dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far the batch of a step is, for a caller that reads groups ahead of their batch."""

    group_ids: tuple[str, ...] | None
    """The batch's groups in its order; None while it is not complete."""
    groups: tuple[FinishedGroup, ...]
    """Those of them that the caller did not hold; without a batch, finished groups of batches to come."""


class RolloutPort(Protocol):
    """What a worker asks of the hub. Durations are in seconds."""

    async def get_run(self) -> RunDescription:
        """What a worker must know before it loads a model."""

    async def join(self, request: JoinRequest) -> JoinGrant:
        """Makes the worker known; safe to repeat with the same boot id."""

    async def lease_work(
        self, worker: WorkerIdentity, *, loaded_weight_version: int, free_sequences: int, wait: float
    ) -> LeaseGrant:
        """Asks for work and waits up to `wait` for it."""

    async def submit_results(self, submission: Submission) -> SubmissionReceipt:
        """Hands in results; the receipt means that they are on disk."""

    async def submit_batch(
        self, submissions: Sequence[Submission]
    ) -> tuple[SubmissionReceipt | HeteroRLError, ...]:
        """Hands in several results at once; a receipt or a refusal for each, in their order."""

    async def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Renews the worker and the leases it names."""

    async def report_probe(self, worker: WorkerIdentity, result: ProbeResult, numerics_id: str) -> bool:
        """Reports a probe card's outcome; False means that the worker is in quarantine now."""

    async def leave(self, worker: WorkerIdentity, reason: str) -> None:
        """Gives back leases and says goodbye."""


class WeightPort(Protocol):
    """Where a worker gets weights: the hub, or a relay in front of it."""

    async def get_plan(
        self, *, held_version: int, wanted_version: int, encodings: Sequence[WeightEncoding]
    ) -> tuple[WeightManifest, ...]:
        """Manifests to apply in order; empty when up to date. Version 0 holds nothing, or wants the latest."""

    def fetch_blob(self, digest: str, offset: int) -> AsyncIterator[bytes | memoryview]:
        """Bytes of a blob from an offset, chunk by chunk."""

    async def await_version(self, after_version: int, wait: float) -> int:
        """Waits for a version above the given one; returns the latest either way."""


class TrainingPort(Protocol):
    """What the trainer asks of the hub. The trainer epoch is kept by the implementation after `open_run`."""

    def open_run(self, request: RunRequest) -> RunGrant:
        """Opens a new run or continues one; fences every trainer before this one."""

    def enqueue_groups(self, groups: Sequence[PromptGroup]) -> EnqueueReceipt:
        """Puts prompt groups into the queue; known group ids are not queued again."""

    def take_batch(self, step: int, wait: float) -> tuple[FinishedGroup, ...] | None:
        """The batch of optimizer step `step`, counted from 1; None when it is not complete after `wait` seconds."""

    def take_batch_ahead(
        self, step: int, wait: float, *, held: Collection[str], at_least: int
    ) -> BatchProgress:
        """As `take_batch`, but reads groups ahead of their batch: ends when `at_least` not held are finished, too.

        Args:
            step: The optimizer step, counted from 1.
            wait: Seconds.
            held: Groups that were read ahead before; they are named in the batch and not sent again.
            at_least: At least 1. A hub of an older version sends whole batches only.
        """

    def take_evaluation(self, group_ids: Sequence[str], wait: float) -> tuple[FinishedGroup, ...] | None:
        """Finished evaluation groups; None when some are missing after `wait` seconds."""

    def commit_step(
        self, step: int, outcomes: Sequence[SequenceOutcome], log_probs: bytes | None = None
    ) -> None:
        """Says that a step was applied and what became of each sequence; `log_probs` is a float32 column."""

    def put_blob(self, blob: BlobReference, chunks: Iterator[bytes]) -> None:
        """Uploads a blob unless the hub has it; resumes a partial upload."""

    def publish_version(self, manifest: WeightManifest) -> tuple[int, ...]:
        """Makes a weight version known; its blobs must be stored.

        Returns:
            Versions that workers hold from which a merged delta to this one would be of use, newest first.
        """

    def add_route(self, manifest: WeightManifest) -> None:
        """Adds another way to a version that is published; its blobs must be stored."""

    def commit_checkpoint(self, step: int, oldest_kept_step: int) -> None:
        """Says that a checkpoint is durable."""

    def close_run(self, *, complete: bool) -> None:
        """Ends the run, or leaves it to be continued."""


class FleetPort(Protocol):
    """What people and dashboards ask of the hub."""

    def list_workers(self, *, include_gone: bool) -> tuple[WorkerSummary, ...]:
        """Workers by name."""

    def run_status(self) -> RunStatus:
        """The run at a glance."""

    def list_events(self, after_sequence: int, limit: int = 0) -> tuple[Event, ...]:
        """What happened, oldest first."""

    def drain_worker(self, worker_name: str) -> None:
        """Stops giving a worker new work."""

    def quarantine_worker(self, worker_name: str, reason: str) -> None:
        """Stops trusting a worker."""

    def readmit_worker(self, worker_name: str) -> None:
        """Ends a quarantine."""

    def request_calibration(
        self, backends: Sequence[str], card: ProbeCard, weight_version: int
    ) -> tuple[str, ...]:
        """Asks workers of these backends, or of all, to score a card; returns one score id for each worker asked."""

    def get_score(self, score_id: str) -> ScoreStatus:
        """What became of one of those scores."""
