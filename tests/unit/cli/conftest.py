import logging

import pytest
from typer.testing import CliRunner

from hetero_rl.cli.main import app


@pytest.fixture
def cli(monkeypatch, _root_logger):
    """Runs `hetero-rl` with arguments in this process, on a wide terminal without colours."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def _root_logger():
    """Commands set up logging for a whole process; here the process goes on."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers) - set(before):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
