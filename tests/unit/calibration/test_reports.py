"""From pairs to a calibration's JSON, page, terminal lines, store, and the comparison of two of them."""

import base64
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from hetero_rl.calibration.analysis import Curve, FixedScores, Pair, SourceGap
from hetero_rl.calibration.compare import compare_calibrations
from hetero_rl.calibration.diagnosis import diagnose
from hetero_rl.calibration.held_out import HeldOut
from hetero_rl.calibration.law import fit_law, measured_shares
from hetero_rl.calibration.plan import TEXTS, Plan, prompts_of, text_sequences
from hetero_rl.calibration.record import Calibration, calibration_text, read_calibration, summary_lines
from hetero_rl.calibration.statistics import by_entropy, by_position, by_probability, by_token, gap_summary
from hetero_rl.calibration.store import calibrated_ids, keep_calibration
from hetero_rl.calibration.thresholds import Thresholds, thresholds_from
from hetero_rl.calibration.usable_length import expected_at, usable_lengths
from hetero_rl.calibration.verdicts import Behaviour, behaviour_findings, difference, length_findings
from hetero_rl.errors import ConfigError, DamagedError
from hetero_rl.reports.calibration import calibration_page
from hetero_rl.reports.inspection import broken_promises
from hetero_rl.reports.page import render_page

MODEL, NUMERICS = "c" * 64, "0123456789abcdef"


def pair_of(columns, *, findings=(), name="rocm", log_probs=None):
    law = fit_law(columns)
    lengths = (1, 10, 100)
    starts = np.cumsum(columns.lengths) - columns.lengths
    gap = columns.gap
    sums = zip(
        columns.lengths.tolist(),
        *(np.add.reduceat(values, starts).tolist() for values in (gap, np.abs(gap), gap**2)),
        strict=True,
    )
    same = Behaviour(**dict.fromkeys(("repeat", "batch", "decode", "returned"), difference([], [])))
    shares = [expected_at("vespo", 1, law.variance(length), length) for length in lengths]
    return Pair(
        first="trainer",
        second=name,
        backend="rocm",
        numerics_id=NUMERICS,
        data_type="bfloat16",
        summary=gap_summary(columns),
        sources=(SourceGap(source="text", temperature=1.0, summary=gap_summary(columns)),),
        positions=by_position(columns),
        probabilities=by_probability(columns),
        entropies=by_entropy(dataclasses.replace(columns, entropy=-columns.reference)),
        worst_tokens=by_token(columns),
        first_token=gap_summary(columns.select(columns.offsets == 0)),
        last_token=None,
        sequence_sums=tuple(sums),
        law=law,
        measured_lengths=lengths,
        measured_shares=tuple(measured_shares(columns, np.array(lengths))),
        usable=usable_lengths(law, 0.5),
        curves=(
            Curve(
                estimator="vespo",
                advantage=1,
                lengths=lengths,
                effective_shares=tuple(one.effective_share for one in shares),
                mean_coefficients=tuple(one.mean_coefficient for one in shares),
            ),
        ),
        behaviour=same,
        fixed=FixedScores(
            tokens_digest="t",
            log_probs=base64.b64encode(
                np.asarray(columns.measured if log_probs is None else log_probs, "<f4").tobytes()
            ).decode(),
        ),
        findings=tuple(findings),
    )


def calibration_of(*pairs, **changes):
    base = Calibration(
        made_at="2026-01-01T00:00:00+00:00",
        model="a model",
        model_digest=MODEL,
        state_digest="d" * 64,
        command="hetero-rl calibrate",
        estimator="vespo",
        longest=1024,
        plan=Plan(),
        thresholds=Thresholds(),
        pairs=pairs,
        numerics={"rocm": {"engine": "vllm", "driver_version": "6.1", "numerics_id": NUMERICS}},
    )
    return dataclasses.replace(base, **changes)


@pytest.fixture
def calibration(world):
    columns = world().pair()
    return calibration_of(pair_of(columns))


class TestTheFile:
    def test_it_reads_as_it_was_written(self, calibration, tmp_path):
        path = tmp_path / "calibration.json"
        path.write_text(calibration_text(calibration))
        record = read_calibration(path)
        assert record["verdict"] == "ok"
        assert record["pairs"][0]["summary"]["tokens"] == calibration.pairs[0].summary.tokens
        assert record["pairs"][0]["law"]["diffusion"]["value"] == calibration.pairs[0].law.diffusion.value
        assert record["thresholds"]["ess_floor"] == 0.5

    def test_the_first_line_names_the_worst_finding(self, world):
        here = world(error=1e-6)
        findings = diagnose(here.pair(here.chip + 0.05), floor=1e-4, subject="rocm against trainer")
        found = calibration_of(pair_of(here.pair(here.chip + 0.05), findings=findings))
        assert found.first_line.startswith("unusable: rocm against trainer: a constant bias of 0.05")
        assert json.loads(calibration_text(found))["first_line"] == found.first_line
        assert any("constant bias" in line for line in summary_lines(found))


class TestThePage:
    def test_keeps_every_promise_whatever_the_tokens_are(self, calibration):
        hostile = "</td><script>alert(1)</script>"
        html = render_page(calibration_page(calibration, lambda token: hostile))
        assert broken_promises(html) == []
        assert "<script" not in html

    def test_has_a_plot_with_its_table_for_each_question(self, calibration):
        html = render_page(calibration_page(calibration, str))
        for title in (
            "Variance of log W against length",
            "Effective share of the sequences against length",
            "Mean VESPO coefficient against length",
            "Gap by position in the text",
            "Gap by probability of the token",
            "Gap by entropy of the trainer",
        ):
            assert html.count(f"<figcaption>{title}") == 1
        assert html.count("<svg") == 6


class TestPredictionsHeldAgainstOthers:
    @pytest.fixture
    def checked(self, world):
        columns = world().pair()
        one = HeldOut(floor=0.5, sequences=64, fitted_tokens=96, predicted=110.0, measured=100.0)
        return calibration_of(dataclasses.replace(pair_of(columns), held_out=(one,)))

    def test_they_are_in_the_file_on_the_page_and_on_the_terminal(self, checked):
        assert json.loads(calibration_text(checked))["pairs"][0]["held_out"] == [
            {"floor": 0.5, "sequences": 64, "fitted_tokens": 96, "predicted": 110.0, "measured": 100.0}
        ]
        html = render_page(calibration_page(checked, str))
        assert "predicted from 96 tokens of one half of 64 sequences" in html
        assert broken_promises(html) == []
        assert any("0.5 at 110 predicted, 100 measured" in line for line in summary_lines(checked))

    def test_the_error_is_relative_to_what_was_measured(self, checked):
        assert checked.pairs[0].held_out[0].error == pytest.approx(0.1)

    def test_without_them_nothing_is_said(self, calibration):
        assert not any("not fitted to" in line for line in summary_lines(calibration))


@pytest.mark.usefixtures("mine")
class TestTheStore:
    @pytest.fixture
    def mine(self, tmp_path, monkeypatch):
        """A data directory of the test's own."""
        monkeypatch.setenv("HETERO_RL_CALIBRATIONS", str(tmp_path / "mine"))

    def test_an_id_is_known_for_the_model_it_was_calibrated_with(self, calibration, tmp_path):
        assert calibrated_ids(MODEL) == frozenset()
        keep_calibration(calibration_text(calibration), MODEL, [NUMERICS])
        assert calibrated_ids(MODEL) == {NUMERICS}
        assert calibrated_ids("b" * 64) == frozenset()

    def test_a_run_keeps_a_copy_that_another_machine_can_read(self, calibration, tmp_path, monkeypatch):
        keep_calibration(calibration_text(calibration), MODEL, [NUMERICS], run=tmp_path / "run")
        monkeypatch.setenv("HETERO_RL_CALIBRATIONS", str(tmp_path / "other"))
        assert calibrated_ids(MODEL) == frozenset()
        assert calibrated_ids(MODEL, tmp_path / "run") == {NUMERICS}

    @pytest.mark.parametrize("wrong", ["../../x", "", "0123456789ABCDEF"])
    def test_ids_that_are_no_ids_name_no_file(self, wrong):
        with pytest.raises(ConfigError):
            keep_calibration("{}", MODEL, [wrong])
        assert calibrated_ids("../..") == frozenset()


class TestTwoFiles:
    @staticmethod
    def record(*pairs, **changes):
        return json.loads(calibration_text(calibration_of(*pairs, **changes)))

    def test_the_same_bits_are_said_to_be_the_same(self, world):
        record = self.record(pair_of(world().pair()))
        found = compare_calibrations(record, record)
        assert found.identical
        assert not found.moved
        assert found.first_line.startswith("nothing moved")

    def test_an_upgrade_that_doubles_the_gap_is_found(self, world):
        before = self.record(pair_of(world(1, error=0.02).pair()))
        after = self.record(
            pair_of(world(2, error=0.04).pair()),
            numerics={"rocm": {"engine": "vllm", "driver_version": "6.2", "numerics_id": "f" * 16}},
        )
        found = compare_calibrations(before, after)
        assert found.moved
        assert found.first_line.startswith("moved: ")
        assert "rocm: driver_version was '6.1', now '6.2'" in found.changed_numerics

    def test_the_same_chip_measured_again_has_not_moved_over_20_seeds(self, world):
        moved = []
        for seed in range(20):
            first = self.record(pair_of(world(seed).pair()))
            second = self.record(pair_of(world(1000 + seed).pair()))
            moved.append(compare_calibrations(first, second).moved)
        assert not any(moved)

    def test_few_sequences_prove_nothing(self, world):
        before = self.record(pair_of(world(1, sequences=4, tokens=30, error=0.02).pair()))
        after = self.record(pair_of(world(2, sequences=4, tokens=30, error=0.024).pair()))
        assert not compare_calibrations(before, after).moved

    def test_pairs_that_one_file_lacks_are_named(self, world):
        columns = world().pair()
        before, after = self.record(pair_of(columns)), self.record(pair_of(columns, name="cuda"))
        found = compare_calibrations(before, after)
        assert found.only_in_one == ("cuda against trainer", "rocm against trainer")
        assert "no pair is in both" in found.first_line

    def test_half_a_file_is_refused(self):
        with pytest.raises(DamagedError):
            compare_calibrations({"pairs": [{"first": "a"}], "numerics": {}}, {"pairs": []})


class TestVerdicts:
    def test_a_run_longer_than_its_estimator_can_use_is_told_what_to_do(self, world):
        law = fit_law(world(sequences=40, error=0.2).pair())
        usable = usable_lengths(law, 0.5)
        (finding,) = length_findings("rocm", usable, "vespo", 100_000, Thresholds())
        assert finding.code == "short_usable_length"
        assert finding.verdict.word == "unusable"
        assert "sampling.max_new_tokens" in finding.next_step
        assert length_findings("rocm", usable, "vespo", 1, Thresholds()) == []

    def test_what_does_not_return_after_an_update_is_unusable(self):
        zero, far = difference([], []), difference([np.zeros(10)], [np.full(10, 0.01)])
        behaviour = Behaviour(repeat=zero, batch=far, decode=zero, returned=far)
        findings = behaviour_findings("chip", "ascend", "float32", behaviour, Thresholds())
        assert [(one.code, one.verdict.word) for one in findings] == [
            ("not_reversible", "unusable"),
            ("batch_variant", "caution"),
        ]
        assert "HCCL_DETERMINISTIC" in findings[1].next_step

    def test_a_missing_number_is_infinitely_far(self):
        assert difference([np.array([np.nan])], [np.array([0.0])]).maximum == np.inf

    def test_thresholds_are_set_by_name(self):
        assert thresholds_from(["ess_floor=0.7", "batch=0.1"]) == Thresholds(ess_floor=0.7, batch=0.1)

    @pytest.mark.parametrize("text", ["ess_floor", "floor=1", "batch=x", "ess_floor=2"])
    def test_a_wrong_threshold_is_refused_by_name(self, text):
        with pytest.raises(ConfigError):
            thresholds_from([text])


class TestThePlan:
    def test_prompts_differ_and_stay_within_their_length(self):
        plan = Plan(prompts=10, prompt_tokens=12)
        prompts = prompts_of(plan, lambda text: [ord(letter) for letter in text])
        assert len(set(prompts)) == 10
        assert max(map(len, prompts)) <= 12

    def test_texts_have_every_length_up_to_the_longest(self):
        found = text_sequences(Plan(text_tokens=500), lambda text: [ord(letter) for letter in text])
        assert len(found) == len(TEXTS) + 1
        assert max(len(one.token_ids) for one in found) == 500


COMMITTED = sorted((Path(__file__).parents[3] / "docs" / "calibration").glob("*/calibration.json"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name)
def test_a_published_calibration_reads_and_its_page_keeps_every_promise(path):
    record = read_calibration(path)
    assert compare_calibrations(record, record).identical
    assert broken_promises(path.with_suffix(".html").read_text(encoding="utf-8")) == []
