"""Calls that could execute bytes of others are nowhere in the package: what ruff's rules do not see."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CALLS = {"eval", "exec", "compile", "__import__"}
ARGUMENTS = {("weights_only", False), ("allow_pickle", True), ("shell", True), ("trust_remote_code", True)}
SOURCES = sorted([*(ROOT / "hetero_rl").rglob("*.py"), *(ROOT / "backends").glob("*/**/*.py")])


def banned(source):
    """Lines and names of banned calls."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in CALLS:
            found.append((node.lineno, node.func.id))
        for keyword in node.keywords:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if (keyword.arg, value) in ARGUMENTS:
                found.append((node.lineno, keyword.arg))
    return found


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("eval(text)", "eval"),
        ("exec(text)", "exec"),
        ("load(path, weights_only=False)", "weights_only"),
        ("numpy.load(path, allow_pickle=True)", "allow_pickle"),
        ("run(command, shell=True)", "shell"),
    ],
)
def test_a_banned_call_is_found(source, name):
    assert banned(f"\n{source}") == [(2, name)]


def test_a_method_of_the_same_name_is_not_banned():
    assert banned("model.eval()\nre.compile(pattern)\nrun(command, shell=False)") == []


def test_the_package_has_no_banned_call():
    assert len(SOURCES) > 100
    found = {str(path.relative_to(ROOT)): banned(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: calls for path, calls in found.items() if calls} == {}
