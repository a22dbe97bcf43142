"""Publishes the policy as weight versions while training goes on.

    main thread                          publishing thread                     hub
    publish_step ── what changed ─► slot of one ─► probe card ─► encode ─► put_blob ─► publish_version
          ▲                                                                              │
          │                                           the baseline of the next delta ◄───┤
          ├───────────── waits here only when the version before is not stored yet ◄─────┘
          │                  then: anchor due? merged deltas wanted? ─► encode ──► thread of side routes ─► add_route
          └───────────── never waits for these: without them workers take a dearer way

The main thread compares the policy with the baseline, tensor by tensor where the weights are, keeps what changed, and
numbers the version; everything else is the thread's. A probe card takes a float32 copy of the weights while it is scored. A version counts as
published when the hub has stored it, never before: `stored` and the baseline move last. A delta that the hub refuses is
published again as a full copy, under the same number. Version numbers continue above the hub's
latest and are never reused. An error of the thread is raised by the next call of the main thread. `close` waits for
the version under way.
"""

import logging
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from hetero_rl.config.tree import WeightsConfig
from hetero_rl.errors import DamagedError, InvalidMessageError, RefusedError
from hetero_rl.trainer.baseline import Baseline, encode_anchor
from hetero_rl.trainer.patience import Patience
from hetero_rl.trainer.policy import DATA_TYPES, Policy
from hetero_rl.trainer.side_routes import SideRoutes
from hetero_rl.trainer.snapshots import Snapshot, SnapshotScorer, take_snapshot
from hetero_rl.trainer.waits import WaitClock
from hetero_rl.weights.full import EncodedVersion
from hetero_rl.weights.probe import make_probe_card
from hetero_rl.wire.messages import DataType, ProbeCard, WeightEncoding
from hetero_rl.wire.ports import TrainingPort

__all__ = ["Publisher", "probe_sequences"]

_LOG = logging.getLogger(__name__)


def probe_sequences(prompts: Sequence[Sequence[int]], config: WeightsConfig) -> list[list[int]]:
    """Fixed token sequences for the probe card: held-out prompts, one after another and again from the start.

    Text that the model knows is probed, not random ids: where log-probabilities are extreme, chips differ most and
    tell least.
    """
    wanted = config.probe_sequences * config.probe_tokens
    stream: list[int] = []
    while prompts and len(stream) < wanted:
        stream.extend(token for prompt in prompts for token in prompt)
    return [stream[start : start + config.probe_tokens] for start in range(0, wanted, config.probe_tokens)]


class Publisher:
    """Numbers, encodes and stores weight versions, one after another.

    Args:
        policy: What is published.
        port: The hub.
        config: Serving type and probe card.
        probes: Token sequences of the probe card; none publishes no card.
        latest_version: The hub's latest; new versions start above it.
        directory: Where blobs lie until the hub has them; emptied at the start.
        patience: Repeats calls.
        clock: Records when a version is under way.
        sparsity: Where counts of what changed are written; None writes none.
    """

    def __init__(
        self,
        policy: Policy,
        port: TrainingPort,
        config: WeightsConfig,
        *,
        probes: Sequence[Sequence[int]],
        latest_version: int,
        directory: Path,
        patience: Patience,
        clock: WaitClock,
        sparsity: Path | None = None,
    ) -> None:
        self._policy = policy
        self._port = port
        self._config = config
        self._probes = probes
        self._directory = directory
        self._patience = patience
        self._clock = clock
        shutil.rmtree(directory, ignore_errors=True)  # what an earlier life of the run was uploading
        self._scorer = SnapshotScorer(policy)
        # Empty at first: what the hub holds of an earlier life of the run need not be what this one would build on.
        self._baseline = Baseline(
            config.anchor_every,
            directory / "logs",
            sparsity,
            WeightEncoding[f"FULL_{config.anchor_encoding.upper()}"],
        )
        self._side_routes = SideRoutes(port, patience)
        self._frozen: Snapshot | None = None
        """Where adapters are published: one with their base, which later snapshots share."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._under_way: Future[None] | None = None
        self._side_work: Future[None] | None = None
        self._prepared = False
        self.version = latest_version
        """The newest version that was given a number."""
        self.stored = latest_version
        """The newest version that the hub has stored."""

    @property
    def serving_dtype(self) -> torch.dtype:
        """The type that is served."""
        return DATA_TYPES[self._config.serving_dtype]

    def snapshot(self, step: int) -> Snapshot:
        """The policy as it would be published."""
        taken = take_snapshot(self._policy, step, self.serving_dtype, self._frozen)
        if taken.adapter is not None:
            self._frozen = taken
        return taken

    def publish_step(self, step: int) -> int:
        """Publishes the policy as it is now and returns the version's number; copies what changed only.

        Waits until the version before is stored. The first version, and every one without the codec, is a snapshot.
        """
        # Parts and adapted matrices are compared nowhere: they are gathered and merged, or their base is left alone.
        if self._policy.sharded is not None or self._policy.adapters is not None:
            return self.publish(self.snapshot(step))
        self.wait()
        state = self._policy.model.state_dict()
        changed = self._baseline.difference(state, step, self.serving_dtype)
        return self.publish(changed or self.snapshot(step))

    def publish(self, snapshot: Snapshot) -> int:
        """Hands a snapshot over and returns its version number; waits until the version before is stored."""
        self.wait()
        if self._side_work is not None and self._side_work.done():
            self._side_work.result()
        self.version += 1
        self._under_way = self._thread.submit(self._publish, snapshot, self.version)
        if (
            not self._prepared
        ):  # behind the first version, which is a full copy: workers begin with it meanwhile
            self._thread.submit(self._baseline.prepare, DataType[self._config.serving_dtype.upper()])
            self._prepared = True
        return self.version

    def wait(self) -> None:
        """Waits until everything handed over is stored; raises what went wrong with it."""
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def settle(self) -> None:
        """Waits until other ways to the versions so far are stored or given up, too."""
        self.wait()
        if self._side_work is not None:
            self._side_work.result()
        self._side_routes.wait()

    def close(self) -> None:
        """Waits for the version under way, without raising its error, and ends the threads."""
        self._side_routes.stop()
        self._thread.shutdown(wait=True)
        self._side_routes.close()

    def state_digest(self, snapshot: Snapshot) -> str:
        """The digest that a version of this snapshot has."""
        with tempfile.TemporaryDirectory(dir=self._made_directory(), prefix="digest-") as directory:
            encoded = encode_anchor(snapshot, Path(directory), version=1, card=None)
            return encoded.manifest.state_digest

    def _publish(self, snapshot: Snapshot, version: int) -> None:
        with (
            self._clock.busy("weights"),
            tempfile.TemporaryDirectory(
                dir=self._made_directory(), prefix=f"version-{version}-"
            ) as directory,
        ):
            card = self._card(snapshot)
            encoded = self._baseline.encode(snapshot, Path(directory), version=version, card=card)
            try:
                wanted = self._hand_over(encoded)
            except (InvalidMessageError, RefusedError) as error:
                if not _refuses_delta(error, encoded):
                    raise
                _LOG.warning(
                    "the hub does not take version %d as a delta, it gets a full copy: %s", version, error
                )
                self._baseline.refused()
                encoded = encode_anchor(snapshot, Path(directory), version=version, card=card)
                wanted = self._hand_over(encoded)
            self.stored = version
            self._baseline.stored(encoded)
        if wanted or self._baseline.anchor_due:
            self._side_work = self._thread.submit(self._add_routes, wanted)

    def _hand_over(self, encoded: EncodedVersion) -> tuple[int, ...]:
        """Uploads a version's blobs, and then its manifest: a half-uploaded version is none.

        Returns:
            Versions from which the hub would like a merged delta to this one.
        """
        version = encoded.manifest.version
        for blob in encoded.blobs:
            self._patience(
                lambda blob=blob: self._port.put_blob(blob.reference, blob.chunks()),  # type: ignore[misc]  # a default binds the loop variable
                f"uploading weight version {version}",
            )
        wanted = self._patience(
            lambda: self._port.publish_version(encoded.manifest), f"publishing weight version {version}"
        )
        return tuple(wanted or ())

    def _add_routes(self, wanted: Sequence[int]) -> None:
        """Codes other ways to the version stored last, and leaves their upload to the thread of side routes."""
        if self._side_routes.refused:
            self._baseline.routes_refused()
        if self._side_routes.busy or self._side_routes.refused:
            return  # an anchor stays due, and a worker that is behind will be so at the next version, too
        directory = Path(tempfile.mkdtemp(dir=self._made_directory(), prefix="side-"))
        try:
            ways = [self._baseline.anchor(directory)] if self._baseline.anchor_due else []
            ways += [self._baseline.merged(version, directory) for version in wanted]
        except (DamagedError, OSError) as error:
            _LOG.warning("no other way to weight version %d: %s", self.stored, error)
            shutil.rmtree(directory, ignore_errors=True)
            return
        self._side_routes.upload([way for way in ways if way is not None], directory)

    def _card(self, snapshot: Snapshot) -> ProbeCard | None:
        if not self._probes:
            return None
        log_probs = self._scorer.score(snapshot, self._probes)
        return make_probe_card(self._probes, log_probs, self._config.probe_tolerance)

    def _made_directory(self) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True)
        return self._directory


def _refuses_delta(error: InvalidMessageError | RefusedError, encoded: EncodedVersion) -> bool:
    """Whether the hub may take the same weights as a full copy: it lacks the base, or a worker cannot decode deltas."""
    return encoded.manifest.encoding is WeightEncoding.ULP_DELTA and error.reason in {
        "INVALID_FIELD",
        "INCOMPATIBLE",
    }
