"""Who may call what: roles, the names that certificates carry them under, and one table from method to role.

A certificate names its holder in a subject alternative name of the form

    hetero-rl://ROLE/NAME        such as hetero-rl://worker/ascend-0

and nothing else counts: what a message says of its sender is checked against it. A method that the table does not name
answers nobody.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["METHOD_ROLES", "Caller", "Role", "caller_of_uri", "caller_uri"]

_SCHEME = "hetero-rl://"


class Role(enum.StrEnum):
    """What a holder of credentials may do in a run."""

    HUB = "hub"
    """Is called; asks nothing but its own health."""
    TRAINER = "trainer"
    """Owns the run and may call every method; starts workers of its own under any name."""
    WORKER = "worker"
    """Leases work, submits under its own name, fetches weights."""
    RELAY = "relay"
    """Fetches weights for the workers of its site."""
    OPERATOR = "operator"
    """Looks at the fleet and drains, quarantines, readmits and calibrates workers."""
    OBSERVER = "observer"
    """Looks at the fleet; for dashboards."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, by its certificate."""

    role: Role
    name: str

    def may_act_as(self, worker_name: str) -> bool:
        """Whether calls under that worker's name are its own: the name of its certificate, or NAME-anything."""
        if self.role is Role.TRAINER:
            return True
        return worker_name == self.name or worker_name.startswith(f"{self.name}-")


def caller_uri(caller: Caller) -> str:
    """The subject alternative name that stands for a caller."""
    return f"{_SCHEME}{caller.role}/{caller.name}"


def caller_of_uri(uri: str) -> Caller | None:
    """The caller that a subject alternative name stands for; None for any other name."""
    if not uri.startswith(_SCHEME):
        return None
    role, _, name = uri.removeprefix(_SCHEME).partition("/")
    if not name or role not in set(Role):
        return None
    return Caller(Role(role), name)


_EVERYBODY = frozenset(Role) - {Role.HUB}
_TRAINER = frozenset({Role.TRAINER})
_WORKERS = frozenset({Role.WORKER, Role.TRAINER})
_WEIGHT_READERS = frozenset({Role.WORKER, Role.RELAY, Role.TRAINER})
_OPERATORS = frozenset({Role.OPERATOR, Role.TRAINER})

METHOD_ROLES: Mapping[str, frozenset[Role]] = {
    "/hetero_rl.v1.RolloutService/GetRun": _WEIGHT_READERS,
    "/hetero_rl.v1.RolloutService/Join": _WORKERS,
    "/hetero_rl.v1.RolloutService/LeaseWork": _WORKERS,
    "/hetero_rl.v1.RolloutService/SubmitResults": _WORKERS,
    "/hetero_rl.v1.RolloutService/SubmitBatch": _WORKERS,
    "/hetero_rl.v1.RolloutService/Heartbeat": _WORKERS,
    "/hetero_rl.v1.RolloutService/ReportProbe": _WORKERS,
    "/hetero_rl.v1.RolloutService/Leave": _WORKERS,
    "/hetero_rl.v1.WeightService/GetPlan": _WEIGHT_READERS,
    "/hetero_rl.v1.WeightService/FetchBlob": _WEIGHT_READERS,
    "/hetero_rl.v1.WeightService/AwaitVersion": _WEIGHT_READERS,
    "/hetero_rl.v1.WeightService/FollowVersion": _WEIGHT_READERS,
    "/hetero_rl.v1.TrainingService/OpenRun": _TRAINER,
    "/hetero_rl.v1.TrainingService/EnqueueGroups": _TRAINER,
    "/hetero_rl.v1.TrainingService/TakeBatch": _TRAINER,
    "/hetero_rl.v1.TrainingService/TakeEvaluation": _TRAINER,
    "/hetero_rl.v1.TrainingService/CommitStep": _TRAINER,
    "/hetero_rl.v1.TrainingService/CommitLongStep": _TRAINER,
    "/hetero_rl.v1.TrainingService/GetBlob": _TRAINER,
    "/hetero_rl.v1.TrainingService/PutBlob": _TRAINER,
    "/hetero_rl.v1.TrainingService/PublishVersion": _TRAINER,
    "/hetero_rl.v1.TrainingService/AddWeightRoute": _TRAINER,
    "/hetero_rl.v1.TrainingService/CommitCheckpoint": _TRAINER,
    "/hetero_rl.v1.TrainingService/CloseRun": _TRAINER,
    "/hetero_rl.v1.FleetService/ListWorkers": _EVERYBODY,
    "/hetero_rl.v1.FleetService/GetRunStatus": _EVERYBODY,
    "/hetero_rl.v1.FleetService/ListEvents": _EVERYBODY,
    "/hetero_rl.v1.FleetService/DrainWorker": _OPERATORS,
    "/hetero_rl.v1.FleetService/QuarantineWorker": _OPERATORS,
    "/hetero_rl.v1.FleetService/ReadmitWorker": _OPERATORS,
    "/hetero_rl.v1.FleetService/RequestCalibration": _OPERATORS,
    "/hetero_rl.v1.FleetService/GetScore": _OPERATORS,
    "/grpc.health.v1.Health/Check": frozenset(Role),
    "/grpc.health.v1.Health/Watch": _EVERYBODY,
}
"""Roles of every method of the hub, by full name."""
