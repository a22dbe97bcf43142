"""Each check of the certification passes on an engine that keeps the rules and fails on one that breaks its rule."""

import asyncio
import dataclasses
import itertools
import json
import re

import pytest
import torch

from hetero_rl.certify.runner import CHECKS, certify
from hetero_rl.certify.subject import Subject, Tolerance
from hetero_rl.errors import EngineError, InvalidMessageError
from hetero_rl.wire.columns import float32_column, float32_view
from hetero_rl.wire.messages import FinishReason
from hetero_rl.worker.engine import CompletionSpan, EngineSettings
from hetero_rl.worker.engines.scripted import ScriptedEngine

pytestmark = pytest.mark.asyncio


@pytest.fixture
def subject(tmp_path):
    """Makes a subject of an engine class on a vocabulary of 16."""
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 16}))
    (tmp_path / "vocab.txt").write_text("a")
    settings = EngineSettings(model_dir=tmp_path, dtype="float32", max_concurrent_sequences=256)
    return lambda engine_class: Subject(
        engine_class=engine_class,
        model_dir=tmp_path,
        state=lambda seed: [("weight", torch.tensor([float(seed), 1.0])), ("bias", torch.tensor([0.0]))],
        vocabulary_size=16,
        stop_token=2,
        prompt=(3, 5, 7, 11),
        tolerance=Tolerance(1e-4, 1e-3),
        settings=settings,
    )


def _changing(**fields):
    """An engine whose completions are changed by functions of each completion, one for a field."""

    class Changing(ScriptedEngine):
        async def generate(self, work):
            return [
                dataclasses.replace(c, **{name: change(c) for name, change in fields.items()})
                for c in await super().generate(work)
            ]

    return Changing


class Reversed(ScriptedEngine):
    async def generate(self, work):
        return list(reversed(await super().generate(work)))


class Blurred(ScriptedEngine):
    """Scores other log-probabilities than it samples with."""

    async def score(self, work):
        return float32_column(value - 0.01 for value in float32_view(await super().score(work)))


class Uniform(ScriptedEngine):
    """Samples uniformly and reports the model's log-probabilities."""

    async def generate(self, work):
        drawn = await super().generate(work)
        return [
            dataclasses.replace(completion, token_ids=[position % 16], log_probs=[-1.0])
            for position, completion in enumerate(drawn)
        ]


class Unseeded(ScriptedEngine):
    calls = 0

    async def generate(self, work):
        type(self).calls += 1
        sampling = dataclasses.replace(work.sampling, seed=self.calls)
        return await super().generate(dataclasses.replace(work, sampling=sampling))


class Seedless(ScriptedEngine):
    async def generate(self, work):
        sampling = dataclasses.replace(work.sampling, seed=7)
        return await super().generate(dataclasses.replace(work, sampling=sampling))


class Deaf(ScriptedEngine):
    """Says that it loads weights and keeps the first ones."""

    async def load_weights(self, tensors, version):
        if self._version:
            self._version = version
            return
        await super().load_weights(tensors, version)


class Drifting(ScriptedEngine):
    """Each load leaves a trace of how many there were."""

    async def load_weights(self, tensors, version):
        await super().load_weights(tensors, version)
        self._weights += bytes([version])


class Credulous(ScriptedEngine):
    """Takes any weights."""

    async def load_weights(self, tensors, version):
        try:
            await super().load_weights(tensors, version)
        except InvalidMessageError:
            self._version = version


class Leaking(ScriptedEngine):
    """Never forgets a cancelled completion."""

    @property
    def unfinished_sequences(self):
        return super().unfinished_sequences + 1


class Hasty(ScriptedEngine):
    """Says that it drains, and does not."""

    async def load_weights(self, tensors, version):
        settings, self._settings = (
            self._settings,
            dataclasses.replace(self._settings, drain_before_update=False),
        )
        await super().load_weights(tensors, version)
        self._settings = settings


CALLS = itertools.count(1)

BROKEN = [
    ("generation", Reversed, "sample indices 1, 4, 6"),
    ("generation", _changing(token_ids=lambda c: [*c.token_ids, 16]), "1 to 12|outside the vocabulary"),
    ("stopping", _changing(finish_reason=lambda _: FinishReason.LENGTH), "stop token 2 comes 1 times"),
    ("log-prob-contract", _changing(log_probs=lambda c: [0.5] * len(c.token_ids)), "log-probabilities"),
    ("log-prob-contract", _changing(log_probs=lambda c: c.log_probs[:-1]), r"have \d+ log-probabilities"),
    ("distribution", Uniform, "not drawn from the distribution"),
    ("greedy", _changing(log_probs=lambda c: [-0.1] * len(c.token_ids)), "greedy work reports"),
    ("greedy", _changing(token_ids=lambda _: [0, 1, 0, 1, 0]), "below the most probable"),
    ("scoring-equals-decoding", Blurred, "differ by 0.01 on average"),
    (
        "scoring-equals-decoding",
        _changing(log_probs=lambda c: [float("nan")] * len(c.token_ids)),
        "differ by nan",
    ),
    ("determinism", Unseeded, "the same seed gave other tokens"),
    ("determinism", Seedless, "another seed gave the same tokens"),
    (
        "batch-independence",
        _changing(log_probs=lambda c: [-float(next(CALLS))] * len(c.token_ids)),
        "alone against",
    ),
    ("weight-update", Deaf, "were not loaded"),
    ("weight-update", Drifting, "it must be exact"),
    ("refused-update", Credulous, "a tensor missing was loaded"),
    (
        "pause-resume",
        _changing(spans=lambda c: (CompletionSpan(0, len(c.token_ids), c.spans[-1].weight_version),)),
        "ended before an update|around an update",
    ),
    ("drain", Hasty, "name versions"),
    ("cancelling", Leaking, "still counted"),
]


async def outcomes(subject, *names):
    return await certify(subject, wanted={name: CHECKS[name] for name in names})


async def test_an_engine_that_keeps_the_rules_passes_every_check_but_that_of_a_real_model(subject):
    wanted = [name for name in CHECKS if name != "probe-card"]
    certification = await outcomes(subject(ScriptedEngine), *wanted)

    assert [outcome.message for outcome in certification.outcomes] == [""] * len(wanted)
    assert certification.passed
    assert certification.numerics.engine == "scripted"


@pytest.mark.parametrize(("name", "engine_class", "message"), BROKEN)
async def test_a_broken_rule_fails_its_check(subject, name, engine_class, message):
    certification = await outcomes(subject(engine_class), name)

    (outcome,) = certification.outcomes
    assert not outcome.passed
    assert not certification.passed
    assert re.search(message, outcome.message), outcome.message


async def test_an_engine_that_dies_is_replaced_for_the_next_check(subject):
    class Mortal(ScriptedEngine):
        started = 0

        async def start(self):
            type(self).started += 1
            self.number = self.started
            await super().start()

        async def generate(self, work):
            if self.number == 1:
                raise EngineError("it died")
            return await super().generate(work)

    certification = await outcomes(subject(Mortal), "generation", "log-prob-contract")

    assert [(o.name, o.passed) for o in certification.outcomes] == [
        ("generation", False),
        ("log-prob-contract", True),
    ]
    assert certification.outcomes[0].message == "EngineError: it died"


async def test_an_engine_that_never_starts_is_one_failed_outcome(subject):
    class Stillborn(ScriptedEngine):
        async def start(self):
            raise EngineError("no device")

    certification = await outcomes(subject(Stillborn), "generation", "greedy")

    assert [(o.name, o.message) for o in certification.outcomes] == [("start", "no device")]
    assert certification.numerics is None
    assert not certification.passed


async def test_a_check_that_hangs_is_ended(subject, monkeypatch):
    class Hanging(ScriptedEngine):
        async def generate(self, work):
            await asyncio.Event().wait()

    monkeypatch.setattr("hetero_rl.certify.runner.CHECK_SECONDS", 0.01)

    certification = await outcomes(subject(Hanging), "generation")

    assert certification.outcomes[0].message == "did not end within 0.01 s"
