"""What is well formed and still refused, field by field."""

import dataclasses
import hashlib

import pytest

from hetero_rl.errors import InvalidMessageError
from hetero_rl.weights.digests import state_digest
from hetero_rl.wire.columns import UInt8Bytes, float32_column, int32_column
from hetero_rl.wire.messages import (
    BlobReference,
    Capabilities,
    DataType,
    FinishReason,
    GenerateWork,
    JoinRequest,
    Lease,
    Limits,
    ModelDigests,
    ModelFile,
    NumericsRecord,
    ProbeCard,
    PromptGroup,
    Purpose,
    RoutedExperts,
    RunDescription,
    RunRequest,
    SamplingParameters,
    ScoreBatch,
    ScoreWork,
    Submission,
    TensorEntry,
    TrajectoryBatch,
    VersionSpan,
    WeightEncoding,
    WeightManifest,
    WorkerIdentity,
)
from hetero_rl.wire.validation import (
    check_blob_reference,
    check_join_request,
    check_manifest,
    check_probe_card,
    check_prompt_group,
    check_run_request,
    check_submission,
)

STOP_TOKEN = 2
DIGEST = hashlib.sha256(b"").hexdigest()
LIMITS = Limits(
    max_message_bytes=2**20,
    max_prompt_tokens=8,
    max_completion_tokens=6,
    max_group_size=4,
    vocabulary_size=100,
)
SAMPLING = SamplingParameters(max_new_tokens=3, stop_token_ids=(STOP_TOKEN,))
RUN = RunDescription(
    run_id="r",
    model_digests=ModelDigests(DIGEST, DIGEST),
    model_files=(),
    sampling=SAMPLING,
    limits=LIMITS,
    latest_weight_version=4,
)
WORK = GenerateWork(
    group_id="g",
    purpose=Purpose.TRAIN,
    prompt_token_ids=int32_column([1]),
    sample_indices=(0, 1, 3),
    sampling=SAMPLING,
)
LEASE = Lease(lease_id="l", attempt=0, time_to_live=60, min_weight_version=3, work=WORK)

# Sample 1 stops after two tokens, sample 3 runs into the limit and spans two versions.
BATCH = TrajectoryBatch(
    group_id="g",
    sample_indices=(1, 3),
    lengths=(2, 3),
    token_ids=int32_column([11, STOP_TOKEN, 12, 13, 14]),
    log_probs=float32_column([-0.5, -0.0, -2.0, 0.0, -1.5]),
    version_spans=(VersionSpan(0, 0, 2, 3), VersionSpan(1, 0, 1, 3), VersionSpan(1, 1, 3, 4)),
    finish_reasons=(FinishReason.STOP, FinishReason.LENGTH),
    numerics_id="n1",
    generation_seconds=0.5,
)


def check(batch, lease=LEASE, **options):
    submission = Submission(
        worker=WorkerIdentity("w", 1), sequence=0, lease_id="l", final=True, results=batch
    )
    check_submission(submission, lease, RUN, {3, 4}, **options)


def refusal_of(call, *arguments, **options):
    with pytest.raises(InvalidMessageError) as caught:
        call(*arguments, **options)
    assert str(caught.value).startswith(caught.value.field)
    return caught.value


def test_an_honest_submission_passes():
    check(BATCH, numerics_id="n1")


def test_part_of_the_lease_passes_too():
    one = dataclasses.replace(
        BATCH,
        sample_indices=(3,),
        lengths=(1,),
        token_ids=int32_column([STOP_TOKEN]),
        log_probs=float32_column([-1.0]),
        version_spans=(VersionSpan(0, 0, 1, 4),),
        finish_reasons=(FinishReason.STOP,),
    )
    check(one)


REFUSED = {
    "another group": ({"group_id": "h"}, "group_id"),
    "no sample": ({"sample_indices": ()}, "sample_indices"),
    "a sample twice": ({"sample_indices": (1, 1)}, "sample_indices"),
    "descending samples": ({"sample_indices": (3, 1)}, "sample_indices"),
    "a sample that was not leased": ({"sample_indices": (1, 2)}, "sample_indices"),
    "fewer lengths than samples": ({"lengths": (5,)}, "lengths"),
    "an empty completion": ({"lengths": (0, 5)}, "lengths"),
    "more tokens than allowed": ({"lengths": (1, 4)}, "lengths"),
    "fewer tokens than the lengths say": ({"token_ids": int32_column([11, 2, 12, 13])}, "token_ids"),
    "an id outside the vocabulary": ({"token_ids": int32_column([11, 2, 12, 100, 14])}, "token_ids"),
    "a negative id": ({"token_ids": int32_column([11, 2, -1, 13, 14])}, "token_ids"),
    "a stop token inside a completion": ({"token_ids": int32_column([11, 2, 2, 13, 14])}, "token_ids"),
    "no log-probabilities for training": ({"log_probs": None}, "log_probs"),
    "a log-probability missing": ({"log_probs": float32_column([-1.0] * 4)}, "log_probs"),
    "NaN": ({"log_probs": float32_column([-1.0, float("nan"), -1, -1, -1])}, "log_probs"),
    "minus infinity": ({"log_probs": float32_column([-1.0, float("-inf"), -1, -1, -1])}, "log_probs"),
    "a positive log-probability": ({"log_probs": float32_column([-1.0, 1e-7, -1, -1, -1])}, "log_probs"),
    "a mask of another length": ({"action_mask": UInt8Bytes(b"\x01" * 4)}, "action_mask"),
    "a mask of other values": ({"action_mask": UInt8Bytes(b"\x01\x02\x01\x01\x01")}, "action_mask"),
    "experts of another length": (
        {"routed_experts": RoutedExperts(expert_ids=int32_column([1] * 9), layers=2, top_k=1)},
        "routed_experts",
    ),
    "no span": ({"version_spans": ()}, "version_spans"),
    "a gap": (
        {"version_spans": (VersionSpan(0, 0, 2, 3), VersionSpan(1, 0, 1, 3), VersionSpan(1, 2, 3, 4))},
        "version_spans",
    ),
    "an overlap": (
        {"version_spans": (VersionSpan(0, 0, 2, 3), VersionSpan(1, 0, 2, 3), VersionSpan(1, 1, 3, 4))},
        "version_spans",
    ),
    "an empty span": (
        {"version_spans": (VersionSpan(0, 0, 2, 3), VersionSpan(1, 0, 0, 3), VersionSpan(1, 0, 3, 4))},
        "version_spans",
    ),
    "a span beyond the end": ({"version_spans": (VersionSpan(0, 0, 3, 3),)}, "version_spans"),
    "a last sample not covered": ({"version_spans": (VersionSpan(0, 0, 2, 3),)}, "version_spans"),
    "a span too many": ({"version_spans": (*BATCH.version_spans, VersionSpan(2, 0, 1, 3))}, "version_spans"),
    "STOP without a stop token": (
        {"finish_reasons": (FinishReason.STOP, FinishReason.STOP)},
        "finish_reasons",
    ),
    "LENGTH after a stop token": (
        {"finish_reasons": (FinishReason.LENGTH, FinishReason.LENGTH)},
        "finish_reasons",
    ),
    "LENGTH before the limit": (
        {"token_ids": int32_column([11, 15, 12, 13, 14]), "finish_reasons": (FinishReason.LENGTH,) * 2},
        "finish_reasons",
    ),
    "fewer reasons than samples": ({"finish_reasons": (FinishReason.STOP,)}, "finish_reasons"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_batch_is_refused_for(case):
    changes, field = REFUSED[case]
    error = refusal_of(check, dataclasses.replace(BATCH, **changes))
    assert error.field == f"TrajectoryBatch.{field}"


def test_a_version_that_was_never_published_has_a_reason_of_its_own():
    spans = (VersionSpan(0, 0, 2, 9), VersionSpan(1, 0, 3, 4))
    assert refusal_of(check, dataclasses.replace(BATCH, version_spans=spans)).reason == "UNKNOWN_VERSION"


def test_a_version_older_than_the_lease_allows_is_refused():
    error = refusal_of(check, BATCH, dataclasses.replace(LEASE, min_weight_version=4))
    assert "names version 3, the lease asks for at least 4" in str(error)


def test_an_aborted_completion_may_end_anywhere_but_in_a_stop_token():
    aborted = dataclasses.replace(
        BATCH,
        token_ids=int32_column([11, 15, 12, 13, 14]),
        finish_reasons=(FinishReason.ABORTED, FinishReason.LENGTH),
    )
    check(aborted)


def test_tokens_that_the_policy_did_not_choose_may_bring_stop_tokens():
    masked = dataclasses.replace(
        BATCH,
        token_ids=int32_column([11, STOP_TOKEN, STOP_TOKEN, 13, 14]),
        action_mask=UInt8Bytes(b"\x01\x01\x00\x01\x01"),
    )
    check(masked)


def test_greedy_evaluation_may_leave_out_log_probabilities():
    lease = dataclasses.replace(LEASE, work=dataclasses.replace(WORK, purpose=Purpose.EVALUATION))
    check(dataclasses.replace(BATCH, log_probs=None), lease)


def test_numbers_of_another_numerics_id_than_the_worker_joined_with_are_refused():
    assert refusal_of(check, BATCH, numerics_id="n2").field == "TrajectoryBatch.numerics_id"


SCORE_LEASE = dataclasses.replace(
    LEASE,
    work=ScoreWork(score_id="s", lengths=(3, 2), token_ids=int32_column([1, 2, 3, 4, 5]), weight_version=4),
)
SCORES = ScoreBatch(
    score_id="s", log_probs=float32_column([-1.0, -2.0, -3.0]), weight_version=4, numerics_id="n1"
)


def test_scores_for_every_token_but_the_first_of_each_sequence_pass():
    check(SCORES, SCORE_LEASE)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"score_id": "t"}, "score_id"),
        ({"weight_version": 3}, "weight_version"),
        ({"log_probs": float32_column([-1.0] * 5)}, "log_probs"),
        ({"log_probs": float32_column([-1.0, 0.5, -1.0])}, "log_probs"),
    ],
)
def test_scores_are_refused_with_the_field(changes, field):
    error = refusal_of(check, dataclasses.replace(SCORES, **changes), SCORE_LEASE)
    assert error.field == f"ScoreBatch.{field}"


def test_scores_do_not_answer_a_lease_to_generate():
    assert refusal_of(check, SCORES).field == "SubmitResultsRequest.results"
    assert refusal_of(check, BATCH, SCORE_LEASE).field == "SubmitResultsRequest.results"


GROUP = PromptGroup(
    group_id="g-1", ordinal=0, prompt_token_ids=int32_column([1, 2]), group_size=4, sampling=SAMPLING
)


def test_an_honest_prompt_group_passes():
    check_prompt_group(GROUP, LIMITS)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"group_id": "a/b"}, "PromptGroup.group_id"),
        ({"group_id": "x" * 65}, "PromptGroup.group_id"),
        ({"group_id": "a\n"}, "PromptGroup.group_id"),
        ({"ordinal": 2**63}, "PromptGroup.ordinal"),
        ({"group_size": 5}, "PromptGroup.group_size"),
        ({"prompt_token_ids": int32_column([])}, "PromptGroup.prompt_token_ids"),
        ({"prompt_token_ids": int32_column([1] * 9)}, "PromptGroup.prompt_token_ids"),
        ({"prompt_token_ids": int32_column([100])}, "PromptGroup.prompt_token_ids"),
        ({"payload": bytes(2**20 + 1)}, "PromptGroup.payload"),
        (
            {"sampling": dataclasses.replace(SAMPLING, max_new_tokens=7)},
            "SamplingParameters.max_new_tokens",
        ),
        ({"sampling": dataclasses.replace(SAMPLING, temperature=0.0)}, "SamplingParameters.temperature"),
        (
            {"sampling": dataclasses.replace(SAMPLING, stop_token_ids=(100,))},
            "SamplingParameters.stop_token_ids",
        ),
        ({"sampling": dataclasses.replace(SAMPLING, top_k=101)}, "SamplingParameters.top_k"),
    ],
)
def test_a_prompt_group_is_refused_with_the_field(changes, field):
    assert refusal_of(check_prompt_group, dataclasses.replace(GROUP, **changes), LIMITS).field == field


def test_greedy_evaluation_prompts_pass():
    greedy = dataclasses.replace(SAMPLING, temperature=0.0)
    check_prompt_group(dataclasses.replace(GROUP, purpose=Purpose.EVALUATION, sampling=greedy), LIMITS)


NUMERICS = NumericsRecord(
    engine="transformers",
    engine_version="5",
    torch_version="2",
    device_vendor="cpu",
    device_name="EPYC",
    driver_version="",
    runtime_version="",
    data_type="float32",
    attention_backend="sdpa",
    log_probs_mode="raw",
    knobs={"threads": "1"},
)
JOIN = JoinRequest(
    run_id="r",
    worker_name="cpu-0",
    boot_id="b1",
    backend="cpu",
    software_version="0.1",
    capabilities=Capabilities(
        max_concurrent_sequences=1,
        max_sequence_tokens=8,
        scoring=True,
        in_flight_update=True,
        processed_log_probs=False,
    ),
    numerics=NUMERICS,
    model_digests=ModelDigests(DIGEST, DIGEST),
)


def test_an_honest_join_passes():
    check_join_request(JOIN)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"worker_name": ""}, "JoinRequest.worker_name"),
        ({"worker_name": "../w"}, "JoinRequest.worker_name"),
        ({"boot_id": "\x00"}, "JoinRequest.boot_id"),
        ({"backend": "c p u"}, "JoinRequest.backend"),
        ({"software_version": "0.1\nERROR forged"}, "JoinRequest.software_version"),
        ({"numerics": dataclasses.replace(NUMERICS, device_name="x" * 300)}, "NumericsRecord.device_name"),
        ({"numerics": dataclasses.replace(NUMERICS, knobs={"a": "\x1b[2J"})}, "NumericsRecord.knobs['a']"),
        (
            {"numerics": dataclasses.replace(NUMERICS, knobs={str(i): "" for i in range(300)})},
            "NumericsRecord.knobs",
        ),
        ({"model_digests": ModelDigests("ab", DIGEST)}, "ModelDigests.config"),
        ({"model_digests": ModelDigests(DIGEST, DIGEST.upper())}, "ModelDigests.tokenizer"),
    ],
)
def test_a_join_is_refused_with_the_field(changes, field):
    assert refusal_of(check_join_request, dataclasses.replace(JOIN, **changes)).field == field


FILE = ModelFile("config.json", BlobReference(DIGEST, 10))
OPEN = RunRequest(
    run_id="r",
    groups_per_step=2,
    max_lag=1,
    total_steps=5,
    model_digests=ModelDigests(DIGEST, DIGEST),
    model_files=(FILE,),
    sampling=SAMPLING,
    limits=LIMITS,
    config_json="{}",
    software_version="0.1",
)


def test_an_honest_run_passes():
    check_run_request(OPEN)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"run_id": "a b"}, "OpenRunRequest.run_id"),
        ({"total_steps": 0}, "OpenRunRequest.total_steps"),
        ({"resume_step": 6}, "OpenRunRequest.resume_step"),
        ({"config_json": "x" * (2**20 + 1)}, "OpenRunRequest.config_json"),
        ({"limits": dataclasses.replace(LIMITS, max_message_bytes=10)}, "Limits.max_message_bytes"),
        ({"limits": dataclasses.replace(LIMITS, vocabulary_size=2**31)}, "Limits.vocabulary_size"),
        ({"model_files": (ModelFile("../config.json", FILE.blob),)}, "ModelFile.name"),
        ({"model_files": (ModelFile("..", FILE.blob),)}, "ModelFile.name"),
        ({"model_files": (FILE, FILE)}, "ModelFile.name"),
        ({"model_files": (ModelFile("a", BlobReference("z" * 64, 1)),)}, "BlobReference.digest"),
    ],
)
def test_a_run_is_refused_with_the_field(changes, field):
    assert refusal_of(check_run_request, dataclasses.replace(OPEN, **changes)).field == field


def test_a_blob_of_absurd_size_is_too_large():
    assert refusal_of(check_blob_reference, BlobReference(DIGEST, 2**41)).reason == "TOO_LARGE"


# 2 x 3 bfloat16 elements take 12 bytes.
TENSOR = TensorEntry(
    name="w", data_type=DataType.BFLOAT16, shape=(2, 3), digest=DIGEST, blob_index=0, offset=4, size=12
)
CARD = ProbeCard(
    lengths=(3, 2),
    token_ids=int32_column([1, 2, 3, 4, 5]),
    log_probs=float32_column([-1.0, -2.0, -3.0]),
    tolerance=0.1,
)


def manifest(*tensors, **changes):
    tensors = tensors or (TENSOR,)
    fields = {
        "version": 1,
        "step": 0,
        "encoding": WeightEncoding.FULL_RAW,
        "tensors": tensors,
        "blobs": (BlobReference(DIGEST, 16),),
        "state_digest": state_digest(tensors),
        "probe_card": CARD,
    }
    return WeightManifest(**(fields | changes))


def test_an_honest_manifest_passes():
    check_manifest(manifest(), 100)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (manifest(dataclasses.replace(TENSOR, size=11)), "WeightManifest"),
        (manifest(dataclasses.replace(TENSOR, shape=(2, 4))), "WeightManifest"),
        (manifest(dataclasses.replace(TENSOR, offset=5)), "WeightManifest"),
        (manifest(dataclasses.replace(TENSOR, digest="no")), "WeightManifest"),
        (manifest(TENSOR, TENSOR), "WeightManifest"),
        (manifest(state_digest=DIGEST), "WeightManifest"),
        (manifest(version=2**63), "WeightManifest.version"),
        (manifest(tensors=()), "WeightManifest.tensors"),
        (manifest(blobs=(BlobReference("no", 16),)), "BlobReference.digest"),
        (manifest(blobs=(BlobReference(DIGEST, 2**40),) * 17), "WeightManifest.blobs"),
        (manifest(dataclasses.replace(TENSOR, name="x" * 513)), "TensorEntry.name"),
        (manifest(dataclasses.replace(TENSOR, tied_names=("a\nb",))), "TensorEntry.name"),
        (manifest(probe_card=dataclasses.replace(CARD, tolerance=0.0)), "ProbeCard.tolerance"),
    ],
)
def test_a_manifest_is_refused_with_the_field(wrong, field):
    assert refusal_of(check_manifest, wrong, 100).field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"lengths": ()}, "lengths"),
        ({"lengths": (4, 1)}, "lengths"),
        ({"token_ids": int32_column([1, 2, 3, 4])}, "token_ids"),
        ({"token_ids": int32_column([1, 2, 3, 4, 100])}, "token_ids"),
        ({"log_probs": float32_column([-1.0, -2.0])}, "log_probs"),
        ({"log_probs": float32_column([-1.0, -2.0, 1.0])}, "log_probs"),
        ({"tolerance": float("nan")}, "tolerance"),
    ],
)
def test_a_probe_card_is_refused_with_the_field(changes, field):
    assert (
        refusal_of(check_probe_card, dataclasses.replace(CARD, **changes), 100).field == f"ProbeCard.{field}"
    )
