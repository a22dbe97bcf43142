"""Checks of what a trainer opens a run with and enqueues, and of what a worker says when it joins."""

from hetero_rl.wire.columns import count, int32_view
from hetero_rl.wire.invalid import invalid
from hetero_rl.wire.messages import (
    JoinRequest,
    Limits,
    ModelDigests,
    NumericsRecord,
    PromptGroup,
    Purpose,
    RunRequest,
    SamplingParameters,
)
from hetero_rl.wire.validation.columns import first_not_below
from hetero_rl.wire.validation.text import check_digest, check_name, check_text
from hetero_rl.wire.validation.weights import check_blob_reference

__all__ = ["check_join_request", "check_prompt_group", "check_run_request"]

MAX_PAYLOAD_BYTES = 2**20
"""Largest `PromptGroup.payload`."""

_MAX_INT64 = 2**63 - 1  # what the journal can hold
_MAX_KNOBS = 256
_MAX_KNOB_CHARACTERS = 1024
_MAX_TEXT = 256
_MAX_CONFIG_CHARACTERS = 2**20
_MAX_MODEL_FILES = 256
_MESSAGE_BYTES = range(2**16, 2**30 + 1)


def check_prompt_group(group: PromptGroup, limits: Limits) -> None:
    """Refuses a prompt group outside the run's limits.

    Raises:
        InvalidMessageError: Names the first field that is wrong.
    """
    check_name(group.group_id, "PromptGroup.group_id")
    for field in ("ordinal", "min_weight_version"):
        if not 0 <= getattr(group, field) <= _MAX_INT64:
            raise invalid(f"PromptGroup.{field}", f"is {getattr(group, field)}, expected less than 2^63")
    if not 1 <= group.group_size <= limits.max_group_size:
        raise invalid(
            "PromptGroup.group_size",
            f"is {group.group_size}, expected 1 to {limits.max_group_size}",
            "TOO_LARGE",
        )
    if len(group.payload) > MAX_PAYLOAD_BYTES:
        raise invalid(
            "PromptGroup.payload",
            f"has {len(group.payload)} bytes, at most {MAX_PAYLOAD_BYTES} fit",
            "TOO_LARGE",
        )
    _check_prompt(group, limits)
    _check_sampling(group.sampling, limits, group.purpose)


def _check_prompt(group: PromptGroup, limits: Limits) -> None:
    field = "PromptGroup.prompt_token_ids"
    tokens = count(group.prompt_token_ids, 4)
    if not 1 <= tokens <= limits.max_prompt_tokens:
        raise invalid(field, f"has {tokens} tokens, expected 1 to {limits.max_prompt_tokens}", "TOO_LARGE")
    if (wrong := first_not_below(group.prompt_token_ids, limits.vocabulary_size)) is not None:
        value = int32_view(group.prompt_token_ids)[wrong]
        raise invalid(
            field, f"holds {value} at position {wrong}, expected ids in [0, {limits.vocabulary_size})"
        )


def _check_sampling(sampling: SamplingParameters, limits: Limits, purpose: Purpose) -> None:
    if purpose is Purpose.TRAIN and sampling.temperature == 0:
        raise invalid("SamplingParameters.temperature", "is 0: greedy completions cannot be trained on")
    if not 1 <= sampling.max_new_tokens <= limits.max_completion_tokens:
        raise invalid(
            "SamplingParameters.max_new_tokens",
            f"is {sampling.max_new_tokens}, expected 1 to {limits.max_completion_tokens}",
            "TOO_LARGE",
        )
    for value in sampling.stop_token_ids:
        if not 0 <= value < limits.vocabulary_size:
            raise invalid(
                "SamplingParameters.stop_token_ids",
                f"holds {value}, expected ids in [0, {limits.vocabulary_size})",
            )
    if sampling.top_k > limits.vocabulary_size:
        raise invalid(
            "SamplingParameters.top_k",
            f"is {sampling.top_k}, the vocabulary has {limits.vocabulary_size} tokens",
        )


def check_join_request(request: JoinRequest) -> None:
    """Refuses a worker whose names or records are not well formed; whether it fits the run is the hub's decision.

    Raises:
        InvalidMessageError: Names the first field that is wrong.
    """
    for field in ("run_id", "worker_name", "boot_id", "backend"):
        check_name(getattr(request, field), f"JoinRequest.{field}")
    check_text(request.software_version, "JoinRequest.software_version", _MAX_TEXT)
    _check_numerics(request.numerics)
    _check_model_digests(request.model_digests)


def _check_numerics(record: NumericsRecord) -> None:
    for field in (
        "engine",
        "engine_version",
        "torch_version",
        "device_vendor",
        "device_name",
        "driver_version",
        "runtime_version",
        "data_type",
        "attention_backend",
        "log_probs_mode",
    ):
        check_text(getattr(record, field), f"NumericsRecord.{field}", _MAX_TEXT)
    if len(record.knobs) > _MAX_KNOBS:
        raise invalid(
            "NumericsRecord.knobs", f"has {len(record.knobs)} entries, at most {_MAX_KNOBS} fit", "TOO_LARGE"
        )
    for name, value in record.knobs.items():
        check_text(name, "NumericsRecord.knobs", _MAX_TEXT)
        check_text(value, f"NumericsRecord.knobs[{name!r}]", _MAX_KNOB_CHARACTERS)


def _check_model_digests(digests: ModelDigests) -> None:
    check_digest(digests.config, "ModelDigests.config")
    check_digest(digests.tokenizer, "ModelDigests.tokenizer")


def check_run_request(request: RunRequest) -> None:
    """Refuses a run whose names, sizes or limits make no sense.

    Raises:
        InvalidMessageError: Names the first field that is wrong.
    """
    check_name(request.run_id, "OpenRunRequest.run_id")
    check_text(request.software_version, "OpenRunRequest.software_version", _MAX_TEXT)
    if len(request.config_json) > _MAX_CONFIG_CHARACTERS:
        raise invalid(
            "OpenRunRequest.config_json",
            f"has {len(request.config_json)} characters, at most {_MAX_CONFIG_CHARACTERS} fit",
            "TOO_LARGE",
        )
    if not 1 <= request.total_steps <= _MAX_INT64:
        raise invalid("OpenRunRequest.total_steps", f"is {request.total_steps}, expected 1 to 2^63 - 1")
    if not 0 <= request.resume_step <= request.total_steps:
        raise invalid(
            "OpenRunRequest.resume_step", f"is {request.resume_step}, the run has {request.total_steps} steps"
        )
    _check_model_digests(request.model_digests)
    _check_limits(request.limits)
    _check_sampling(request.sampling, request.limits, Purpose.TRAIN)
    _check_model_files(request)


def _check_limits(limits: Limits) -> None:
    if limits.max_message_bytes not in _MESSAGE_BYTES:
        raise invalid("Limits.max_message_bytes", f"is {limits.max_message_bytes}, expected 2^16 to 2^30")
    for field in ("max_prompt_tokens", "max_completion_tokens", "max_group_size", "vocabulary_size"):
        if not 1 <= getattr(limits, field) < 2**31:
            raise invalid(f"Limits.{field}", f"is {getattr(limits, field)}, expected 1 to 2^31 - 1")


def _check_model_files(request: RunRequest) -> None:
    field = "ModelFile.name"
    if len(request.model_files) > _MAX_MODEL_FILES:
        raise invalid(
            "OpenRunRequest.model_files",
            f"has {len(request.model_files)} files, at most {_MAX_MODEL_FILES} fit",
            "TOO_LARGE",
        )
    seen: set[str] = set()
    for file in request.model_files:
        check_name(file.name, field)
        if file.name.startswith("."):
            raise invalid(
                field, f"is {file.name!r}, expected a plain file name that does not start with a dot"
            )
        if file.name in seen:
            raise invalid(field, f"{file.name!r} occurs twice")
        seen.add(file.name)
        check_blob_reference(file.blob)
