"""The weight version that a worker holds, and the next one: planned, downloaded, decoded and verified.

    version held ──► plan ──► blobs ──► full copy: verified files ──────────────┐
                                  └──► deltas: applied to the bytes held, once ─┴─► every digest right ──► engine
    anything damaged ──► nothing is held any more ──► the next plan begins at a full copy

The engine has its own copy of the weights, so the bytes held may move on while it serves. Their blobs stay on disk, the
full copy and the deltas since: a worker that starts again reads them from there.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from hetero_rl.errors import DamagedError, StorageError
from hetero_rl.weights.encodings import supported_encodings
from hetero_rl.weights.full import StagedVersion, stage_full, unpack_full
from hetero_rl.weights.seconds import StageSeconds
from hetero_rl.wire.messages import BlobReference, DataType, WeightEncoding, WeightManifest, WeightSync
from hetero_rl.worker.arriving import ArrivingBlob
from hetero_rl.worker.blob_cache import BlobCache
from hetero_rl.worker.session import Session

if TYPE_CHECKING:
    from hetero_rl.weights.held import HeldWeights, TensorTaker
    from hetero_rl.worker.engine import EarlyWeights

    # Verified files until the first delta comes, private memory over them afterwards.
    Held: TypeAlias = StagedVersion | HeldWeights

__all__ = ["ENCODINGS", "Progress", "WeightStage"]

_logger = logging.getLogger(__name__)

ENCODINGS = supported_encodings()
"""Encodings of weight versions that a worker decodes."""


class Progress:
    """What the way to one version has cost so far. Seconds."""

    def __init__(self, from_version: int) -> None:
        self.from_version = from_version
        """Version that the way began at; 0 once it has gone through a full copy."""
        self.manifests = 0
        self.fetched_bytes = 0
        self.fetch = 0.0
        self.stages = StageSeconds()
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def fetching(self, cache: BlobCache) -> Generator[None]:
        """Adds the time and the bytes of what happens inside."""
        started, before = time.perf_counter(), cache.fetched_bytes
        try:
            yield
        finally:
            self.fetch += time.perf_counter() - started
            self.fetched_bytes += cache.fetched_bytes - before

    def note(self, plan: Sequence[WeightManifest]) -> None:
        """Counts the manifests of a plan that was fetched."""
        self.manifests += len(plan)
        if any(map(_is_full, plan)):
            self.from_version = 0

    def sync(self, version: int, *, pause: float, fallbacks: int, relay_bypasses: int) -> WeightSync:
        """The report of a version that serves now.

        Args:
            version: The version.
            pause: Seconds in which the engine did nothing but load.
            fallbacks: Full copies that took the place of something damaged.
            relay_bypasses: Times that the hub was asked in place of the relay.
        """
        return WeightSync(
            weight_version=version,
            from_version=self.from_version,
            manifests=self.manifests,
            fetched_bytes=self.fetched_bytes,
            fetch_seconds=self.fetch,
            decode_seconds=max(0.0, self.stages.decode),  # a difference of clock readings
            verify_seconds=self.stages.verify,
            pause_seconds=pause,
            total_seconds=time.perf_counter() - self._started,
            fallbacks=fallbacks,
            relay_bypasses=relay_bypasses,
        )


class WeightStage:
    """Fetches versions and holds one.

    Args:
        session: The worker.
        cache: Where blobs are kept.
    """

    def __init__(self, session: Session, cache: BlobCache) -> None:
        self._session = session
        self._cache = cache
        self._blobs: tuple[BlobReference, ...] = ()
        """Blobs of the version staged last: of its full copy, raw as well if it came coded, and of every delta since."""
        self._unpacked: tuple[BlobReference, ...] = ()
        """Raw blobs of the full copy that the present way went through, if it came coded."""
        self.held: Held | None = None
        self.fallbacks = 0
        """How often something was damaged, so that the next version had to begin at a full copy."""
        self._prepared = False
        """Whether the decoder was compiled, or is being compiled."""
        self.progress = Progress(0)
        """Of the way that `advance` went last."""

    @property
    def version(self) -> int:
        """The version held; 0 is none."""
        return self.held.manifest.version if self.held is not None else 0

    async def advance(self, latest: int, early: "EarlyWeights | None" = None) -> "Held | None":
        """The hub's latest version, ready to be loaded; None when the hub has nothing newer.

        Deltas move what is held; a full copy leaves it until `keep` is called. The hub may give a long way in parts.

        Args:
            latest: A version that the hub is known to have; it may have a newer one by now.
            early: Is given tensors as soon as they are verified, of what may be the version returned.

        Raises:
            DamagedError: A blob or a delta is not what its manifest says. Nothing is held any more.
            RefusedError: The hub has no way to its latest version, or a blob is gone.
        """
        session, staged, version = self._session, None, self.version
        self.progress = progress = Progress(version)
        while version < latest:
            with progress.fetching(self._cache):
                plan = await session.link.repeat(
                    "plan of weights",
                    lambda version=version: session.weights.get_plan(  # type: ignore[misc]  # a default binds the loop variable
                        held_version=version, wanted_version=0, encodings=ENCODINGS
                    ),
                )
            if not plan:
                break
            staged = await self._follow(plan, staged or self.held, early)
            version = staged.manifest.version
        return staged

    async def _follow(
        self, plan: Sequence[WeightManifest], start: "Held | None", early: "EarlyWeights | None"
    ) -> "Held":
        """Goes through a plan while its blobs arrive."""
        self.progress.note(plan)
        self._unpacked = ()
        blobs = tuple(blob for manifest in plan for blob in manifest.blobs)
        with self._cache.arriving(blobs) as sources:
            fetching = asyncio.create_task(self._fetch(blobs))
            applying = asyncio.create_task(asyncio.to_thread(self._apply, plan, sources, start, early))
            try:
                await asyncio.wait((fetching, applying), return_when=asyncio.FIRST_EXCEPTION)
                for task in (fetching, applying):  # whichever failed first is done, the other one is not
                    if task.done():
                        task.result()
            except BaseException as error:
                await _end(fetching, applying, sources)  # before a look at what the thread has left
                self._note_failure(plan, start, error)
                raise
        self._blobs = self._unpacked + blobs if _is_full(plan[0]) else self._blobs + blobs
        return applying.result()

    async def _fetch(self, blobs: Sequence[BlobReference]) -> None:
        with self.progress.fetching(self._cache):
            await self._cache.fetch_all(blobs)

    def _note_failure(
        self, plan: Sequence[WeightManifest], start: "Held | None", error: BaseException
    ) -> None:
        if isinstance(error, DamagedError) or not _is_usable(start):
            self.held = None
            self.fallbacks += 1
            _logger.warning(
                "version %d needs a full copy (%d so far): %s", plan[-1].version, self.fallbacks, error
            )
        elif start is self.held and start is not None:  # the deltas before the one that failed were applied
            moved = [manifest for manifest in plan if manifest.version <= start.manifest.version]
            self._blobs += tuple(blob for manifest in moved for blob in manifest.blobs)

    def keep(self, staged: "Held") -> None:
        """Holds a version that was loaded, and removes the files of what came before it."""
        self.held = staged
        self._cache.keep_only(self._blobs)
        if isinstance(staged, StagedVersion) and WeightEncoding.ULP_DELTA in ENCODINGS and not self._prepared:
            self._prepared = True
            data_types = {entry.data_type for entry in staged.manifest.tensors}
            threading.Thread(target=_compile, args=(data_types,), name="compile").start()

    def drop(self, staged: "Held") -> None:
        """Gives up a version that the engine does not take; what was held before stays, where it is still there."""
        if self.held is staged:
            self.held = None

    def _apply(
        self,
        plan: Sequence[WeightManifest],
        sources: Mapping[str, ArrivingBlob],
        held: "Held | None",
        early: "EarlyWeights | None",
    ) -> "Held":
        """Goes through a plan; runs on a thread of its own, which waits for bytes."""
        for manifest in plan:
            arriving = [sources[blob.digest] for blob in manifest.blobs]
            try:
                held = self._through(held, manifest, arriving, _taker(early, manifest, plan[-1]))
            except DamagedError:
                self._cache.forget(manifest.blobs)
                raise
        if held is None:
            raise DamagedError("the hub's plan leads nowhere: it names no version")
        return held

    def _through(
        self,
        held: "Held | None",
        manifest: WeightManifest,
        arriving: Sequence[ArrivingBlob],
        taker: "TensorTaker | None",
    ) -> "Held":
        if manifest.encoding is WeightEncoding.FULL_PLANES:
            return self._unpack(manifest, [blob.path() for blob in arriving])
        if _is_full(manifest):
            return stage_full(manifest, [blob.path() for blob in arriving], self.progress.stages)
        return _applied(held, manifest, arriving, self.progress.stages, taker)

    def _unpack(self, manifest: WeightManifest, paths: Sequence[Path]) -> StagedVersion:
        """Raw files beside the coded ones: these are what a worker that starts again is told to fetch."""
        with self._cache.room() as directory, self.progress.stages.decoding():
            staged = unpack_full(manifest, paths, directory)
        self._unpacked = staged.manifest.blobs
        return staged


async def _end(
    fetching: "asyncio.Task[None]", applying: "asyncio.Task[Held]", sources: Mapping[str, ArrivingBlob]
) -> None:
    """Ends what is left of a way that failed or was cancelled; the thread ends with its next wait for bytes."""
    for source in sources.values():
        source.failed(StorageError("the download was given up"))
    fetching.cancel()
    await asyncio.gather(fetching, applying, return_exceptions=True)


def _applied(
    held: "Held | None",
    manifest: WeightManifest,
    arriving: Sequence[ArrivingBlob],
    seconds: StageSeconds,
    taker: "TensorTaker | None",
) -> "HeldWeights":
    """The version of a delta. Bytes in memory are changed in place; files are left as they are."""
    from hetero_rl.weights.held import HeldWeights

    if held is None:
        raise DamagedError(
            f"version {manifest.version} is a delta against {manifest.base_version}, but no version is held"
        )
    moved = HeldWeights.from_staged(held) if isinstance(held, StagedVersion) else held
    moved.apply_arriving(manifest, arriving, seconds, taker)
    return moved


def _taker(
    early: "EarlyWeights | None", manifest: WeightManifest, last: WeightManifest
) -> "TensorTaker | None":
    """Where the tensors of a manifest go as soon as they are verified: none but the last one's are loaded.

    Of adapters on a base none is loaded as it comes: they are added to it.
    """
    if early is None:
        return None
    early.begin(manifest.version)
    return early.take if manifest is last and manifest.adapter is None else None


def _compile(data_types: Iterable[DataType]) -> None:
    """Prepares for the first delta while the engine serves the full copy before it."""
    from hetero_rl.weights.delta import compile_decoder

    for data_type in data_types:
        compile_decoder(data_type)


def _is_usable(held: "Held | None") -> bool:
    """Whether what a way began at is still whole; files always are."""
    return held is None or isinstance(held, StagedVersion) or held.usable


def _is_full(manifest: WeightManifest) -> bool:
    return manifest.encoding is not WeightEncoding.ULP_DELTA
