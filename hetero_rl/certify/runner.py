"""Runs the checks in order on one engine and writes down what came of each.

start ─► load weights A ─► check ─► check ─► ... ─► close
                │            └─ failed, or the engine died ─► written down ─► a new engine, weights A ─► next check
                └─ cannot start: nothing else is run
"""

import asyncio
import contextlib
import dataclasses
import inspect
import time
from collections.abc import Callable, Mapping

from hetero_rl.certify import checks
from hetero_rl.certify.checks import Check
from hetero_rl.certify.subject import Subject
from hetero_rl.errors import EngineError, HeteroRLError
from hetero_rl.wire.messages import Capabilities, NumericsRecord
from hetero_rl.worker.engine import Engine

__all__ = ["CHECKS", "Certification", "CheckOutcome", "certify"]

CHECK_SECONDS = 600.0


async def _probe_card(subject: Subject, engine: Engine) -> checks.Figures:
    """A probe card with a trainer's own float32 log-probabilities passes, and one of other weights does not."""
    from hetero_rl.certify.models import probe_card  # imports torch

    return await probe_card(subject, engine)


CHECKS: Mapping[str, Check] = {
    "generation": checks.whole_groups,
    "stopping": checks.stopping,
    "log-prob-contract": checks.log_probs_contract,
    "distribution": checks.first_token_distribution,
    "greedy": checks.greedy,
    "scoring-equals-decoding": checks.scoring_equals_decoding,
    "determinism": checks.same_seed_same_tokens,
    "batch-independence": checks.batch_independence,
    "weight-update": checks.weights_round_trip,
    "refused-update": checks.refused_load,
    "pause-resume": checks.in_flight_update,
    "drain": checks.drained_update,
    "cancelling": checks.cancelling_frees,
    "probe-card": _probe_card,
}
"""Every check by the name that the record has for it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """What came of one check."""

    name: str
    rule: str
    passed: bool
    seconds: float
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    message: str = ""
    """Why it failed; empty otherwise."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Certification:
    """What came of all checks, and what they ran on."""

    outcomes: tuple[CheckOutcome, ...]
    numerics: NumericsRecord | None
    """None when the engine never started."""
    capabilities: Capabilities | None
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every check passed, and there was one."""
        return bool(self.outcomes) and all(outcome.passed for outcome in self.outcomes)


async def certify(
    subject: Subject,
    report: Callable[[CheckOutcome], None] = lambda _: None,
    *,
    wanted: Mapping[str, Check] = CHECKS,
) -> Certification:
    """Runs the checks on engines of the subject.

    Args:
        subject: What is certified.
        report: Called with each outcome as it comes.
        wanted: Checks by name.
    """
    started = time.perf_counter()
    outcomes: list[CheckOutcome] = []

    def note(outcome: CheckOutcome) -> None:
        outcomes.append(outcome)
        report(outcome)

    engine: Engine | None = None
    numerics: NumericsRecord | None = None
    capabilities: Capabilities | None = None
    try:
        for name, check in wanted.items():
            if engine is None:
                engine = await _serving(subject, note)
                if engine is None:
                    break
                numerics, capabilities = engine.numerics(), engine.capabilities()
            outcome = await _run(name, check, subject, engine)
            note(outcome)
            if not outcome.passed:
                await _close(engine)
                engine = None
    finally:
        if engine is not None:
            await _close(engine)
    seconds = time.perf_counter() - started
    return Certification(
        outcomes=tuple(outcomes), numerics=numerics, capabilities=capabilities, seconds=seconds
    )


async def _serving(subject: Subject, note: Callable[[CheckOutcome], None]) -> Engine | None:
    """An engine with weights A; None, with the reason noted, when there is none to be had."""
    started = time.perf_counter()
    try:
        engine = await subject.start()
        await engine.load_weights(subject.state(1), 1)
    except HeteroRLError as error:
        seconds = time.perf_counter() - started
        rule = "The engine starts and takes weights."
        note(CheckOutcome(name="start", rule=rule, passed=False, seconds=seconds, message=str(error)))
        return None
    return engine


async def _run(name: str, check: Check, subject: Subject, engine: Engine) -> CheckOutcome:
    rule = inspect.cleandoc(check.__doc__ or name)
    started = time.perf_counter()
    figures: Mapping[str, float] = {}
    message = ""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            figures = await check(subject, engine)
    except HeteroRLError as error:
        message = f"{type(error).__name__}: {error}"
    except TimeoutError:
        message = f"did not end within {CHECK_SECONDS:g} s"
    seconds = time.perf_counter() - started
    return CheckOutcome(
        name=name, rule=rule, passed=not message, seconds=seconds, figures=dict(figures), message=message
    )


async def _close(engine: Engine) -> None:
    with contextlib.suppress(EngineError):  # one that died has nothing left to close
        await engine.close()
