import json

import pytest

from hetero_rl.errors import DamagedError, StorageError
from hetero_rl.reports.findings import Finding, Verdict, finding_from_record, finding_record
from hetero_rl.reports.record import read_record, record_text, write_text
from hetero_rl.reports.text import escape, format_number, visible


def test_a_report_comes_back_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "a.json"
    write_text(path, record_text("calibration", 2, {"a": [1.5, "ü"], "b": {"c": None}}))
    record = read_record(path, "calibration", newest=2)
    assert record["a"] == [1.5, "ü"]
    assert record["schema_version"] == 2


def test_numbers_that_are_not_finite_become_null():
    record = json.loads(record_text("audit", 1, {"a": [float("nan"), float("inf")], "b": {"c": -0.0}}))
    assert record["a"] == [None, None]


def test_a_newer_schema_is_refused_with_both_versions(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, record_text("audit", 7, {}))
    with pytest.raises(StorageError, match=r"schema_version 7.*reads up to 1"):
        read_record(path, "audit", newest=1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "hetero-rl/audit"}', "[" * 100_000])
def test_what_is_no_report_is_refused(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DamagedError):
        read_record(path, "audit", newest=1)


def test_another_kind_is_refused(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, record_text("audit", 1, {}))
    with pytest.raises(DamagedError, match="not a calibration report"):
        read_record(path, "calibration", newest=1)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(StorageError, match="absent"):
        read_record(tmp_path / "absent.json", "audit", newest=1)


def test_a_finding_survives_json():
    finding = Finding(
        verdict=Verdict.UNUSABLE, code="c", cause="because", evidence=("1", "2"), next_step="do", subject="s"
    )
    assert finding_from_record(json.loads(json.dumps(finding_record(finding)))) == finding
    with pytest.raises(DamagedError):
        finding_from_record({"verdict": "fine"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123456, "0.0123"),
        (123456.7, "123457"),
        (3e-9, "3.00e-09"),
        (1.0, "1"),
        (1.25, "1.25"),
        (0.0, "0"),
        (7, "7"),
        (None, "-"),
        (True, "yes"),
        (float("nan"), "not known"),
        (float("-inf"), "-∞"),
        ("as it is", "as it is"),
    ],
)
def test_numbers_read_as_people_write_them(value, text):
    assert format_number(value) == text


def test_hidden_characters_are_shown():
    assert visible("a\x1b[0m\u202eb\n") == "a\\u001b[0m\\u202eb\n"
    assert escape('<a href="x">') == "&lt;a href=&quot;x&quot;&gt;"
    assert "(30000 characters)" in visible("a" * 30_000)
