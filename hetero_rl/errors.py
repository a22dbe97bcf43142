"""Every exception that hetero-rl raises on purpose.

HeteroRLError
├── ConfigError              a setting is unknown, missing or out of range          (also ValueError)
├── BackendError             an inference backend or its engine cannot do the work
│   ├── BackendNotFoundError     no installed distribution offers that name         (also LookupError)
│   └── EngineError              the engine failed while it ran
├── ProtocolError            the other side said something this side refuses
│   ├── InvalidMessageError      a message breaks a rule of the protocol            (also ValueError)
│   ├── RefusedError             the peer refused; carries its machine-readable reason
│   ├── FencedError              a newer incarnation of this role has taken over
│   └── UnreachableError         the peer did not answer within the stated time     (also ConnectionError)
├── StorageError             a file, blob or journal cannot be written or trusted   (also OSError)
│   ├── DamagedError             bytes do not match their digest or manifest
│   │   └── DamagedJournalError      the journal itself cannot be trusted: the hub ends
│   └── DiskFullError            no space left; what was there before is intact
├── LaunchError              a process started here did not come up, or could not be kept up
├── TrainingError            the training step cannot go on
│   ├── MemoryLimitError         a step does not fit into memory; nothing was applied
│   └── NonFiniteError           a loss or gradient is not finite; nothing was applied
└── TaskError                a task is unknown, or its data or grader cannot be used

An error names the argument, its value and what to do about it. Branch on the class or on
`RefusedError.reason`, never on the text.
"""

__all__ = [
    "BackendError",
    "BackendNotFoundError",
    "ConfigError",
    "DamagedError",
    "DamagedJournalError",
    "DiskFullError",
    "EngineError",
    "FencedError",
    "HeteroRLError",
    "InvalidMessageError",
    "LaunchError",
    "MemoryLimitError",
    "NonFiniteError",
    "ProtocolError",
    "RefusedError",
    "StorageError",
    "TaskError",
    "TrainingError",
    "UnreachableError",
]


class HeteroRLError(Exception):
    """Base of every exception that this package raises on purpose."""


class ConfigError(HeteroRLError, ValueError):
    """A setting is unknown, missing or out of range."""


class BackendError(HeteroRLError):
    """An inference backend or its engine cannot do the work."""


class BackendNotFoundError(BackendError, LookupError):
    """No installed distribution offers a backend of that name."""


class EngineError(BackendError):
    """An inference engine failed while it ran."""


class ProtocolError(HeteroRLError):
    """The other side of a connection said something that this side refuses."""


class InvalidMessageError(ProtocolError, ValueError):
    """A message breaks a rule of the protocol; nothing of it was stored.

    Args:
        message: Which field, which value, and what would be right.
        field: Path of the field, such as `TrajectoryBatch.log_probs`.
        reason: The `RefusalReason` name that the sender is told.
    """

    def __init__(self, message: str, field: str = "", reason: str = "INVALID_FIELD") -> None:
        super().__init__(message)
        self.field = field
        self.reason = reason


class RefusedError(ProtocolError):
    """The peer refused the request.

    Args:
        message: What happened and what to do about it, for people.
        reason: The `RefusalReason` name of the protocol, for programs, such as `MODEL_MISMATCH`.
        details: Named facts that belong to the reason, such as both digests.
    """

    def __init__(self, message: str, reason: str, details: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.details = dict(details or {})


class FencedError(ProtocolError):
    """A newer incarnation of this role has taken over; this one must stop."""


class UnreachableError(ProtocolError, ConnectionError):
    """The peer did not answer within the stated time."""


class StorageError(HeteroRLError, OSError):
    """A file, blob or journal cannot be written or cannot be trusted."""


class DamagedError(StorageError):
    """Stored bytes do not match their digest or manifest; they were not used."""


class DamagedJournalError(DamagedError):
    """The hub's journal is damaged where nothing can stand in for it; the hub must not go on with it."""


class DiskFullError(StorageError):
    """The disk is full; what was stored before is intact."""


class LaunchError(HeteroRLError):
    """A process started here did not come up, or could not be kept up."""


class TrainingError(HeteroRLError):
    """The training step cannot go on."""


class MemoryLimitError(TrainingError):
    """A step does not fit into memory; the optimizer step was not applied."""


class NonFiniteError(TrainingError):
    """A loss or gradient is not finite; the optimizer step was not applied."""


class TaskError(HeteroRLError):
    """A task is unknown, or its data or grader cannot be used."""
