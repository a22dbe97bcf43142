from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from hetero_rl.cli.reporting import ReportingGroup, exit_code
from hetero_rl.errors import (
    BackendNotFoundError,
    ConfigError,
    HeteroRLError,
    RefusedError,
    StorageError,
    TaskError,
    UnreachableError,
)


@pytest.fixture
def failing():
    """Runs a command that raises the given error; returns the result."""

    def _failing(error: BaseException, *arguments: str):
        app = typer.Typer(cls=ReportingGroup, pretty_exceptions_enable=False)

        @app.callback()
        def main(
            debug: Annotated[bool, typer.Option("--debug", envvar="HETERO_RL_DEBUG")] = False,
        ) -> None:
            pass

        @app.command()
        def fail() -> None:
            raise error

        return CliRunner().invoke(app, [*arguments, "fail"])

    return _failing


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (BackendNotFoundError("x"), 2),
        (TaskError("x"), 2),
        (RefusedError("x", "MODEL_MISMATCH"), 2),
        (RefusedError("x", "STORAGE_FULL"), 1),
        (StorageError("x"), 1),
        (UnreachableError("x"), 1),
        (HeteroRLError("x"), 1),
    ],
)
def test_what_only_another_setting_can_mend_ends_with_2_and_everything_else_with_1(error, code):
    assert exit_code(error) == code


def test_an_expected_error_is_one_message_on_stderr_without_a_traceback(failing):
    result = failing(ConfigError("run.steps = 0: too small"))

    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "Error: run.steps = 0: too small\n")


def test_debug_shows_where_an_error_came_from(failing):
    error = ConfigError("x")

    assert failing(error, "--debug").exception is error


def test_the_environment_turns_debug_on(failing, monkeypatch):
    monkeypatch.setenv("HETERO_RL_DEBUG", "1")
    error = ConfigError("x")

    assert failing(error).exception is error


def test_an_unexpected_error_is_not_swallowed(failing):
    error = RuntimeError("a bug")

    assert failing(error).exception is error


def test_an_interrupted_command_ends_as_a_shell_expects(failing):
    assert failing(KeyboardInterrupt()).exit_code == 130
