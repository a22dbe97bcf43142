"""The record of a certification: what it says, what its page promises, and that an edited one is found out."""

import json

import pytest

from hetero_rl.certify.record import (
    Circumstances,
    certification_page,
    read_certification,
    write_certification,
)
from hetero_rl.certify.runner import Certification, CheckOutcome
from hetero_rl.certify.subject import Tolerance
from hetero_rl.errors import DamagedError
from hetero_rl.reports.inspection import broken_promises
from hetero_rl.wire.messages import NumericsRecord


def numerics(*, emulated=False) -> NumericsRecord:
    return NumericsRecord(
        engine="vllm",
        engine_version="0.23.0",
        torch_version="2.10.0",
        device_vendor="ascend",
        device_name="Ascend 910B4",
        driver_version="25.2.0",
        runtime_version="9.1.0",
        data_type="bfloat16",
        attention_backend="ascend",
        log_probs_mode="raw",
        knobs={"VLLM_ASCEND_ENABLE_NZ": "0"},
        emulated=emulated,
    )


def certification(*, passed=True, emulated=False) -> Certification:
    outcomes = (
        CheckOutcome(
            name="scoring-equals-decoding",
            rule="Log-probabilities agree.",
            passed=True,
            seconds=1.5,
            figures={"mean_absolute_difference": 0.0125},
        ),
        CheckOutcome(
            name="weight-update",
            rule="Loading A, B, A again is exact.",
            passed=passed,
            seconds=2.0,
            message="" if passed else "A, B, A again differs <b>by 0.1</b>",
        ),
    )
    return Certification(
        outcomes=outcomes, numerics=numerics(emulated=emulated), capabilities=None, seconds=3.5
    )


CIRCUMSTANCES = Circumstances(
    backend="ascend",
    engine="vllm",
    profile="default",
    model="tiny",
    data_type="bfloat16",
    tolerance=Tolerance(0.1, 2.0),
    devices=("Ascend 910B4",),
    versions={"cann": "9.1.0", "driver": "25.2.0"},
    signed_off_by="someone@host",
    created_at="2026-11-30T12:00:00+00:00",
)


def test_both_files_are_written_and_the_record_reads_back(tmp_path):
    json_file, page_file = write_certification(tmp_path, certification(), CIRCUMSTANCES)

    record = read_certification(json_file)

    assert (json_file.name, page_file.name) == (
        "certification-ascend-vllm.json",
        "certification-ascend-vllm.html",
    )
    assert (record["passed"], record["emulated"], record["signed_off_by"]) == (True, False, "someone@host")
    assert record["checks"][0]["figures"] == {"mean_absolute_difference": 0.0125}
    assert record["numerics_id"] == numerics().numerics_id
    assert record["versions"]["cann"] == "9.1.0"


def test_a_record_that_was_edited_is_found_out(tmp_path):
    json_file, _ = write_certification(tmp_path, certification(passed=False), CIRCUMSTANCES)
    record = json.loads(json_file.read_text())
    json_file.write_text(json.dumps({**record, "passed": True}))

    with pytest.raises(DamagedError, match="changed after it was written"):
        read_certification(json_file)


def test_the_page_keeps_the_promises_of_every_page_and_opens_with_the_outcome():
    page = certification_page(certification(), CIRCUMSTANCES)

    assert broken_promises(page) == []
    assert "all 2 checks passed" in page
    assert "Ascend 910B4" in page
    assert "VLLM_ASCEND_ENABLE_NZ" in page


def test_a_failed_check_is_named_first_and_its_text_is_escaped():
    page = certification_page(certification(passed=False), CIRCUMSTANCES)

    assert "unusable: weight-update: Loading A, B, A again is exact." in page
    assert "&lt;b&gt;by 0.1&lt;/b&gt;" in page


def test_an_emulated_certification_says_that_it_says_nothing_about_the_chip():
    page = certification_page(certification(emulated=True), CIRCUMSTANCES)

    assert "the numerics are emulated, so nothing is said about the chip" in page
    assert f"{numerics(emulated=True).numerics_id} (emulated)" in page
