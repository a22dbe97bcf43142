"""What a backend declares, and what comes of it for a worker process."""

import dataclasses

import pytest

from hetero_rl.errors import ConfigError, EngineError
from hetero_rl.worker.backend import Backend, DeviceReport, Profile, Quirk

REPORT = DeviceReport(available=True, devices=(), advice="")
BACKEND = Backend(
    name="vendor",
    vendor="vendor",
    description="",
    engines={"vllm": "nowhere:Engine", "other": "nowhere:Other"},
    default_engine="vllm",
    detect=lambda: REPORT,
    environment={"A": "backend", "B": "backend", "C": "backend"},
    quirks=(
        Quirk(
            name="layout",
            symptom="wrong",
            fix="off",
            applies_to="all",
            evidence="read",
            environment={"B": "quirk", "C": "quirk"},
            engine_options={"vllm": {"config": {"layout": 0}, "eager": False}},
        ),
    ),
    profiles={
        "reproducible": Profile(
            description="slow",
            environment={"C": "profile"},
            engine_options={"vllm": {"config": {"strict": True}, "eager": True}},
        )
    },
)


def test_a_quirk_wins_over_the_backend_and_a_profile_over_both():
    assert BACKEND.process_environment() == {"A": "backend", "B": "quirk", "C": "quirk"}
    assert BACKEND.process_environment("reproducible") == {"A": "backend", "B": "quirk", "C": "profile"}


def test_engine_options_of_quirks_and_profile_are_merged_for_the_engine_they_name():
    assert BACKEND.engine_options() == {"config": {"layout": 0}, "eager": False}
    assert BACKEND.engine_options("vllm", "reproducible") == {
        "config": {"layout": 0, "strict": True},
        "eager": True,
    }
    assert BACKEND.engine_options("other", "reproducible") == {}


def test_a_users_own_engine_options_win_and_leave_the_fixes_beside_them():
    own = {"config": {"extra": 2}, "eager": None}

    assert BACKEND.engine_options(own=own) == {"config": {"layout": 0, "extra": 2}, "eager": None}


def test_an_unknown_profile_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="'fast'; it has default, reproducible"):
        BACKEND.process_environment("fast")


def test_an_engine_whose_packages_are_missing_says_how_they_are_installed():
    declared = dataclasses.replace(
        BACKEND, engines={"vllm": "nowhere.engine:Engine"}, engine_install={"vllm": "use the image"}
    )

    with pytest.raises(EngineError, match=r"'vllm' of backend 'vendor' needs .*'nowhere'.*use the image"):
        declared.engine_class()
