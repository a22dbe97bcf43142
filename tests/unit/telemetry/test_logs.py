"""Log records for machines, and what never stands in one."""

import datetime as dt
import json
import logging
import sys

import pytest

import hetero_rl
from hetero_rl.config.tree import SecurityConfig
from hetero_rl.deploy.authority import Authority
from hetero_rl.telemetry import logs
from hetero_rl.telemetry.logs import JsonFormatter, TextFormatter, describe_process, hide
from hetero_rl.wire.bundle import write_bundle
from hetero_rl.wire.credentials import channel_credentials
from hetero_rl.wire.roles import Role

KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\nvQ\n-----END PRIVATE KEY-----"


pytestmark = pytest.mark.usefixtures("forgotten")


@pytest.fixture
def forgotten(monkeypatch):
    monkeypatch.setattr(logs, "_fields", {})
    monkeypatch.setattr(logs, "_secrets", set())


def record(message, *arguments, exc_info=None):
    return logging.LogRecord("hetero_rl.x", logging.INFO, "x.py", 1, message, arguments, exc_info)


def parsed(entry):
    return json.loads(JsonFormatter().format(entry))


def test_a_record_is_one_object_on_one_line_with_who_says_it():
    describe_process(role="worker", run="mine", worker="ascend-0")
    describe_process(weight_version=7)

    text = JsonFormatter().format(record("version %d\nloaded", 7))
    entry = json.loads(text)

    assert "\n" not in text
    assert dt.datetime.fromisoformat(entry.pop("time")).tzinfo is not None
    assert entry == {
        "level": "info",
        "logger": "hetero_rl.x",
        "message": "version 7\nloaded",
        "version": hetero_rl.__version__,
        "role": "worker",
        "run": "mine",
        "worker": "ascend-0",
        "weight_version": 7,
    }


def test_an_exception_is_part_of_the_object():
    try:
        int("no")
    except ValueError:
        entry = parsed(record("failed", exc_info=sys.exc_info()))

    assert entry["exception"].startswith("Traceback")


@pytest.mark.parametrize("formatter", [JsonFormatter, TextFormatter])
@pytest.mark.parametrize(
    "said",
    [
        "token s3cret-token-value",
        KEY,
        KEY[:-30],
        "Authorization: Bearer abcdefgh12345",
        "bearer abcdefgh12345",
    ],
)
def test_a_secret_is_printed_in_no_format(formatter, said):
    hide("s3cret-token-value")

    text = formatter().format(record("it said %s", said))

    assert "[hidden]" in text
    assert not any(part in text for part in ("s3cret", "MIIE", "abcdefgh12345"))


def test_the_token_and_the_key_of_a_bundle_are_hidden_once_it_was_read(tmp_path):
    bundle = Authority.create(tmp_path / "certs", days=1).issue("w", Role.WORKER, [], 1)
    file = tmp_path / "w.credentials"
    write_bundle(bundle, file)
    token = bundle.token
    assert token in JsonFormatter().format(record("leaked %s", token))

    channel_credentials(SecurityConfig(credentials=file))

    assert token not in JsonFormatter().format(record("leaked %s", token))


def test_a_short_text_hides_no_words():
    hide("", "on")
    assert parsed(record("once only"))["message"] == "once only"
