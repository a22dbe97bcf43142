"""The audit finds what was planted, names it, and says nothing where nothing is wrong."""

import dataclasses
import json

import numpy as np
import pytest

from hetero_rl.audit.record import audit_run, audit_text, read_audit
from hetero_rl.audit.run_data import Probe, RunData, Sequences
from hetero_rl.audit.split import effective_share, split_backend
from hetero_rl.errors import ConfigError, DamagedError, StorageError
from hetero_rl.hub.journal_reader import JournalReader, Sample
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.reports.audit import audit_page, worst_samples
from hetero_rl.reports.inspection import broken_promises
from hetero_rl.reports.page import render_page
from hetero_rl.wire.messages import (
    Capabilities,
    Disposition,
    FinishReason,
    JoinRequest,
    Limits,
    ModelDigests,
    NumericsRecord,
    Purpose,
    RunRequest,
    SamplingParameters,
    SequenceOutcome,
)

STEPS, PER_STEP, TOKENS = 24, 32, 100
DIGESTS = ModelDigests(config="c" * 64, tokenizer="d" * 64)
SAMPLING = SamplingParameters(max_new_tokens=256, stop_token_ids=())


def run_data(
    seed=0, *, chip=0.004, staleness=0.02, bias=0.0, silenced=0.0, estimator="vespo", lags=(0, 1, 2)
):
    """A run whose chip adds N(bias, chip²) to each token, and whose staleness adds N(0, staleness²) per token and step of lag."""
    draw = np.random.default_rng(seed)
    count = STEPS * PER_STEP
    step = np.repeat(np.arange(1, STEPS + 1), PER_STEP)
    length = draw.integers(TOKENS // 2, TOKENS, count)
    lag = np.array(lags)[draw.integers(0, len(lags), count)]
    chip_part = draw.normal(bias * length, chip * np.sqrt(length))
    stale_part = draw.normal(0, staleness * np.sqrt(length * lag))
    log_ratio = chip_part + stale_part
    sequences = Sequences(
        step=step,
        backend=np.full(count, "ascend"),
        numerics_id=np.full(count, "0" * 16),
        worker=np.full(count, "ascend-0"),
        length=length,
        lag=lag,
        reward=draw.random(count),
        advantage=draw.normal(0, 1, count),
        log_importance_ratio=log_ratio,
        coefficient=np.where(draw.random(count) < silenced, 0.0, np.exp(-np.abs(log_ratio))),
        mean_absolute_gap=np.abs(draw.normal(chip, chip / 10, count)),
        max_absolute_gap=np.full(count, 0.1),
        disposition=np.full(count, int(Disposition.TRAINED)),
        staleness_log_ratio=np.full(count, np.nan),
        chip_log_ratio=np.full(count, np.nan),
    )
    probes = tuple(probe(version, chip * draw.uniform(0.9, 1.1)) for version in range(1, STEPS + 1))
    return RunData(
        request=request(estimator),
        committed_step=STEPS,
        sequences=sequences,
        samples=tuple(samples(draw, chip)),
        probes=probes,
        workers=(worker(),),
        events=(),
        counters={},
        version_steps={version: version - 1 for version in range(1, STEPS + 1)},
    )


def probe(version, gap):
    return Probe(
        worker_name="ascend-0",
        numerics_id="0" * 16,
        weight_version=version,
        mean_absolute_difference=gap,
        max_absolute_difference=0.05,
        mean_difference=0.0,
        tokens=64,
        accepted=True,
        occurred_at=float(version),
    )


def request(estimator):
    return RunRequest(
        run_id="planted",
        groups_per_step=4,
        max_lag=2,
        total_steps=STEPS,
        model_digests=DIGESTS,
        model_files=(),
        sampling=SAMPLING,
        limits=Limits(
            max_message_bytes=2**20,
            max_prompt_tokens=16,
            max_completion_tokens=256,
            max_group_size=8,
            vocabulary_size=100,
        ),
        config_json=json.dumps({"estimator": {"name": estimator}}),
        software_version="0.1.0",
    )


def worker():
    return JoinRequest(
        run_id="planted",
        worker_name="ascend-0",
        boot_id="boot",
        backend="ascend",
        software_version="0.1.0",
        capabilities=Capabilities(
            max_concurrent_sequences=8,
            max_sequence_tokens=512,
            scoring=True,
            in_flight_update=True,
            processed_log_probs=False,
        ),
        numerics=NumericsRecord(
            engine="vllm",
            engine_version="0.23.0",
            torch_version="2.10.0",
            device_vendor="ascend",
            device_name="910B",
            driver_version="25",
            runtime_version="9.1",
            data_type="bfloat16",
            attention_backend="flash",
            log_probs_mode="raw",
        ),
        model_digests=DIGESTS,
    )


def samples(draw, chip, groups=6, size=4, tokens=40):
    for group in range(groups):
        for index in range(size):
            trainer = np.log(draw.uniform(0.05, 1, tokens)).astype("<f4")
            # Numerics of a forward pass: nothing where the model is sure, more where it is not.
            noise = draw.normal(0, chip, tokens) * (1 - np.exp(trainer))
            behavior = np.minimum(trainer - noise, 0).astype("<f4")
            yield Sample(
                purpose=Purpose.TRAIN,
                ordinal=group,
                step=1,
                group_id=f"g{group}",
                sample_index=index,
                finish_reason=FinishReason.STOP,
                oldest_version=1,
                newest_version=1,
                worker_name="ascend-0",
                backend="ascend",
                numerics_id="0" * 16,
                prompt_token_ids=np.arange(4, dtype="<i4").tobytes(),
                payload=b"",
                token_ids=draw.integers(0, 100, tokens).astype("<i4").tobytes(),
                log_probs=behavior.tobytes(),
                trainer_log_probs=trainer.tobytes(),
                outcome=SequenceOutcome(
                    group_id=f"g{group}",
                    sample_index=index,
                    reward=float(index % 2),
                    advantage=1.0 if index % 2 else -1.0,
                    log_importance_ratio=float((trainer - behavior).sum()),
                    coefficient=1.0,
                    mean_absolute_gap=chip,
                    max_absolute_gap=chip,
                    lag=0,
                    disposition=Disposition.TRAINED,
                ),
            )


def codes(data):
    return [finding.code for finding in audit_run(data).findings]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_planted_is_nothing_found(seed):
    audit = audit_run(run_data(seed))
    assert audit.findings == ()
    assert audit.first_line == f"ok: nothing to object to in {STEPS * PER_STEP} trajectories of ascend"


def test_the_chip_part_is_what_was_planted():
    split = split_backend(run_data(chip=0.02, staleness=0.0), "ascend")
    assert split.chip_per_token == pytest.approx(0.02**2, rel=0.2)
    assert split.chip_share == pytest.approx(1.0, abs=0.15)


def test_the_staleness_part_grows_with_the_lag_and_the_chip_part_does_not():
    split = split_backend(run_data(chip=0.01, staleness=0.03), "ascend")
    stale = [row.variance - row.chip_variance for row in split.lags]
    expected = [0.0, *(0.03**2 * row.mean_length * row.lag for row in split.lags[1:])]
    assert stale == pytest.approx(expected, rel=0.3, abs=0.01)


def test_recomputed_parts_are_used_with_their_cross_term():
    data = run_data()
    draw = np.random.default_rng(3)
    chip = draw.normal(0, 1.0, len(data.sequences))
    staleness = 0.5 * chip + draw.normal(0, 0.1, len(chip))
    data = dataclasses.replace(
        data,
        sequences=dataclasses.replace(
            data.sequences,
            chip_log_ratio=chip,
            staleness_log_ratio=staleness,
            log_importance_ratio=chip + staleness,
        ),
    )
    split = split_backend(data, "ascend")
    assert split.witness == "recomputed"
    assert split.exact.covariance == pytest.approx(0.5, rel=0.15)
    parts = split.exact.chip_variance + split.exact.staleness_variance + 2 * split.exact.covariance
    assert parts == pytest.approx(split.variance)


def test_a_chip_that_spreads_the_weights_is_named():
    (finding,) = [
        f for f in audit_run(run_data(chip=0.2, staleness=0.0)).findings if f.code == "low_effective_share"
    ]
    assert "% of it is the chip" in finding.cause
    assert "hetero-rl calibrate --backends ascend" in finding.next_step


def test_staleness_that_spreads_the_weights_is_named():
    (finding,) = audit_run(run_data(chip=0.002, staleness=0.2)).findings
    assert finding.code == "low_effective_share"
    assert "% of it is staleness" in finding.cause
    assert "max_lag" in finding.next_step


def test_an_estimator_that_silences_most_sequences_is_named():
    assert "mostly_silenced" in codes(run_data(silenced=0.8))


def test_a_heavy_tail_is_a_finding_for_who_uses_the_weights_as_they_are():
    heavy = {"chip": 0.002, "staleness": 0.5}
    assert "heavy_tail" in codes(run_data(estimator="seq_is", **heavy))
    assert "heavy_tail" not in codes(run_data(estimator="vespo", **heavy))


def test_probe_cards_that_drift_away_are_named():
    data = run_data()
    drifted = tuple(
        dataclasses.replace(probe, mean_absolute_difference=0.2) if index > 16 else probe
        for index, probe in enumerate(data.probes)
    )
    assert codes(dataclasses.replace(data, probes=drifted)) == ["probe_cards_drift"]


def test_a_failed_probe_card_is_named_with_its_version():
    data = run_data()
    failed = dataclasses.replace(data.probes[5], accepted=False, mean_absolute_difference=1.5)
    audit = audit_run(dataclasses.replace(data, probes=(*data.probes[:5], failed, *data.probes[6:])))
    assert audit.first_line.startswith("caution: ascend-0: it failed a probe card")
    assert "version 6" in audit.findings[0].evidence[0]


def test_refused_trajectories_are_told_by_cause():
    data = dataclasses.replace(run_data(), counters={"refused_invalid_field_log_probs": 90})
    (finding,) = audit_run(data).findings
    assert finding.evidence == ("90 x invalid_field_log_probs",)


@pytest.mark.parametrize(
    ("planted", "code"),
    [
        (lambda trainer, behavior: behavior - 0.05, "constant_bias"),
        (lambda trainer, behavior: np.roll(behavior, 1), "off_by_one"),
        (
            lambda trainer, behavior: (behavior.view("<u4") & np.uint32(0xFFFF0000)).view("<f4"),
            "rounded_bfloat16",
        ),
    ],
)
def test_a_fault_of_the_tokens_is_named_from_the_fresh_samples(planted, code):
    data = run_data()
    changed = []
    for sample in data.samples:
        trainer = np.frombuffer(sample.trainer_log_probs, "<f4")
        behavior = planted(trainer, np.frombuffer(sample.log_probs, "<f4").copy()).astype("<f4")
        changed.append(dataclasses.replace(sample, log_probs=behavior.tobytes()))
    assert code in codes(dataclasses.replace(data, samples=tuple(changed)))


def test_a_run_without_fresh_sequences_says_that_it_cannot_split():
    audit = audit_run(run_data(lags=(1, 2)))
    assert audit.splits[0].witness == "none"
    assert any("no sequence was trained at lag 0" in statement for statement in audit.statements)


def test_one_backend_only_is_said_so():
    assert any("One backend only" in statement for statement in audit_run(run_data()).statements)


def test_several_backends_come_after_all_of_them_together():
    data = run_data()
    names = np.where(np.arange(len(data.sequences)) % 2, "ascend", "cpu")
    audit = audit_run(dataclasses.replace(data, sequences=dataclasses.replace(data.sequences, backend=names)))
    assert [split.backend for split in audit.splits] == ["", "ascend", "cpu"]


def test_every_estimator_is_compared_on_the_same_tokens():
    alternatives = {one.estimator: one for one in audit_run(run_data(chip=1e-6)).alternatives}
    assert alternatives["vespo"].mean_positive == pytest.approx(1.0, abs=0.01)
    assert alternatives["seq_is"].effective_share == pytest.approx(1.0, abs=0.01)
    assert alternatives["gepo"].note.endswith("of whole groups")
    assert all(one.note or np.isfinite(one.effective_share) for one in alternatives.values())


def test_the_effective_share_of_equal_weights_is_one_and_of_a_lone_one_its_share():
    assert effective_share(np.zeros(10)) == pytest.approx(1.0)
    assert effective_share(np.array([0.0, -1e4, -1e4, -1e4])) == pytest.approx(0.25)


def test_the_page_is_whole_and_asks_nobody(tmp_path):
    data = run_data(chip=0.2)
    page = audit_page(audit_run(data), worst_samples(data.samples, 3), lambda token: f"</script><{token}>")
    html = render_page(page)
    assert broken_promises(html) == []
    assert "</script><" not in html


def test_the_file_reads_back_and_a_newer_or_damaged_one_is_refused(tmp_path):
    file = tmp_path / "audit.json"
    file.write_text(audit_text(audit_run(run_data())))
    assert read_audit(file)["first_line"].startswith("ok:")
    file.write_text(file.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    with pytest.raises(StorageError, match="update this one"):
        read_audit(file)
    file.write_text("{}")
    with pytest.raises(DamagedError, match="not a audit report"):
        read_audit(file)


def test_a_journal_without_a_run_says_so(tmp_path):
    from hetero_rl.audit.run_data import read_run

    SqliteStore(tmp_path / "journal.sqlite").close()
    with JournalReader(tmp_path / "journal.sqlite") as reader, pytest.raises(ConfigError, match="no run"):
        read_run(reader)
