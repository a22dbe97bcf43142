"""One function for each rule of the engine interface. Each takes a subject and an engine that serves version 1.

    check(subject, engine) ──► figures that were measured        raises CheckFailedError naming rule and numbers

A check leaves the engine as it found it: weights of seed 1 loaded, nothing running. Checks that need an engine of their
own start it from the subject and close it.
"""

import asyncio
import collections
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from hetero_rl.certify.subject import Subject, completion_scores, generate_work, running_tokens, scored
from hetero_rl.errors import BackendError, InvalidMessageError
from hetero_rl.wire.messages import FinishReason
from hetero_rl.worker.engine import Completion, Engine

__all__ = [
    "Check",
    "CheckFailedError",
    "Figures",
    "batch_independence",
    "cancelling_frees",
    "chi_squared_limit",
    "drained_update",
    "first_token_distribution",
    "greedy",
    "in_flight_update",
    "log_probs_contract",
    "refused_load",
    "same_seed_same_tokens",
    "scoring_equals_decoding",
    "stopping",
    "weights_round_trip",
    "whole_groups",
]

Figures: TypeAlias = Mapping[str, float]
Check: TypeAlias = Callable[[Subject, Engine], Awaitable[Figures]]

_FIRST_TOKENS = 3000
_PAUSE = 1e-3  # seconds between two looks at what has been generated
_IN_FLIGHT_LIMITS = (200, 800, 1600)
"""Lengths that are tried in turn, until an update comes while the completions run."""


class CheckFailedError(BackendError):
    """An engine does not do what every engine must."""


def _require(met: bool, rule: str) -> None:
    if not met:
        raise CheckFailedError(rule)


def _agree(
    subject: Subject, pairs: Sequence[tuple[Sequence[float], Sequence[float]]], what: str
) -> dict[str, float]:
    """Mean and largest difference of pairs of log-probabilities; raises when rounding does not explain them."""
    differences = [abs(a - b) for first, second in pairs for a, b in zip(first, second, strict=True)]
    _require(bool(differences), f"{what}: there was nothing to compare")
    mean, most = math.fsum(differences) / len(differences), max(differences)
    tolerance = subject.tolerance
    # Written so that NaN fails too.
    _require(
        mean <= tolerance.mean and most <= tolerance.most,
        f"{what}: log-probabilities differ by {mean:.3g} on average and {most:.3g} at most; rounding explains "
        f"{tolerance.mean:g} and {tolerance.most:g}",
    )
    return {"mean_absolute_difference": mean, "max_absolute_difference": most, "tokens": len(differences)}


async def _against_scoring(
    subject: Subject, engine: Engine, completions: Sequence[Completion], what: str
) -> dict[str, float]:
    scores = await completion_scores(engine, subject.prompt, completions)
    reported = [completion.log_probs or () for completion in completions]
    return _agree(subject, list(zip(reported, scores, strict=True)), what)


def _tokens(completions: Sequence[Completion]) -> list[list[int]]:
    return [list(completion.token_ids) for completion in completions]


async def whole_groups(subject: Subject, engine: Engine) -> Figures:
    """One completion comes for each sample index, in order, of 1 to max_new_tokens tokens of the vocabulary."""
    completions = await engine.generate(generate_work(subject, indices=(1, 4, 6)))
    found = [completion.sample_index for completion in completions]
    _require(found == [1, 4, 6], f"sample indices 1, 4, 6 were asked for, {found} came")
    for completion in completions:
        _require(
            1 <= len(completion.token_ids) <= 12,
            f"a completion has {len(completion.token_ids)} tokens, asked for were 1 to 12",
        )
        _require(
            all(0 <= token < subject.vocabulary_size for token in completion.token_ids),
            f"a token lies outside the vocabulary of {subject.vocabulary_size}",
        )
    return {"completions": len(completions)}


async def log_probs_contract(subject: Subject, engine: Engine) -> Figures:
    """There is one log-probability for each token, finite and not above 0."""
    completions = await engine.generate(generate_work(subject, samples=16))
    for completion in completions:
        values = completion.log_probs or ()
        _require(
            len(values) == len(completion.token_ids),
            f"{len(completion.token_ids)} tokens have {len(values)} log-probabilities",
        )
        _require(all(math.isfinite(v) and v <= 0 for v in values), f"log-probabilities {list(values)}")
    return {"tokens": sum(len(completion.token_ids) for completion in completions)}


async def scoring_equals_decoding(subject: Subject, engine: Engine) -> Figures:
    """Log-probabilities of generation agree with scoring the same tokens."""
    completions = await engine.generate(generate_work(subject, samples=16))
    return await _against_scoring(subject, engine, completions, "scoring against decoding")


async def first_token_distribution(subject: Subject, engine: Engine) -> Figures:
    """First tokens are drawn from the distribution that scoring reports: a chi-squared test at 99.99 %."""
    work = generate_work(subject, samples=_FIRST_TOKENS, max_new_tokens=1)
    drawn = collections.Counter(c.token_ids[0] for c in await engine.generate(work))
    scores = await scored(engine, [[*subject.prompt, token] for token in range(subject.vocabulary_size)])
    expected = [_FIRST_TOKENS * math.exp(values[-1]) for values in scores]
    total = math.fsum(expected)
    _require(
        abs(total / _FIRST_TOKENS - 1) <= 100 * subject.tolerance.mean,
        f"probabilities of all tokens sum to {total / _FIRST_TOKENS:.4f}",
    )
    often = [(drawn[token], mean) for token, mean in enumerate(expected) if mean >= 5]
    statistic = math.fsum((count - mean) ** 2 / mean for count, mean in often)
    limit = chi_squared_limit(max(1, len(often) - 1))
    _require(
        statistic < limit,
        f"tokens are not drawn from the distribution that scoring reports: chi-squared {statistic:.1f} of "
        f"{len(often)} frequent tokens, {limit:.1f} is the 99.99 % quantile",
    )
    return {"chi_squared": statistic, "limit": limit, "tokens": _FIRST_TOKENS}


def chi_squared_limit(degrees: int) -> float:
    """99.99 % quantile of the chi-squared distribution (Wilson and Hilferty, 1931)."""
    normal_quantile = 3.719
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + normal_quantile * spread**0.5) ** 3)


async def stopping(subject: Subject, engine: Engine) -> Figures:
    """A stop token ends a completion and is part of it; without one the length limit does."""
    stop = subject.stop_token
    completions = await engine.generate(generate_work(subject, samples=32, max_new_tokens=64))
    for completion in completions:
        stopped = completion.finish_reason == FinishReason.STOP
        tokens = list(completion.token_ids)
        _require(tokens.count(stop) == stopped, f"stop token {stop} comes {tokens.count(stop)} times")
        _require((tokens[-1] == stop) == stopped, "a stopped completion does not end with its stop token")
    for completion in await engine.generate(generate_work(subject, stop_token_ids=(), max_new_tokens=7)):
        _require(
            len(completion.token_ids) == 7 and completion.finish_reason == FinishReason.LENGTH,
            f"without a stop token 7 tokens were asked for, {len(completion.token_ids)} came, "
            f"{completion.finish_reason.name}",
        )
    return {"stopped": sum(completion.finish_reason == FinishReason.STOP for completion in completions)}


async def greedy(subject: Subject, engine: Engine) -> Figures:
    """Greedy work takes the most probable token and reports no log-probabilities."""
    (completion,) = await engine.generate(
        generate_work(subject, samples=1, temperature=0.0, max_new_tokens=5)
    )
    _require(
        completion.log_probs is None, "greedy work reports log-probabilities of a distribution it has not"
    )
    worst = 0.0
    for position, token in enumerate(completion.token_ids):
        before = [*subject.prompt, *completion.token_ids[:position]]
        candidates = await scored(engine, [[*before, other] for other in range(subject.vocabulary_size)])
        worst = max(worst, max(values[-1] for values in candidates) - candidates[token][-1])
    _require(worst <= subject.tolerance.most, f"a token {worst:.3g} below the most probable one was taken")
    return {"below_best": worst}


async def same_seed_same_tokens(subject: Subject, engine: Engine) -> Figures:
    """The same request gives the same tokens, another seed other ones; a group's samples differ."""
    first = await engine.generate(generate_work(subject, samples=8))
    again = await engine.generate(generate_work(subject, samples=8))
    other = await engine.generate(generate_work(subject, samples=8, seed=2))
    _require(_tokens(first) == _tokens(again), "the same seed gave other tokens")
    _require(_tokens(first) != _tokens(other), "another seed gave the same tokens")
    _require(len({tuple(tokens) for tokens in _tokens(first)}) > 1, "all samples of a group are alike")
    figures = [
        abs(a - b)
        for one, two in zip(first, again, strict=True)
        for a, b in zip(one.log_probs or (), two.log_probs or (), strict=True)
    ]
    return {"max_absolute_difference": max(figures, default=0.0)}


async def batch_independence(subject: Subject, engine: Engine) -> Figures:
    """A group has the same tokens alone and among others, as far as rounding allows; figures say how far it does."""
    work = generate_work(subject, samples=4)
    alone = await engine.generate(work)
    span = subject.vocabulary_size - 3
    prompts = [[3 + (7 * number + at) % span for at in range(1 + number % 9)] for number in range(12)]
    others = [
        generate_work(subject, prompt=prompt, group=f"o{number}") for number, prompt in enumerate(prompts)
    ]
    among, *_ = await asyncio.gather(*map(engine.generate, [work, *others]))
    same = [list(a.token_ids) == list(b.token_ids) for a, b in zip(alone, among, strict=True)]
    alike = [(a, b) for a, b, equal in zip(alone, among, same, strict=True) if equal]
    figures = _agree(
        subject,
        [(a.log_probs or (), b.log_probs or ()) for a, b in alike],
        "a group alone against among others",
    )
    return {**figures, "completions_with_the_same_tokens": sum(same), "completions": len(same)}


async def weights_round_trip(subject: Subject, engine: Engine) -> Figures:
    """Loading A, B, A again scores exactly as A did; tokens come from the new weights and their spans say so."""
    span = subject.vocabulary_size - 3
    sequences = [list(subject.prompt), [3 + (5 * at) % span for at in range(6)]]
    first, base = await scored(engine, sequences), engine.loaded_version
    await engine.load_weights(subject.state(2), base + 1)
    between = await scored(engine, sequences)
    completions = await engine.generate(generate_work(subject, samples=8))
    versions = {span.weight_version for completion in completions for span in completion.spans}
    await _against_scoring(subject, engine, completions, "tokens after a load against scoring under it")
    await engine.load_weights(subject.state(1), base + 2)
    again = await scored(engine, sequences)
    moved = max(abs(a - b) for x, y in zip(first, between, strict=True) for a, b in zip(x, y, strict=True))
    rest = max(abs(a - b) for x, y in zip(first, again, strict=True) for a, b in zip(x, y, strict=True))
    _require(moved > 0, "other weights gave the same log-probabilities: they were not loaded")
    _require(versions == {base + 1}, f"tokens after loading version {base + 1} name {sorted(versions)}")
    _require(
        engine.loaded_version == base + 2,
        f"version {base + 2} was loaded, the engine says {engine.loaded_version}",
    )
    _require(again == first, f"A, B, A again differs from A by up to {rest:.3g}: it must be exact")
    return {"moved_by_b": moved, "left_after_return": rest}


async def refused_load(subject: Subject, engine: Engine) -> Figures:
    """A load that does not fit the model is refused and leaves the old weights serving."""
    before = await scored(engine, [list(subject.prompt)])
    version = engine.loaded_version
    state = subject.state(2)
    for defect, damaged in (("missing", state[:-1]), ("twice", [*state, state[-1]])):
        try:
            await engine.load_weights(damaged, version + 1)
        except InvalidMessageError:
            pass
        else:
            raise CheckFailedError(f"a version with a tensor {defect} was loaded")
    _require(engine.loaded_version == version, "a refused load changed the version")
    _require(await scored(engine, [list(subject.prompt)]) == before, "a refused load changed the weights")
    _require(
        len(await engine.generate(generate_work(subject))) == 4, "after a refused load nothing is generated"
    )
    return {}


async def in_flight_update(subject: Subject, engine: Engine) -> Figures:
    """An update while completions run splits them where the weights changed; each part is of its version."""
    if not engine.capabilities().in_flight_update:
        return await drained_update(subject, engine)
    for limit in _IN_FLIGHT_LIMITS:
        completions = await _updated_while_running(subject, engine, limit)
        if any(len(completion.spans) > 1 for completion in completions):
            break
        await _reload(subject, engine)
    else:
        raise CheckFailedError("completions ended before an update could reach them")
    new, under_new = engine.loaded_version, await completion_scores(engine, subject.prompt, completions)
    await engine.load_weights(subject.state(1), new + 1)
    under_old = await completion_scores(engine, subject.prompt, completions)
    pairs = []
    for completion, older, newer in zip(completions, under_old, under_new, strict=True):
        reached = 0
        for span in completion.spans:
            _require(span.start == reached < span.end, f"spans {completion.spans} do not follow one another")
            reached = span.end
            scores = newer if span.weight_version == new else older
            reported = completion.log_probs or ()
            pairs.append((reported[span.start : span.end], scores[span.start : span.end]))
        _require(
            reached == len(completion.token_ids), f"spans {completion.spans} do not cover the completion"
        )
    figures = _agree(subject, pairs, "tokens around an update against scoring under their versions")
    return {**figures, "split_completions": sum(len(completion.spans) > 1 for completion in completions)}


async def _updated_while_running(subject: Subject, engine: Engine, limit: int) -> Sequence[Completion]:
    before = engine.generated_tokens
    work = generate_work(subject, samples=6, stop_token_ids=(), max_new_tokens=limit)
    running = asyncio.create_task(engine.generate(work))
    counting = asyncio.create_task(running_tokens(engine, before + 30, _PAUSE))
    await asyncio.wait([running, counting], return_when=asyncio.FIRST_COMPLETED)
    counting.cancel()
    await engine.load_weights(subject.state(2), engine.loaded_version + 1)
    return await running


async def _reload(subject: Subject, engine: Engine) -> None:
    await engine.load_weights(subject.state(1), engine.loaded_version + 1)


async def drained_update(subject: Subject, _: Engine) -> Figures:
    """An engine that drains ends running completions before it loads."""
    engine = await subject.start(drain_before_update=True)
    try:
        _require(
            not engine.capabilities().in_flight_update, "a draining engine says that it updates in flight"
        )
        await engine.load_weights(subject.state(1), 1)
        work = generate_work(subject, samples=6, stop_token_ids=(), max_new_tokens=100)
        running = asyncio.create_task(engine.generate(work))
        counting = asyncio.create_task(running_tokens(engine, 12, _PAUSE))
        await asyncio.wait([running, counting], return_when=asyncio.FIRST_COMPLETED)
        counting.cancel()
        await engine.load_weights(subject.state(2), 2)
        versions = {span.weight_version for completion in await running for span in completion.spans}
        _require(versions == {1}, f"completions that ran before the load name versions {sorted(versions)}")
        later = await engine.generate(generate_work(subject))
        versions = {span.weight_version for completion in later for span in completion.spans}
        _require(versions == {2}, f"completions after the load name versions {sorted(versions)}")
    finally:
        await engine.close()
    return {}


async def cancelling_frees(subject: Subject, engine: Engine) -> Figures:
    """Cancelling a group frees its place: what comes after it is served."""
    work = generate_work(subject, stop_token_ids=(), max_new_tokens=_IN_FLIGHT_LIMITS[-1])
    endless = asyncio.create_task(engine.generate(work))
    counting = asyncio.create_task(running_tokens(engine, engine.generated_tokens + 4, _PAUSE))
    await asyncio.wait([endless, counting], return_when=asyncio.FIRST_COMPLETED)
    counting.cancel()
    endless.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await endless
    _require(
        len(await engine.generate(generate_work(subject, group="next"))) == 4, "nothing is served afterwards"
    )
    _require(engine.unfinished_sequences == 0, f"{engine.unfinished_sequences} completions are still counted")
    return {}
