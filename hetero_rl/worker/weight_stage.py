"""The weight version that a worker holds, and the next one: planned, downloaded, decoded and verified.

    version held ──► plan ──► blobs ──► full copy: verified files ──────────────┐
                                  └──► deltas: applied to the bytes held, once ─┴─► every digest right ──► engine
    anything damaged ──► nothing is held any more ──► the next plan begins at a full copy

The engine has its own copy of the weights, so the bytes held may move on while it serves. Their blobs stay on disk, the
full copy and the deltas since: a worker that starts again reads them from there.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from hetero_rl.errors import DamagedError
from hetero_rl.weights.encodings import supported_encodings
from hetero_rl.weights.full import StagedVersion, stage_full
from hetero_rl.wire.messages import BlobReference, WeightEncoding, WeightManifest
from hetero_rl.worker.blob_cache import BlobCache
from hetero_rl.worker.session import Session

if TYPE_CHECKING:
    from hetero_rl.weights.held import HeldWeights

    # Verified files until the first delta comes, private memory over them afterwards.
    Held: TypeAlias = StagedVersion | HeldWeights

__all__ = ["ENCODINGS", "WeightStage"]

_logger = logging.getLogger(__name__)

ENCODINGS = tuple(
    encoding for encoding in supported_encodings() if encoding is not WeightEncoding.FULL_PLANES
)
"""Encodings of weight versions that a worker decodes."""


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
        """Blobs of the version staged last: of its full copy and of every delta since."""
        self.held: Held | None = None
        self.fallbacks = 0
        """How often something was damaged, so that the next version had to begin at a full copy."""

    @property
    def version(self) -> int:
        """The version held; 0 is none."""
        return self.held.manifest.version if self.held is not None else 0

    async def advance(self, latest: int) -> "Held | None":
        """The hub's latest version, ready to be loaded; None when the hub has nothing newer.

        Deltas move what is held; a full copy leaves it until `keep` is called. The hub may give a long way in parts.

        Args:
            latest: A version that the hub is known to have; it may have a newer one by now.

        Raises:
            DamagedError: A blob or a delta is not what its manifest says. Nothing is held any more.
            RefusedError: The hub has no way to its latest version, or a blob is gone.
        """
        session, staged, version = self._session, None, self.version
        while version < latest:
            plan = await session.link.repeat(
                "plan of weights",
                lambda version=version: session.weights.get_plan(  # type: ignore[misc]  # a default binds the loop variable
                    held_version=version, wanted_version=0, encodings=ENCODINGS
                ),
            )
            if not plan:
                break
            staged = await self._follow(plan, staged or self.held)
            version = staged.manifest.version
        return staged

    async def _follow(self, plan: Sequence[WeightManifest], start: "Held | None") -> "Held":
        """Fetches and goes through a plan."""
        paths = [[await self._cache.fetch(blob) for blob in manifest.blobs] for manifest in plan]
        try:
            staged = await asyncio.to_thread(self._apply, plan, paths, start)
        except DamagedError as error:
            self.held = None
            self.fallbacks += 1
            _logger.warning(
                "version %d needs a full copy (%d so far): %s", plan[-1].version, self.fallbacks, error
            )
            raise
        fetched = tuple(blob for manifest in plan for blob in manifest.blobs)
        self._blobs = fetched if _is_full(plan[0]) else self._blobs + fetched
        return staged

    def keep(self, staged: "Held") -> None:
        """Holds a version that was loaded, and removes the files of what came before it."""
        self.held = staged
        self._cache.keep_only(self._blobs)

    def drop(self, staged: "Held") -> None:
        """Gives up a version that the engine does not take; what was held before stays, where it is still there."""
        if self.held is staged:
            self.held = None

    def _apply(
        self, plan: Sequence[WeightManifest], paths: Sequence[Sequence[Path]], held: "Held | None"
    ) -> "Held":
        """Goes through a plan; runs on a thread of its own."""
        for manifest, files in zip(plan, paths, strict=True):
            try:
                held = stage_full(manifest, files) if _is_full(manifest) else _applied(held, manifest, files)
            except DamagedError:
                self._cache.forget(manifest.blobs)
                raise
        if held is None:
            raise DamagedError("the hub's plan leads nowhere: it names no version")
        return held


def _applied(held: "Held | None", manifest: WeightManifest, files: Sequence[Path]) -> "HeldWeights":
    """The version of a delta. Bytes in memory are changed in place; files are left as they are."""
    from hetero_rl.weights.held import HeldWeights

    if held is None:
        raise DamagedError(
            f"version {manifest.version} is a delta against {manifest.base_version}, but no version is held"
        )
    moved = HeldWeights.from_staged(held) if isinstance(held, StagedVersion) else held
    moved.apply_delta(manifest, files)
    return moved


def _is_full(manifest: WeightManifest) -> bool:
    return manifest.encoding is not WeightEncoding.ULP_DELTA
