"""What every engine must do, whatever its vendor: the rules of `hetero_rl.worker.engine.Engine`, one test each.

Those that a real device is certified with are the checks of `hetero_rl.certify`; the others need a model whose every token
can be looked at.
"""

import asyncio
import dataclasses
import functools
import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from hetero_rl.certify import checks
from hetero_rl.certify.subject import Subject, Tolerance, completion_scores, running_tokens, scored
from hetero_rl.errors import InvalidMessageError
from hetero_rl.weights.low_rank import AdapterTensors, Factors, merged_tensors
from hetero_rl.wire.columns import int32_column
from hetero_rl.wire.messages import AdapterDescription, GenerateWork, Purpose, SamplingParameters
from hetero_rl.worker.engine import Engine, EngineSettings
from hetero_rl.worker.engines.scripted import ScriptedEngine
from hetero_rl.worker.engines.transformers import TransformersEngine
from hetero_rl.worker.engines.vllm import VllmEngine
from hetero_rl.worker.engines.vllm.library import load_library

pytestmark = pytest.mark.asyncio

VOCABULARY = 16
STOP = 2
PROMPT = (3, 5, 7, 11)
# An engine computes in float32; prefill and decoding add up in other orders.
ROUNDING = 1e-4
ADAPTED = ("q_proj.weight", "down_proj.weight", "m.weight")
"""Ends of the names of matrices that get adapters."""

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": STOP,
}

State = list[tuple[str, torch.Tensor]]


def _write_tokenizer(model_dir: Path) -> None:
    (model_dir / "vocab.txt").write_text("\n".join(map(str, range(VOCABULARY))))


def _random_state(model: torch.nn.Module, seed: int) -> State:
    """Weights wide enough that the distributions are far from uniform; tied tensors once."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (name, 0.3 * torch.randn(parameter.shape, generator=generator) + (1.0 if "norm" in name else 0.0))
        for name, parameter in model.named_parameters()
    ]


def _transformers_subject(model_dir: Path, family: str, *, tied: bool) -> Subject:
    sizes = {**SIZES, "tie_word_embeddings": tied}
    config_class, model_class = {
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[family]
    config = config_class(**sizes)
    config.save_pretrained(model_dir)
    model = model_class(config)
    return _subject(TransformersEngine, model_dir, lambda seed: _random_state(model, seed))


def _scripted_subject(model_dir: Path) -> Subject:
    (model_dir / "config.json").write_text(json.dumps({"vocab_size": VOCABULARY}))
    return _subject(
        ScriptedEngine, model_dir, lambda seed: [("m.weight", torch.tensor([[float(seed), 1.0]]))]
    )


def _subject(engine_class, model_dir: Path, state: Callable[[int], State]) -> Subject:
    settings = EngineSettings(model_dir=model_dir, dtype="float32", max_concurrent_sequences=512, threads=1)
    return Subject(
        engine_class=engine_class,
        model_dir=model_dir,
        state=state,
        vocabulary_size=VOCABULARY,
        stop_token=STOP,
        prompt=PROMPT,
        tolerance=Tolerance(ROUNDING, ROUNDING),
        settings=settings,
    )


def _beside(name: str):
    """The module in a file beside this one."""
    specification = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _recorded_vllm_subject(model_dir: Path, release: str) -> Subject:
    """The vLLM adapter on the recorded interface of a release."""
    fake_vllm = _beside("fake_vllm")

    def build(settings: EngineSettings) -> Engine:
        return VllmEngine(settings, lambda: load_library(fake_vllm.FakeVllm(release).import_module))

    return dataclasses.replace(_transformers_subject(model_dir, "llama", tied=True), engine_class=build)


def _real_vllm_subjects() -> dict[str, Callable[[Path], Subject]]:
    """The vLLM adapter on the vLLM that is installed; `make test-vllm` has one."""
    real_vllm = _beside("real_vllm")

    def subject(model_dir: Path, kind: str) -> Subject:
        model = real_vllm.make_model(kind, model_dir, SIZES)
        return _subject(
            lambda settings: real_vllm.SharedEngine(settings, kind),
            model_dir,
            lambda seed: real_vllm.random_state(model, seed),
        )

    return {f"vllm-{kind}": functools.partial(subject, kind=kind) for kind in real_vllm.MODELS}


SUBJECTS = {
    "qwen3-tied": lambda path: _transformers_subject(path, "qwen3", tied=True),
    "qwen3-untied": lambda path: _transformers_subject(path, "qwen3", tied=False),
    "llama-tied": lambda path: _transformers_subject(path, "llama", tied=True),
    "llama-untied": lambda path: _transformers_subject(path, "llama", tied=False),
    "scripted": _scripted_subject,
    "vllm-0.23-recorded": lambda path: _recorded_vllm_subject(path, "0.23.0"),
    "vllm-0.33-recorded": lambda path: _recorded_vllm_subject(path, "0.33.0"),
}
if importlib.util.find_spec("vllm") is not None:
    SUBJECTS = _real_vllm_subjects()


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request, tmp_path_factory) -> Subject:
    model_dir = tmp_path_factory.mktemp(request.param)
    _write_tokenizer(model_dir)
    return SUBJECTS[request.param](model_dir)


@pytest_asyncio.fixture
async def engine(subject):
    """An engine that serves version 1."""
    engine = await subject.start()
    await engine.load_weights(subject.state(1), 1)
    yield engine
    await engine.close()


def adapters(state: State, seed: int, *, module: str | None = None, width: int = 0) -> AdapterTensors:
    """Random adapters of rank 2 on the base of a state; of one module and another width on request."""
    generator = torch.Generator().manual_seed(seed)
    described = AdapterDescription(rank=2, alpha=3.0, target_modules=(), base_digest="b" * 64)
    adapted = {
        name.removesuffix(".weight"): Factors(
            torch.randn(2, tensor.shape[1] + width, generator=generator),
            0.2 * torch.randn(tensor.shape[0], 2, generator=generator),
        )
        for name, tensor in state
        if name.endswith(ADAPTED) and tensor.ndim == 2
    }
    if module is not None:
        adapted = {module: next(iter(adapted.values()))}
    return AdapterTensors(described, adapted)


def work(*, samples=4, prompt=PROMPT, group="g", indices=None, **sampling) -> GenerateWork:
    settings = {"max_new_tokens": 12, "stop_token_ids": (STOP,), "seed": 1} | sampling
    return GenerateWork(
        group_id=group,
        purpose=Purpose.TRAIN,
        prompt_token_ids=int32_column(prompt),
        sample_indices=tuple(range(samples)) if indices is None else indices,
        sampling=SamplingParameters(**settings),
    )


async def test_one_completion_comes_for_each_sample_index_in_order(engine, subject):
    await checks.whole_groups(subject, engine)


async def test_log_probs_are_one_for_each_token_finite_and_not_above_zero(engine, subject):
    await checks.log_probs_contract(subject, engine)


async def test_log_probs_agree_with_scoring_the_same_tokens(engine, subject):
    await checks.scoring_equals_decoding(subject, engine)


async def test_first_tokens_are_drawn_from_the_distribution_that_scoring_reports(engine, subject):
    await checks.first_token_distribution(subject, engine)


async def test_a_stop_token_ends_a_completion_and_is_part_of_it(engine, subject):
    figures = await checks.stopping(subject, engine)
    assert figures["stopped"] > 0


async def test_any_of_several_stop_tokens_ends_a_completion(engine):
    stops = (4, 5, 6)
    for completion in await engine.generate(work(samples=32, stop_token_ids=stops, max_new_tokens=200)):
        assert sum(token in stops for token in completion.token_ids) == 1
        assert completion.token_ids[-1] in stops


async def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(engine, subject):
    figures = await checks.same_seed_same_tokens(subject, engine)
    assert figures["max_absolute_difference"] == 0


async def test_a_group_in_two_leases_has_the_tokens_of_the_group_in_one(engine):
    whole = await engine.generate(work(samples=4))
    halves = [*await engine.generate(work(indices=(0, 1))), *await engine.generate(work(indices=(2, 3)))]
    assert [list(c.token_ids) for c in whole] == [list(c.token_ids) for c in halves]


async def test_a_group_gives_the_same_alone_and_among_others(engine, subject):
    figures = await checks.batch_independence(subject, engine)
    assert figures["completions_with_the_same_tokens"] == figures["completions"] == 4


async def test_many_groups_at_once_all_come_back_with_right_log_probs(engine):
    prompts = [tuple(3 + (5 * number + at) % 13 for at in range(1 + number % 7)) for number in range(40)]
    works = [work(prompt=prompt, group=f"g{number}", seed=number) for number, prompt in enumerate(prompts)]
    groups = await asyncio.gather(*map(engine.generate, works))
    for prompt, completions in zip(prompts, groups, strict=True):
        for completion, scores in zip(
            completions, await completion_scores(engine, prompt, completions), strict=True
        ):
            assert list(completion.log_probs) == pytest.approx(scores, abs=ROUNDING)


async def test_a_group_larger_than_the_engine_is_served(subject):
    engine = await subject.start(max_concurrent_sequences=3)
    await engine.load_weights(subject.state(1), 1)
    completions = await engine.generate(work(samples=8))
    assert [completion.sample_index for completion in completions] == list(range(8))
    await engine.close()


async def test_greedy_work_takes_the_most_probable_token_and_reports_no_log_probs(engine, subject):
    await checks.greedy(subject, engine)


async def test_spans_cover_each_completion_and_name_the_version(engine):
    for completion in await engine.generate(work(samples=8)):
        (span,) = completion.spans
        assert (span.start, span.end, span.weight_version) == (0, len(completion.token_ids), 1)


async def test_loading_a_then_b_then_a_scores_exactly_as_a_did(engine, subject):
    figures = await checks.weights_round_trip(subject, engine)
    assert figures["left_after_return"] == 0


async def test_after_a_load_tokens_come_from_the_new_weights(engine, subject):
    await engine.load_weights(subject.state(2), 5)
    completions = await engine.generate(work(samples=8))
    assert {span.weight_version for completion in completions for span in completion.spans} == {5}
    for completion, scores in zip(
        completions, await completion_scores(engine, PROMPT, completions), strict=True
    ):
        assert list(completion.log_probs) == pytest.approx(scores, abs=ROUNDING)


async def test_an_update_in_flight_splits_completions_where_the_weights_changed(engine, subject):
    figures = await checks.in_flight_update(subject, engine)
    assert figures["split_completions"] == 6


async def test_an_update_in_flight_reaches_groups_of_all_prompts_and_limits(engine, subject):
    prompts = [PROMPT, (9,), (4, 4, 8), PROMPT, (15, 14, 13, 12, 11, 10, 9)]
    limits = [140, 180, 150, 120, 160]
    works = [
        work(
            samples=3,
            prompt=prompt,
            group=f"g{number}",
            stop_token_ids=(STOP,) * number,
            max_new_tokens=limit,
        )
        for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]
    running = [asyncio.create_task(engine.generate(each)) for each in works]
    await running_tokens(engine, 60)
    await engine.load_weights(subject.state(2), 2)
    groups = await asyncio.gather(*running)
    assert {span.weight_version for group in groups for c in group for span in c.spans} == {1, 2}
    for prompt, completions in zip(prompts, groups, strict=True):
        for completion, scores in zip(
            completions, await completion_scores(engine, prompt, completions), strict=True
        ):
            for span in completion.spans:
                if span.weight_version == 2:
                    sampled = list(completion.log_probs[span.start : span.end])
                    assert sampled == pytest.approx(scores[span.start : span.end], abs=ROUNDING)


async def test_a_draining_engine_ends_running_completions_before_it_loads(engine, subject):
    await checks.drained_update(subject, engine)


@pytest.mark.parametrize("defect", ["missing", "unknown", "misshapen", "twice"])
async def test_a_refused_load_leaves_the_old_weights_serving(engine, subject, defect):
    before = await scored(engine, [list(PROMPT)])
    state = subject.state(2)
    name, tensor = state[-1]
    damaged = {
        "missing": state[:-1],
        "unknown": [*state, ("no.such.weight", tensor)],
        "misshapen": [*state[:-1], (name, torch.zeros(7, 3))],
        "twice": [*state, state[-1]],
    }[defect]
    with pytest.raises(InvalidMessageError, match="nothing was loaded"):
        await engine.load_weights(damaged, 2)
    assert engine.loaded_version == 1
    assert await scored(engine, [list(PROMPT)]) == before
    assert len(await engine.generate(work())) == 4


async def test_cancelling_a_group_frees_its_place(subject):
    engine = await subject.start(max_concurrent_sequences=4)
    await engine.load_weights(subject.state(1), 1)
    endless = asyncio.create_task(engine.generate(work(stop_token_ids=(), max_new_tokens=1_000_000)))
    await running_tokens(engine, 4)
    waiting = asyncio.create_task(engine.generate(work(group="next")))
    await asyncio.sleep(0)
    assert engine.unfinished_sequences == 8
    endless.cancel()
    assert len(await waiting) == 4
    assert engine.unfinished_sequences == 0
    await engine.close()


async def test_a_cancelled_group_that_still_waits_is_never_started(subject):
    engine = await subject.start(max_concurrent_sequences=4)
    await engine.load_weights(subject.state(1), 1)
    first = asyncio.create_task(engine.generate(work(stop_token_ids=(), max_new_tokens=50)))
    await running_tokens(engine, 4)
    cancelled = asyncio.create_task(engine.generate(work(stop_token_ids=(), max_new_tokens=1_000_000)))
    last = asyncio.create_task(engine.generate(work(stop_token_ids=(), max_new_tokens=50)))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(first, last)
    assert engine.generated_tokens == 2 * 4 * 50
    await engine.close()


@pytest.mark.parametrize("token", [-1, VOCABULARY])
async def test_tokens_outside_the_vocabulary_are_refused_and_the_engine_lives(engine, token):
    with pytest.raises(InvalidMessageError):
        await engine.generate(work(prompt=(3, token)))
    with pytest.raises(InvalidMessageError):
        await scored(engine, [[3, token]])
    assert len(await engine.generate(work())) == 4


async def test_counters_say_what_was_done(engine):
    completions = await engine.generate(work(samples=8))
    assert engine.generated_tokens == sum(len(completion.token_ids) for completion in completions)
    assert engine.busy_seconds > 0
    assert engine.unfinished_sequences == 0


async def test_numerics_and_capabilities_are_filled(engine):
    await engine.generate(work())
    numerics, capabilities = engine.numerics(), engine.capabilities()
    assert all([numerics.engine, numerics.engine_version, numerics.device_vendor, numerics.data_type])
    assert numerics.log_probs_mode == ("processed" if capabilities.processed_log_probs else "raw")
    assert (capabilities.scoring, capabilities.in_flight_update) == (True, True)
    assert capabilities.max_concurrent_sequences == 512
    assert len(engine.model_digests().config) == 64


async def test_truncated_sampling_reports_the_distribution_that_was_sampled_from(engine):
    if not engine.capabilities().processed_log_probs:
        with pytest.raises(InvalidMessageError):
            await engine.generate(work(top_k=3))
        return
    completions = await engine.generate(work(samples=64, top_k=3, temperature=0.7, max_new_tokens=1))
    scores = await scored(engine, [[*PROMPT, token] for token in range(VOCABULARY)])
    best = sorted(((values[-1] / 0.7, token) for token, values in enumerate(scores)), reverse=True)[:3]
    mass = sum(math.exp(value) for value, _ in best)
    kept = {token: value - math.log(mass) for value, token in best}
    for completion in completions:
        assert completion.log_probs[0] == pytest.approx(kept[completion.token_ids[0]], abs=ROUNDING)


# An engine that declares no adapters is refused where they are published, and is none of these.


@pytest.fixture
def adapting(engine):
    """An engine that says it loads adapters."""
    if not engine.capabilities().adapters:
        pytest.skip("the engine declares that it loads no adapters")
    return engine


async def test_adapters_score_as_their_base_does_with_them_added(adapting, subject):
    base, sequences = subject.state(1), [list(PROMPT), [9, 8, 7, 6]]
    plain = await scored(adapting, sequences)
    await adapting.load_adapted(base, adapters(base, 1), 2)
    found = await scored(adapting, sequences)
    await adapting.load_weights(merged_tensors(base, adapters(base, 1)), 3)
    for own, added, without in zip(found, await scored(adapting, sequences), plain, strict=True):
        assert own == pytest.approx(added, abs=ROUNDING)
        assert own != pytest.approx(without, abs=10 * ROUNDING)


async def test_adapters_one_after_another_leave_nothing_behind(adapting, subject):
    base, sequences = subject.state(1), [list(PROMPT)]
    plain = await scored(adapting, sequences)
    await adapting.load_adapted(base, adapters(base, 1), 2)
    first = await scored(adapting, sequences)
    for version in range(3, 9):
        await adapting.load_adapted(base, adapters(base, version), version)
    await adapting.load_adapted(base, adapters(base, 1), 9)
    again = await scored(adapting, sequences)
    await adapting.load_weights(base, 10)
    assert again == first
    assert await scored(adapting, sequences) == plain


async def test_tokens_under_adapters_have_the_log_probs_that_scoring_reports(adapting, subject):
    base = subject.state(1)
    await adapting.load_adapted(base, adapters(base, 4), 2)
    completions = await adapting.generate(work(samples=8))
    assert {span.weight_version for completion in completions for span in completion.spans} == {2}
    for completion, scores in zip(
        completions, await completion_scores(adapting, PROMPT, completions), strict=True
    ):
        assert list(completion.log_probs) == pytest.approx(scores, abs=ROUNDING)


@pytest.mark.parametrize("defect", [{"module": "no.such.layer"}, {"width": 1}])
async def test_adapters_that_do_not_fit_leave_the_old_weights_serving(adapting, subject, defect):
    base = subject.state(1)
    await adapting.load_adapted(base, adapters(base, 1), 2)
    before = await scored(adapting, [list(PROMPT)])
    with pytest.raises(InvalidMessageError, match="nothing was loaded"):
        await adapting.load_adapted(base, adapters(base, 2, **defect), 3)
    assert adapting.loaded_version == 2
    assert await scored(adapting, [list(PROMPT)]) == before


async def test_a_base_in_bfloat16_costs_no_precision_where_more_is_computed_with(adapting, subject):
    base = [(name, tensor.bfloat16()) for name, tensor in subject.state(1)]
    added = adapters(base, 5)
    await adapting.load_adapted(base, added, 2)
    found = await scored(adapting, [list(PROMPT)])
    computed_in = adapting.adapted_type or torch.bfloat16
    await adapting.load_weights(merged_tensors(base, added, computed_in), 3)
    assert await scored(adapting, [list(PROMPT)]) == found
    if adapting.numerics().engine != "scripted":
        assert computed_in is torch.float32
