"""Planted faults are found and named; where none is planted nothing is found."""

import dataclasses

import numpy as np
import pytest

from hetero_rl.calibration.alternatives import Alternative, explain
from hetero_rl.calibration.columns import PairColumns
from hetero_rl.calibration.diagnosis import diagnose, expected_floor
from hetero_rl.calibration.signatures import constant_bias
from hetero_rl.reports.findings import Verdict

CHIPS = {"float32": 1e-6, "bfloat16": 0.02}


def codes(pair, chip, alternatives=()):
    return [one.code for one in diagnose(pair, floor=expected_floor(chip), alternatives=alternatives)]


def to_bfloat16(values):
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("chip", CHIPS)
class TestWithoutAFault:
    def test_nothing_is_found_over_20_seeds(self, world, chip):
        found = {seed: codes(world(seed, error=CHIPS[chip]).pair(), chip) for seed in range(20)}
        assert {seed: names for seed, names in found.items() if names} == {}

    def test_no_alternative_is_believed_over_20_seeds(self, world, chip):
        found = {}
        for seed in range(20):
            here = world(seed, error=CHIPS[chip])
            other = here.trainer_logits + np.random.default_rng(seed + 99).normal(
                scale=0.05, size=here.trainer_logits.shape
            )
            faults = [
                Alternative(
                    code="temperature_applied_twice",
                    detail="0.9",
                    log_probs=here.log_probs(here.trainer_logits, 0.9),
                ),
                Alternative(code="stale_weights", detail="1", log_probs=here.log_probs(other)),
            ]
            found[seed] = codes(here.pair(), chip, faults)
        assert {seed: names for seed, names in found.items() if names} == {}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("chip", CHIPS)
class TestAPlantedFaultIsNamed:
    def test_noise_on_the_log_probs(self, world, chip, seed):
        here = world(seed, error=CHIPS[chip])
        noise = np.random.default_rng(seed).normal(scale=0.05, size=len(here.chip))
        assert codes(here.pair(here.chip + noise), chip) == ["noise_on_log_probs"]

    @pytest.mark.parametrize("bias", [-0.03, 0.03, 0.5])
    def test_a_constant_bias(self, world, chip, seed, bias):
        here = world(seed, error=CHIPS[chip])
        finding = diagnose(here.pair(here.chip + bias), floor=expected_floor(chip))[0]
        assert finding.code == "constant_bias"
        named = float(finding.cause.split("bias of ")[1].split(" ")[0])
        assert named == pytest.approx(bias, rel=0.05)

    def test_top_p_without_knowing_about_it(self, world, chip, seed):
        here = world(seed, error=CHIPS[chip], top_p=0.8)
        measured = here.log_probs(here.chip_logits, top_p=0.8)
        assert codes(here.pair(measured), chip) == ["top_p_renormalised"]

    def test_top_p_with_the_trainers_own_computation(self, world, chip, seed):
        here = world(seed, error=CHIPS[chip], top_p=0.9)
        measured = here.log_probs(here.chip_logits, top_p=0.9)
        truncated = here.log_probs(here.trainer_logits, top_p=0.9)
        fault = Alternative(code="top_p_renormalised", detail=" (0.9)", log_probs=truncated)
        assert codes(here.pair(measured), chip, [fault]) == ["top_p_renormalised"]

    @pytest.mark.parametrize("temperature", [0.7, 1.3])
    def test_temperature_applied_twice_is_told_from_not_applied(self, world, chip, seed, temperature):
        here = world(seed, error=CHIPS[chip], temperature=temperature)
        faults = [
            Alternative(
                code="temperature_applied_twice",
                detail="t",
                log_probs=here.log_probs(here.trainer_logits, temperature**2),
            ),
            Alternative(code="temperature_not_applied", detail="t", log_probs=here.trainer),
        ]
        once = here.log_probs(here.trainer_logits, temperature)
        twice = here.pair(here.log_probs(here.chip_logits, temperature**2), once)
        never = here.pair(here.chip, once)
        fine = here.pair(here.log_probs(here.chip_logits, temperature), once)
        assert codes(twice, chip, faults) == ["temperature_applied_twice"]
        assert codes(never, chip, faults) == ["temperature_not_applied"]
        assert codes(fine, chip, faults) == []

    def test_temperature_without_the_trainers_help_names_the_two_it_may_be(self, world, chip, seed):
        here = world(seed, error=CHIPS[chip])
        found = codes(here.pair(here.log_probs(here.chip_logits, 0.4)), chip)
        assert found == ["distribution_or_weights"]

    @pytest.mark.parametrize("shift", [1, -1])
    def test_off_by_one(self, world, chip, seed, shift):
        here = world(seed, error=CHIPS[chip])
        assert codes(here.pair(np.roll(here.chip, shift)), chip) == ["off_by_one"]

    def test_drift_only_past_a_position(self, world, chip, seed):
        here = world(seed, sequences=6, tokens=700, error=CHIPS[chip])
        wrong = here.chip_logits + np.random.default_rng(seed).normal(scale=0.5, size=here.chip_logits.shape)
        late = here.positions > 512
        measured = np.where(late, here.log_probs(wrong), here.chip)
        finding = diagnose(here.pair(measured), floor=expected_floor(chip))[0]
        assert finding.code == "drift_past_position"
        assert abs(int(finding.cause.rsplit(" ", 1)[1]) - 512) <= 8

    def test_bfloat16_on_the_wire(self, world, chip, seed):
        here = world(seed, error=CHIPS[chip])
        assert codes(here.pair(to_bfloat16(here.chip)), chip) == ["rounded_bfloat16"]

    def test_float16_on_the_wire(self, world, chip, seed):
        here = world(seed, error=CHIPS[chip])
        assert codes(here.pair(here.chip.astype(np.float16).astype(np.float64)), chip) == ["rounded_float16"]

    def test_other_weights_than_the_trainers(self, world, chip, seed):
        here = world(seed, error=CHIPS[chip])
        drawn = np.random.default_rng(seed).normal(scale=0.4, size=here.chip_logits.shape)
        measured = here.log_probs(here.chip_logits + drawn)
        old = here.log_probs(here.trainer_logits + drawn)
        stale = Alternative(code="stale_weights", detail="1", log_probs=old)
        assert codes(here.pair(measured), chip) == ["numerics_or_weights"]
        assert codes(here.pair(measured), chip, [stale]) == ["stale_weights"]

    def test_a_fault_below_the_chips_noise_is_found_with_the_trainers_help(self, world, chip, seed):
        here = world(seed, sequences=40, error=CHIPS[chip])
        drawn = np.random.default_rng(seed).normal(scale=0.02, size=here.chip_logits.shape)
        measured = here.log_probs(here.chip_logits + drawn)
        stale = Alternative(
            code="stale_tensor", detail="a", log_probs=here.log_probs(here.trainer_logits + drawn)
        )
        assert codes(here.pair(measured), chip, [stale]) == ["stale_tensor"]


class TestWhatTheDataCannotTell:
    def test_two_faults_with_one_effect_are_both_named(self, world):
        here = world(1, error=1e-6)
        wrong = here.log_probs(here.trainer_logits * 1.2)
        faults = [
            Alternative(code="stale_tensor", detail="one", log_probs=wrong),
            Alternative(code="tied_head_stale", detail="1", log_probs=wrong + 1e-9),
        ]
        finding = diagnose(
            here.pair(here.log_probs(here.chip_logits * 1.2)), floor=1e-4, alternatives=faults
        )[0]
        assert finding.code == "stale_tensor|tied_head_stale"
        assert "cannot tell them apart" in finding.cause
        assert finding.verdict is Verdict.UNUSABLE

    def test_few_tokens_are_said_to_be_few(self, world):
        here = world(sequences=1, tokens=20)
        assert codes(here.pair(), "float32") == ["too_little_data"]

    def test_values_that_are_not_finite_are_counted_and_left_out(self, world):
        here = world(error=1e-6)
        measured = here.chip
        measured[[3, 700]] = [-np.inf, np.nan]
        finding = diagnose(here.pair(measured), floor=1e-4)
        assert [one.code for one in finding] == ["not_finite"]
        assert finding[0].cause.startswith("2 log-probabilities")

    def test_a_shift_of_certain_tokens_is_no_constant_while_unlikely_ones_are_too_noisy_to_tell(self):
        # A model that is sure of most tokens, on a chip in low precision: 400 certain tokens 0.0003 nats off, 20 unlikely ones anywhere.
        certain = -np.tile([0.0005, 0.001, 0.002, 0.004], 100)
        shift = np.tile([0.0002, 0.0003, 0.0004, 0.0003, 0.0003], 80)
        unlikely, noise = np.full(20, -2.0), np.linspace(-1.0, 1.0, 20)
        reference = np.concatenate([certain, unlikely])
        columns = PairColumns(
            lengths=np.full(105, 4),
            reference=reference,
            measured=reference - np.concatenate([shift, noise]),
            token_ids=np.arange(420),
            positions=np.tile(np.arange(4), 105),
        )
        assert constant_bias(columns) is None
        same = dataclasses.replace(columns, measured=reference - 0.0003)
        assert constant_bias(same).code == "constant_bias"


def test_the_matched_filter_weighs_a_fault_exactly(world):
    here = world(error=1e-6)
    other = here.log_probs(here.trainer_logits * 0.9)
    half = here.trainer + 0.5 * (other - here.trainer)
    found = explain(here.pair(half), Alternative(code="stale_tensor", detail="", log_probs=other))
    assert found.share == pytest.approx(0.5)
    assert not found.holds
