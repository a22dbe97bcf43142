"""The CPU backend as its entry point declares it."""

import pytest

from hetero_rl.errors import BackendNotFoundError, ConfigError
from hetero_rl.worker.backend import find_backend
from hetero_rl.worker.engines.scripted import ScriptedEngine
from hetero_rl.worker.engines.transformers import TransformersEngine


def test_it_is_found_by_name_and_starts_transformers_by_default():
    backend = find_backend("cpu")
    assert backend.vendor == "cpu"
    assert backend.engine_class() is TransformersEngine
    assert backend.engine_class("scripted") is ScriptedEngine


def test_a_cpu_is_always_there_and_named():
    report = find_backend("cpu").detect()
    assert report.available
    assert "cores" in report.devices[0]


def test_an_unknown_engine_lists_those_there_are():
    with pytest.raises(ConfigError, match=r"nonesuch.*scripted.*transformers.*vllm"):
        find_backend("cpu").engine_class("nonesuch")


def test_an_unknown_backend_lists_those_installed():
    with pytest.raises(BackendNotFoundError, match=r"tpu.*installed: .*cpu"):
        find_backend("tpu")
