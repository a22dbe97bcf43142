"""Every command in the guides exists, with the options that it is given."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from hetero_rl.cli.main import app
from hetero_rl.config.load import key_paths, parse_override

ROOT = Path(__file__).parents[3]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
_LINE = re.compile(r"^\$ (hetero-rl .*)$", re.MULTILINE)
_INLINE = re.compile(r"`(hetero-rl [^`]+)`")


def commands(text):
    """Commands of code blocks and of sentences, as words, without the comments behind them."""
    for found in (*_LINE.findall(text), *_INLINE.findall(text)):
        yield shlex.split(found, comments=True)


def context_of(words):
    """The parsed command line; raises what the command line itself would be refused with."""
    command, arguments = get_command(app), words[1:]
    context = None
    while hasattr(command, "commands"):
        context = command.make_context(command.name or "hetero-rl", list(arguments), parent=context)
        rest = context._protected_args + context.args if hasattr(context, "_protected_args") else context.args
        if not rest:
            break
        if rest[0] not in command.commands:
            raise LookupError(f"no such command: {rest[0]}")
        command, arguments = command.commands[rest[0]], rest[1:]
    else:
        context = command.make_context(command.name, list(arguments), parent=context)
    return context


def all_commands():
    return [
        pytest.param(words, id=f"{file.stem}: {' '.join(words)}"[:100])
        for file in GUIDES
        for words in commands(file.read_text())
    ]


def test_there_is_a_guide_for_each_task():
    assert {file.stem for file in GUIDES} >= {
        "quickstart",
        "cuda-ascend",
        "cuda-rocm",
        "two-sites",
        "ray",
        "driver-upgrade",
        "troubleshooting",
    }
    assert len(all_commands()) > 60


@pytest.mark.parametrize("words", all_commands())
def test_a_command_of_a_guide_is_taken(words):
    if words[1:] == ["..."] or words[-1] in {"train,", "..."}:
        pytest.skip("a part of a sentence")
    context = context_of(words)

    for override in context.params.get("overrides") or ():
        path, _ = parse_override(override)
        assert any(".".join(path).startswith(known) for known in key_paths()), override


@pytest.mark.parametrize(
    "line",
    [
        "hetero-rl trian my.toml",
        "hetero-rl train --no-such-option",
        "hetero-rl workers dran x",
        "hetero-rl certs issue",
    ],
)
def test_a_command_that_does_not_exist_is_found(line):
    with pytest.raises(Exception, match=r"(?i)no such|missing"):
        context_of(shlex.split(line))


@pytest.mark.parametrize("file", GUIDES, ids=lambda file: file.stem)
def test_links_of_a_guide_lead_somewhere(file):
    for target in re.findall(r"\]\(([^)#]+)\)", file.read_text()):
        assert (file.parent / target).exists(), target


@pytest.mark.parametrize("file", GUIDES, ids=lambda file: file.stem)
def test_a_guide_says_what_was_run(file):
    text = file.read_text()
    assert "Run: " in text or "## What was run" in text
