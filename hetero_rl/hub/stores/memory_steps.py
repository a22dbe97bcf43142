"""Applied steps, their outcomes and weight versions in memory."""

import dataclasses

from hetero_rl.hub.stores.base import ConflictError, HubStore
from hetero_rl.hub.stores.memory_tables import Tables, add_once
from hetero_rl.hub.stores.records import (
    StepCommit,
    VersionRow,
)
from hetero_rl.wire.messages import (
    WeightManifest,
)

__all__ = ["MemorySteps"]


class MemorySteps(HubStore):
    """Tables `commits`, `versions`, `manifests` and `routes`."""

    _tables: Tables

    def add_commit(self, commit: StepCommit) -> None:
        """See `HubStore`."""
        if not commit.abandoned and self.commit_of(commit.step) is not None:
            raise ConflictError(f"step {commit.step} is in the store already")
        self._tables.commits.append(commit)

    def commit_of(self, step: int) -> StepCommit | None:
        """See `HubStore`."""
        counting = (commit for commit in self._tables.commits if not commit.abandoned)
        return next((commit for commit in counting if commit.step == step), None)

    def abandon_after(self, step: int) -> int:
        """See `HubStore`."""
        abandoned = 0
        for position, commit in enumerate(self._tables.commits):
            if commit.step > step and not commit.abandoned:
                self._tables.commits[position] = dataclasses.replace(commit, abandoned=True)
                abandoned += 1
        for row in tuple(self._tables.versions.values()):
            if row.step > step:
                self._tables.versions[row.version] = dataclasses.replace(row, abandoned=True)
        return abandoned

    def prune_commit_log_probs(self, step: int) -> None:
        """See `HubStore`."""
        for position, commit in enumerate(self._tables.commits):
            if commit.step <= step:
                self._tables.commits[position] = dataclasses.replace(commit, log_probs=None)

    def add_version(self, manifest: WeightManifest) -> None:
        """See `HubStore`."""
        row = VersionRow(
            manifest.version, manifest.step, manifest.state_digest, abandoned=False, pruned=False
        )
        add_once(self._tables.versions, manifest.version, row)
        self._tables.manifests[manifest.version] = manifest

    def manifest(self, version: int) -> WeightManifest | None:
        """See `HubStore`."""
        return self._tables.manifests.get(version)

    def version(self, version: int) -> VersionRow | None:
        """See `HubStore`."""
        return self._tables.versions.get(version)

    def versions(self) -> tuple[VersionRow, ...]:
        """See `HubStore`."""
        return tuple(row for _, row in sorted(self._tables.versions.items()) if not row.pruned)

    def latest_version(self) -> VersionRow | None:
        """See `HubStore`."""
        versions = self._tables.versions
        return versions[max(versions)] if versions else None

    def mark_version_pruned(self, version: int) -> None:
        """See `HubStore`."""
        if version not in self._tables.versions:
            raise ConflictError(f"weight version {version} is not in the store")
        self._tables.versions[version] = dataclasses.replace(self._tables.versions[version], pruned=True)

    def add_route(self, manifest: WeightManifest) -> None:
        """See `HubStore`."""
        add_once(self._tables.routes, (manifest.version, manifest.base_version), manifest)

    def route(self, version: int, base_version: int) -> WeightManifest | None:
        """See `HubStore`."""
        return self._tables.routes.get((version, base_version))

    def routes(self) -> tuple[WeightManifest, ...]:
        """See `HubStore`."""
        kept = self._tables.routes.keys() - self._tables.pruned_routes.keys()
        return tuple(self._tables.routes[key] for key in sorted(kept))

    def mark_route_pruned(self, version: int, base_version: int) -> None:
        """See `HubStore`."""
        if (version, base_version) not in self._tables.routes:
            raise ConflictError(f"no way from version {base_version} to {version} is in the store")
        self._tables.pruned_routes[version, base_version] = True
