"""The run that the ingest benchmarks hand results in to: a hub of its own, the smallest weights, many prompt groups."""

import asyncio
import contextlib
import hashlib
from collections.abc import Coroutine, Generator
from typing import Any, Protocol, TypeVar

import grpc

from hetero_rl.bench.ingest_fleet import DIGESTS, RUN_ID
from hetero_rl.bench.samples import VOCABULARY_SIZE
from hetero_rl.config.tree import Config
from hetero_rl.weights.digests import state_digest
from hetero_rl.wire.blocking_clients import FleetClient, TrainingClient
from hetero_rl.wire.columns import int32_column
from hetero_rl.wire.messages import (
    BlobReference,
    DataType,
    Limits,
    PromptGroup,
    RunRequest,
    SamplingParameters,
    TensorEntry,
    WeightEncoding,
    WeightManifest,
)

__all__ = ["Run", "check_stored", "event_loop", "hub_config", "open_run"]

T = TypeVar("T")


class Run(Protocol):
    """Runs a coroutine to its end."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T:
        """Returns the coroutine's result."""


def hub_config(**security: str) -> Config:
    """A hub that never gives a lease of the benchmark to somebody else."""
    return Config.model_validate(
        {"hub": {"lease_seconds": 3600.0, "heartbeat_seconds": 1200.0}, "security": security}
    )


@contextlib.contextmanager
def event_loop() -> Generator[Run]:
    """Runs coroutines; unlike asyncio.Runner without work of its own at each call, which would be timed."""
    loop = asyncio.new_event_loop()
    try:
        yield loop.run_until_complete
    finally:
        loop.close()


def open_run(
    address: str,
    *,
    groups: int,
    samples: int,
    tokens_each: int,
    credentials: grpc.ChannelCredentials | None = None,
) -> None:
    """Opens a run with one weight version and one optimizer step.

    Args:
        address: Of the hub.
        groups: Prompt groups, one for every submission to come.
        samples: Completions of a group.
        tokens_each: Most tokens of a completion.
        credentials: Of the trainer; None for plaintext.
    """
    sampling = SamplingParameters(max_new_tokens=tokens_each, stop_token_ids=())
    limits = Limits(
        max_message_bytes=2**23,
        max_prompt_tokens=64,
        max_completion_tokens=tokens_each,
        max_group_size=samples,
        vocabulary_size=VOCABULARY_SIZE,
    )
    request = RunRequest(
        run_id=RUN_ID,
        groups_per_step=groups,
        max_lag=0,
        total_steps=1,
        model_digests=DIGESTS,
        model_files=(),
        sampling=sampling,
        limits=limits,
        config_json="{}",
        software_version="bench",
    )
    prompts = [
        PromptGroup(
            group_id=f"group-{ordinal}",
            ordinal=ordinal,
            prompt_token_ids=int32_column([1]),
            group_size=samples,
            sampling=sampling,
        )
        for ordinal in range(groups)
    ]
    weights = bytes(4)
    with TrainingClient(address, credentials) as trainer:
        trainer.open_run(request)
        manifest = _manifest(weights)
        trainer.put_blob(manifest.blobs[0], iter([weights]))
        trainer.publish_version(manifest)
        trainer.enqueue_groups(prompts)


def check_stored(address: str, groups: int, credentials: grpc.ChannelCredentials | None = None) -> None:
    """A submission that was refused would have cost less than one that was stored."""
    with FleetClient(address, credentials) as client:
        stored = client.run_status().training.finished
    if stored != groups:
        raise AssertionError(f"{groups} groups were handed in, the hub has {stored}")


def _manifest(weights: bytes) -> WeightManifest:
    digest = hashlib.sha256(weights).hexdigest()
    tensor = TensorEntry(
        name="w",
        data_type=DataType.FLOAT32,
        shape=(1,),
        digest=digest,
        blob_index=0,
        offset=0,
        size=len(weights),
    )
    return WeightManifest(
        version=1,
        step=0,
        encoding=WeightEncoding.FULL_RAW,
        tensors=(tensor,),
        blobs=(BlobReference(digest, len(weights)),),
        state_digest=state_digest((tensor,)),
    )
