"""Recorded machines: what a vendor's tool prints and which files lie where, without the devices.

The texts are recorded from the vendors' documents and from public bug reports; none was read on a machine of ours.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hetero_rl.deploy.host import Host
from hetero_rl.worker.backend import Backend

BACKENDS = Path(__file__).parents[3] / "backends"


@pytest.fixture
def declared(monkeypatch) -> Callable[[str], Backend]:
    """The backend of a vendor as its distribution declares it, installed or not."""

    def _declared(name: str) -> Backend:
        monkeypatch.syspath_prepend(str(BACKENDS / name))
        __import__(f"hetero_rl_backend_{name}")
        return sys.modules[f"hetero_rl_backend_{name}"].BACKEND

    return _declared


@pytest.fixture
def machine(tmp_path) -> Callable[..., Host]:
    """Makes a machine of files (path to text) and tools (command line to output); an output may be None for failure."""

    def _machine(
        files: Mapping[str, str] | None = None,
        tools: Mapping[str, str | None] | None = None,
        **environ: str,
    ) -> Host:
        for name, text in (files or {}).items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        outputs = dict(tools or {})
        return Host(root=tmp_path, run=lambda arguments: outputs.get(" ".join(arguments)), environ=environ)

    return _machine
