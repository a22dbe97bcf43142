"""Keeps the engine on the newest weights, and opens the gate once the hub trusts them.

    await a version ──► plan ──► download ──► decode, verify every digest ──► close the gate
                                                                          │ load in place (the only pause)
          gate stays closed: quarantine ◄── too different ── probe card ◄─┘
                                            accepted ──► open the gate
    attention (engine died, quarantine ended) interrupts the wait.

Nothing is decoded or verified while the engine pauses. A version that cannot be used is left out with an error in the
log; the next one is tried. Shutdown: cancelled by the conductor; a half-done download is kept for the next start.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from hetero_rl.errors import EngineError, InvalidMessageError, RefusedError, StorageError
from hetero_rl.telemetry.logs import describe_process
from hetero_rl.weights.probe import compare_probe, probe_passes, probe_score_work
from hetero_rl.wire.messages import ProbeResult, WeightManifest
from hetero_rl.worker.blob_cache import BlobCache
from hetero_rl.worker.engine import Engine
from hetero_rl.worker.relayed import RelayedWeights
from hetero_rl.worker.resend import Backoff
from hetero_rl.worker.session import Session
from hetero_rl.worker.weight_stage import WeightStage

if TYPE_CHECKING:
    from hetero_rl.worker.weight_stage import Held, Progress

__all__ = ["WeightLoop"]

_logger = logging.getLogger(__name__)


class WeightLoop:
    """Fetches, verifies, loads and probes weight versions.

    Args:
        session: The worker.
        cache: Where blobs are kept.
    """

    def __init__(self, session: Session, cache: BlobCache) -> None:
        self._session = session
        self._stage = WeightStage(session, cache)
        self._reported = (0, 0)
        """Fallbacks of the stage and bypasses of the relay that were reported."""
        self._unusable = 0
        """Newest version that could not be used; it is not tried again."""
        self._no_way = Backoff(session.pacing)
        """Waits while the hub has no way to its latest version."""

    async def run(self) -> None:
        """Runs until it is cancelled; raises what ends the worker."""
        session = self._session
        backoff = Backoff(session.pacing)
        while True:
            session.gate.attention.clear()
            if session.keeper.failure is not None:
                session.gate.close()
                await session.keeper.restart()
            try:
                await self._turn()
                backoff = Backoff(session.pacing)
            except StorageError as error:
                _logger.error("weights cannot be had: %s", error)  # ruff: ignore[error-instead-of-exception] - the message names all there is
                await asyncio.sleep(backoff.next_delay())
            except EngineError as error:
                session.keeper.report_failure(session.keeper.engine, error)

    async def _turn(self) -> None:
        """One round: put the engine in order, or wait for a version and bring it in."""
        session, held = self._session, self._stage.held
        if held is not None and session.keeper.engine.loaded_version != held.manifest.version:
            await self._bring_in(held)
        elif held is not None and session.gate.quarantined and session.gate.hub_trusts:
            await self._probe(held.manifest)
        latest = await self._newer_version()
        if latest is None:
            return
        staged = await self._fetch(latest)
        if staged is not None:
            await self._bring_in(staged, self._stage.progress)

    async def _newer_version(self) -> int | None:
        """A version above the one held; None when something else needs attention."""
        session = self._session
        after = max(self._stage.version, self._unusable)
        asking = asyncio.create_task(
            session.link.repeat(
                "wait for weights", lambda: session.weights.await_version(after, session.pacing.version_wait)
            )
        )
        attention = asyncio.create_task(session.gate.attention.wait())
        try:
            await asyncio.wait([asking, attention], return_when=asyncio.FIRST_COMPLETED)
        finally:
            attention.cancel()
            if not asking.done():
                asking.cancel()
        if not asking.done() or asking.cancelled():
            return None
        latest = asking.result()
        return latest if latest > after else None

    async def _fetch(self, latest: int) -> "Held | None":
        """The newest version, decoded and verified; None when the hub has no way to it now."""
        try:
            staged = await self._stage.advance(latest, self._session.keeper.engine.early_weights)
        except RefusedError as error:
            if error.reason not in {"NOT_FOUND", "UNKNOWN_VERSION"}:
                raise
            # It was replaced by a newer one between plan and download, or its blobs were damaged at the hub.
            delay = self._no_way.next_delay()
            _logger.warning("version %d is gone, looking again in %.1f s: %s", latest, delay, error)
            await asyncio.sleep(delay)
            return None
        self._no_way = Backoff(self._session.pacing)
        return staged

    async def _bring_in(self, staged: "Held", progress: "Progress | None" = None) -> None:
        """Loads a verified version and opens the gate when its probe card agrees; reports what its way has cost."""
        session, manifest = self._session, staged.manifest
        loop = asyncio.get_running_loop()
        started = loop.time()
        session.gate.close()
        try:
            await _load(session.keeper.engine, staged)
        except InvalidMessageError as error:
            self._unusable = manifest.version
            self._stage.drop(staged)
            _logger.error("version %d does not fit this model: %s", manifest.version, error)  # ruff: ignore[error-instead-of-exception] - the message names all there is
            if session.gate.version and not session.gate.quarantined:
                session.gate.open(session.gate.version)
            return
        pause = loop.time() - started
        self._stage.keep(staged)
        describe_process(weight_version=manifest.version)
        _logger.info("version %d (step %d) loaded in %.3f s", manifest.version, manifest.step, pause)
        await self._probe(manifest)
        if progress is not None:
            self._report_sync(manifest.version, progress, pause)

    def _report_sync(self, version: int, progress: "Progress", pause: float) -> None:
        """Leaves to the next heartbeat what a version has cost, and what went wrong since the one before."""
        weights = self._session.weights
        bypasses = weights.bypasses if isinstance(weights, RelayedWeights) else 0
        before, self._reported = self._reported, (self._stage.fallbacks, bypasses)
        sync = progress.sync(
            version,
            pause=pause,
            fallbacks=self._stage.fallbacks - before[0],
            relay_bypasses=bypasses - before[1],
        )
        self._session.tally.note_sync(sync)
        self._session.weight_syncs.append(sync)

    async def _probe(self, manifest: WeightManifest) -> None:
        """Scores the probe card of the loaded version; opens the gate, or leaves it closed."""
        session, card = self._session, manifest.probe_card
        if card is None:
            session.gate.open(manifest.version)
            return
        work = probe_score_work(card, manifest.version)
        result = compare_probe(card, await session.keeper.engine.score(work), manifest.version)
        accepted = await self._report(result)
        if accepted and probe_passes(card, result):
            session.gate.open(manifest.version)
            return
        session.gate.quarantine()
        _logger.error(
            "quarantine: the probe card of version %d differs by %.4g on average, %.4g is tolerated; check that this "
            "worker's engine computes the trainer's model (dtype, attention, conversion)",
            manifest.version,
            result.mean_absolute_difference,
            card.tolerance,
        )

    async def _report(self, result: ProbeResult) -> bool:
        session = self._session
        try:
            return await session.link.call(
                "probe report",
                lambda identity: session.link.port.report_probe(identity, result, session.numerics_id),
            )
        except RefusedError as error:
            if error.reason != "UNKNOWN_VERSION":
                raise
            # The hub has dropped the version meanwhile; the comparison made here still counts.
            _logger.warning("the probe of version %d came too late: %s", result.weight_version, error)
            return True


async def _load(engine: Engine, staged: "Held") -> None:
    """Hands a version to the engine, adapters apart from their base."""
    adapter, version = staged.manifest.adapter, staged.manifest.version
    if adapter is None:
        await engine.load_weights(staged.tensors(), version)
        return
    from hetero_rl.weights.low_rank import take_apart

    base, adapters = take_apart(staged, adapter)
    await engine.load_adapted(base, adapters, version)
