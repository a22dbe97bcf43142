"""The protocol files: style, compatibility with what was published, and generated code that matches them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROTO = ROOT / "proto"
GENERATED = ROOT / "hetero_rl/v1"
BUF = Path(sys.executable).with_name("buf")


def run(*command, cwd=ROOT):
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def buf():
    if not BUF.exists():
        pytest.fail(f"{BUF} is missing: `make test` installs it from constraints-test.txt")
    return lambda *arguments: run(BUF, *arguments, cwd=PROTO)


@pytest.fixture(scope="module")
def generator():
    """Python of the generator's own environment: HETERO_RL_PROTO_PYTHON, or .venv-proto beside the project."""
    python = Path(os.environ.get("HETERO_RL_PROTO_PYTHON", ROOT / ".venv-proto/bin/python"))
    if not python.exists():
        pytest.fail(
            f"{python} is missing: `make test` makes it from constraints-proto.txt, or name one in HETERO_RL_PROTO_PYTHON"
        )
    return python


def test_the_protocol_keeps_the_style_and_comments_every_field(buf):
    result = buf("lint")
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_protocol_is_formatted(buf):
    result = buf("format", "--diff", "--exit-code")
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_protocol_still_reads_what_was_published(buf):
    result = buf("breaking", "--against", "baseline.binpb")
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_field_that_changes_its_number_is_seen_as_breaking(buf, tmp_path):
    """The check above can fail."""
    for source in [PROTO / "buf.yaml", *PROTO.glob("hetero_rl/v1/*.proto")]:
        target = tmp_path / source.relative_to(PROTO)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text().replace("uint32 credits = 2;", "uint32 credits = 9;"))
    result = run(BUF, "breaking", "--against", PROTO / "baseline.binpb", cwd=tmp_path)
    assert result.returncode != 0
    assert "credits" in result.stdout


def test_the_generated_code_is_what_the_generator_makes_now(generator, tmp_path):
    result = run(generator, PROTO / "generate.py", tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    fresh = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in GENERATED.glob("*_pb2*")}
    assert fresh.keys() == committed.keys(), "run `make proto`"
    assert [name for name in fresh if fresh[name] != committed[name]] == [], "run `make proto`"


def test_the_generated_code_loads_under_the_oldest_protobuf_of_a_target_image(generator):
    modules = sorted(f"hetero_rl.v1.{path.stem}" for path in GENERATED.glob("*_pb2*.py"))
    program = (
        "import google.protobuf, importlib, sys\n"
        "assert google.protobuf.__version__ == '5.29.6', google.protobuf.__version__\n"
        "for name in sys.argv[1:]: importlib.import_module(name)"
    )
    result = run(generator, "-W", "error", "-c", program, *modules)
    assert result.returncode == 0, result.stderr


def test_the_message_parser_is_the_one_with_bounded_recursion():
    from google.protobuf.internal import api_implementation

    assert api_implementation.Type() == "upb"
