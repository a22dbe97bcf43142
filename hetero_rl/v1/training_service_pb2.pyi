from google.protobuf import duration_pb2 as _duration_pb2
from hetero_rl.v1 import columns_pb2 as _columns_pb2
from hetero_rl.v1 import rollout_service_pb2 as _rollout_service_pb2
from hetero_rl.v1 import trajectory_pb2 as _trajectory_pb2
from hetero_rl.v1 import weights_pb2 as _weights_pb2
from hetero_rl.v1 import work_pb2 as _work_pb2
from hetero_rl.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenRunRequest(_message.Message):
    __slots__ = ("run_id", "resume_step", "groups_per_step", "max_lag", "model_digests", "model_files", "sampling", "limits", "config_json", "software_version", "total_steps", "adapter_weights")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_STEP_FIELD_NUMBER: _ClassVar[int]
    GROUPS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FILES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    resume_step: int
    groups_per_step: int
    max_lag: int
    model_digests: _worker_pb2.ModelDigests
    model_files: _containers.RepeatedCompositeFieldContainer[_weights_pb2.ModelFile]
    sampling: _work_pb2.SamplingParameters
    limits: _rollout_service_pb2.Limits
    config_json: str
    software_version: str
    total_steps: int
    adapter_weights: bool
    def __init__(self, run_id: _Optional[str] = ..., resume_step: _Optional[int] = ..., groups_per_step: _Optional[int] = ..., max_lag: _Optional[int] = ..., model_digests: _Optional[_Union[_worker_pb2.ModelDigests, _Mapping]] = ..., model_files: _Optional[_Iterable[_Union[_weights_pb2.ModelFile, _Mapping]]] = ..., sampling: _Optional[_Union[_work_pb2.SamplingParameters, _Mapping]] = ..., limits: _Optional[_Union[_rollout_service_pb2.Limits, _Mapping]] = ..., config_json: _Optional[str] = ..., software_version: _Optional[str] = ..., total_steps: _Optional[int] = ..., adapter_weights: bool = ...) -> None: ...

class OpenRunResponse(_message.Message):
    __slots__ = ("trainer_epoch", "latest_weight_version", "latest_state_digest", "next_train_ordinal", "credits", "adapter_weights")
    TRAINER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LATEST_WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LATEST_STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NEXT_TRAIN_ORDINAL_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    trainer_epoch: int
    latest_weight_version: int
    latest_state_digest: str
    next_train_ordinal: int
    credits: int
    adapter_weights: bool
    def __init__(self, trainer_epoch: _Optional[int] = ..., latest_weight_version: _Optional[int] = ..., latest_state_digest: _Optional[str] = ..., next_train_ordinal: _Optional[int] = ..., credits: _Optional[int] = ..., adapter_weights: bool = ...) -> None: ...

class EnqueueGroupsRequest(_message.Message):
    __slots__ = ("trainer_epoch", "groups")
    TRAINER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    trainer_epoch: int
    groups: _containers.RepeatedCompositeFieldContainer[_work_pb2.PromptGroup]
    def __init__(self, trainer_epoch: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[_work_pb2.PromptGroup, _Mapping]]] = ...) -> None: ...

class EnqueueGroupsResponse(_message.Message):
    __slots__ = ("accepted", "credits")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    credits: int
    def __init__(self, accepted: _Optional[int] = ..., credits: _Optional[int] = ...) -> None: ...

class TakeBatchRequest(_message.Message):
    __slots__ = ("trainer_epoch", "step", "wait", "groups_ahead", "held_group_ids")
    TRAINER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_AHEAD_FIELD_NUMBER: _ClassVar[int]
    HELD_GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    trainer_epoch: int
    step: int
    wait: _duration_pb2.Duration
    groups_ahead: int
    held_group_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, trainer_epoch: _Optional[int] = ..., step: _Optional[int] = ..., wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., groups_ahead: _Optional[int] = ..., held_group_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class FinishedGroup(_message.Message):
    __slots__ = ("group", "batches", "version_steps", "worker_names", "backends")
    class VersionStepsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    VERSION_STEPS_FIELD_NUMBER: _ClassVar[int]
    WORKER_NAMES_FIELD_NUMBER: _ClassVar[int]
    BACKENDS_FIELD_NUMBER: _ClassVar[int]
    group: _work_pb2.PromptGroup
    batches: _containers.RepeatedCompositeFieldContainer[_trajectory_pb2.TrajectoryBatch]
    version_steps: _containers.ScalarMap[int, int]
    worker_names: _containers.RepeatedScalarFieldContainer[str]
    backends: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[_Union[_work_pb2.PromptGroup, _Mapping]] = ..., batches: _Optional[_Iterable[_Union[_trajectory_pb2.TrajectoryBatch, _Mapping]]] = ..., version_steps: _Optional[_Mapping[int, int]] = ..., worker_names: _Optional[_Iterable[str]] = ..., backends: _Optional[_Iterable[str]] = ...) -> None: ...

class TakeBatchResponse(_message.Message):
    __slots__ = ("group", "held_group_id", "ahead")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HELD_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    group: FinishedGroup
    held_group_id: str
    ahead: bool
    def __init__(self, group: _Optional[_Union[FinishedGroup, _Mapping]] = ..., held_group_id: _Optional[str] = ..., ahead: bool = ...) -> None: ...

class TakeEvaluationRequest(_message.Message):
    __slots__ = ("trainer_epoch", "group_ids", "wait")
    TRAINER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    trainer_epoch: int
    group_ids: _containers.RepeatedScalarFieldContainer[str]
    wait: _duration_pb2.Duration
    def __init__(self, trainer_epoch: _Optional[int] = ..., group_ids: _Optional[_Iterable[str]] = ..., wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TakeEvaluationResponse(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: FinishedGroup
    def __init__(self, group: _Optional[_Union[FinishedGroup, _Mapping]] = ...) -> None: ...

class SequenceOutcomes(_message.Message):
    __slots__ = ("group_ids", "sample_indices", "rewards", "advantages", "log_importance_ratios", "coefficients", "mean_absolute_gaps", "max_absolute_gaps", "lags", "dispositions", "staleness_log_ratios", "chip_log_ratios")
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDICES_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    ADVANTAGES_FIELD_NUMBER: _ClassVar[int]
    LOG_IMPORTANCE_RATIOS_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENTS_FIELD_NUMBER: _ClassVar[int]
    MEAN_ABSOLUTE_GAPS_FIELD_NUMBER: _ClassVar[int]
    MAX_ABSOLUTE_GAPS_FIELD_NUMBER: _ClassVar[int]
    LAGS_FIELD_NUMBER: _ClassVar[int]
    DISPOSITIONS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_LOG_RATIOS_FIELD_NUMBER: _ClassVar[int]
    CHIP_LOG_RATIOS_FIELD_NUMBER: _ClassVar[int]
    group_ids: _containers.RepeatedScalarFieldContainer[str]
    sample_indices: _columns_pb2.Column
    rewards: _columns_pb2.Column
    advantages: _columns_pb2.Column
    log_importance_ratios: _columns_pb2.Column
    coefficients: _columns_pb2.Column
    mean_absolute_gaps: _columns_pb2.Column
    max_absolute_gaps: _columns_pb2.Column
    lags: _columns_pb2.Column
    dispositions: _columns_pb2.Column
    staleness_log_ratios: _columns_pb2.Column
    chip_log_ratios: _columns_pb2.Column
    def __init__(self, group_ids: _Optional[_Iterable[str]] = ..., sample_indices: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., rewards: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., advantages: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., log_importance_ratios: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., coefficients: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., mean_absolute_gaps: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., max_absolute_gaps: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., lags: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., dispositions: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., staleness_log_ratios: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ..., chip_log_ratios: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ...) -> None: ...

class CommitStepRequest(_message.Message):
    __slots__ = ("trainer_epoch", "step", "outcomes", "log_probs")
    TRAINER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    trainer_epoch: int
    step: int
    outcomes: SequenceOutcomes
    log_probs: _columns_pb2.Column
    def __init__(self, trainer_epoch: _Optional[int] = ..., step: _Optional[int] = ..., outcomes: _Optional[_Union[SequenceOutcomes, _Mapping]] = ..., log_probs: _Optional[_Union[_columns_pb2.Column, _Mapping]] = ...) -> None: ...

class CommitLongStepRequest(_message.Message):
    __slots__ = ("part",)
    PART_FIELD_NUMBER: _ClassVar[int]
    part: CommitStepRequest
    def __init__(self, part: _Optional[_Union[CommitStepRequest, _Mapping]] = ...) -> None: ...

class CommitLongStepResponse(_message.Message):
    __slots__ = ("duplicate",)
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    duplicate: bool
    def __init__(self, duplicate: bool = ...) -> None: ...

class CommitStepResponse(_message.Message):
    __slots__ = ("duplicate",)
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    duplicate: bool
    def __init__(self, duplicate: bool = ...) -> None: ...

class GetBlobRequest(_message.Message):
    __slots__ = ("trainer_epoch", "blob")
    TRAINER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    trainer_epoch: int
    blob: _weights_pb2.BlobReference
    def __init__(self, trainer_epoch: _Optional[int] = ..., blob: _Optional[_Union[_weights_pb2.BlobReference, _Mapping]] = ...) -> None: ...

class GetBlobResponse(_message.Message):
    __slots__ = ("held_bytes",)
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    held_bytes: int
    def __init__(self, held_bytes: _Optional[int] = ...) -> None: ...

class PutBlobRequest(_message.Message):
    __slots__ = ("trainer_epoch", "blob", "offset", "data")
    TRAINER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    trainer_epoch: int
    blob: _weights_pb2.BlobReference
    offset: int
    data: bytes
    def __init__(self, trainer_epoch: _Optional[int] = ..., blob: _Optional[_Union[_weights_pb2.BlobReference, _Mapping]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutBlobResponse(_message.Message):
    __slots__ = ("held_bytes",)
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    held_bytes: int
    def __init__(self, held_bytes: _Optional[int] = ...) -> None: ...

class PublishVersionRequest(_message.Message):
    __slots__ = ("trainer_epoch", "manifest")
    TRAINER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    trainer_epoch: int
    manifest: _weights_pb2.WeightManifest
    def __init__(self, trainer_epoch: _Optional[int] = ..., manifest: _Optional[_Union[_weights_pb2.WeightManifest, _Mapping]] = ...) -> None: ...

class PublishVersionResponse(_message.Message):
    __slots__ = ("duplicate", "wanted_bases")
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    WANTED_BASES_FIELD_NUMBER: _ClassVar[int]
    duplicate: bool
    wanted_bases: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, duplicate: bool = ..., wanted_bases: _Optional[_Iterable[int]] = ...) -> None: ...

class AddWeightRouteRequest(_message.Message):
    __slots__ = ("trainer_epoch", "manifest")
    TRAINER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    trainer_epoch: int
    manifest: _weights_pb2.WeightManifest
    def __init__(self, trainer_epoch: _Optional[int] = ..., manifest: _Optional[_Union[_weights_pb2.WeightManifest, _Mapping]] = ...) -> None: ...

class AddWeightRouteResponse(_message.Message):
    __slots__ = ("duplicate",)
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    duplicate: bool
    def __init__(self, duplicate: bool = ...) -> None: ...

class CommitCheckpointRequest(_message.Message):
    __slots__ = ("trainer_epoch", "step", "oldest_kept_step")
    TRAINER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    OLDEST_KEPT_STEP_FIELD_NUMBER: _ClassVar[int]
    trainer_epoch: int
    step: int
    oldest_kept_step: int
    def __init__(self, trainer_epoch: _Optional[int] = ..., step: _Optional[int] = ..., oldest_kept_step: _Optional[int] = ...) -> None: ...

class CommitCheckpointResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseRunRequest(_message.Message):
    __slots__ = ("trainer_epoch", "complete")
    TRAINER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    trainer_epoch: int
    complete: bool
    def __init__(self, trainer_epoch: _Optional[int] = ..., complete: bool = ...) -> None: ...

class CloseRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
