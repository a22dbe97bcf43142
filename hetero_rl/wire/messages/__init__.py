"""What crosses the seams between processes, as frozen values.

Nothing past the servicers and clients sees a protobuf object; these classes mirror `proto/hetero_rl/v1`, where each
field's unit, range and meaning of absence is written down. Validation of values that came over the network is in
`hetero_rl.wire.validation`; conversion is in `hetero_rl.wire.convert`.

Shapes: S samples of one batch, N tokens in all of them, T tensors of a weight version.
"""

from hetero_rl.wire.messages.fleet import (
    Event,
    QueueCounts,
    RunStatus,
    ScoreStatus,
    WorkerSummary,
)
from hetero_rl.wire.messages.run import (
    EnqueueReceipt,
    Heartbeat,
    HeartbeatReply,
    JoinGrant,
    JoinRequest,
    LeaseGrant,
    Limits,
    NoWorkReason,
    RunDescription,
    RunGrant,
    RunRequest,
    Submission,
    SubmissionReceipt,
)
from hetero_rl.wire.messages.trajectories import (
    Disposition,
    FinishedGroup,
    FinishReason,
    RoutedExperts,
    ScoreBatch,
    SequenceOutcome,
    TrajectoryBatch,
    VersionSpan,
)
from hetero_rl.wire.messages.weights import (
    AdapterDescription,
    BlobReference,
    DataType,
    ModelFile,
    ProbeCard,
    ProbeResult,
    TensorEntry,
    WeightEncoding,
    WeightManifest,
    WeightSync,
)
from hetero_rl.wire.messages.work import (
    GenerateWork,
    Lease,
    PromptGroup,
    Purpose,
    SamplingParameters,
    ScoreWork,
)
from hetero_rl.wire.messages.workers import (
    Capabilities,
    ModelDigests,
    NumericsRecord,
    WorkerIdentity,
    WorkerState,
)

__all__ = [
    "AdapterDescription",
    "BlobReference",
    "Capabilities",
    "DataType",
    "Disposition",
    "EnqueueReceipt",
    "Event",
    "FinishReason",
    "FinishedGroup",
    "GenerateWork",
    "Heartbeat",
    "HeartbeatReply",
    "JoinGrant",
    "JoinRequest",
    "Lease",
    "LeaseGrant",
    "Limits",
    "ModelDigests",
    "ModelFile",
    "NoWorkReason",
    "NumericsRecord",
    "ProbeCard",
    "ProbeResult",
    "PromptGroup",
    "Purpose",
    "QueueCounts",
    "RoutedExperts",
    "RunDescription",
    "RunGrant",
    "RunRequest",
    "RunStatus",
    "SamplingParameters",
    "ScoreBatch",
    "ScoreStatus",
    "ScoreWork",
    "SequenceOutcome",
    "Submission",
    "SubmissionReceipt",
    "TensorEntry",
    "TrajectoryBatch",
    "VersionSpan",
    "WeightEncoding",
    "WeightManifest",
    "WeightSync",
    "WorkerIdentity",
    "WorkerState",
    "WorkerSummary",
]
