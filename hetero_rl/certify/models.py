"""Models to certify with: a tiny one that every kernel takes, or a directory of the user's own. Imports torch."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hetero_rl.certify.checks import CheckFailedError, Figures
from hetero_rl.certify.subject import TOLERANCES, Subject, Tolerance, generate_work
from hetero_rl.errors import EngineError
from hetero_rl.weights.probe import compare_probe, make_probe_card, probe_passes, probe_score_work
from hetero_rl.worker.emulations import find_emulation
from hetero_rl.worker.engine import Engine, EngineSettings

__all__ = ["directory_subject", "probe_card", "random_state", "reference_log_probs", "tiny_subject"]

_STOP = 2
_PROMPT = (3, 5, 7, 11)
_TINY: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    # Attention kernels of accelerators take head sizes from 64 on.
    "head_dim": 64,
    "intermediate_size": 256,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": _STOP,
}
_PERTURBATION = 0.05
"""Weights B of a real model are its own, each moved by up to this share of a tensor's standard deviation."""


def random_state(model: torch.nn.Module, seed: int, spread: float) -> list[tuple[str, torch.Tensor]]:
    """Random weights under the names of a module, tied ones once; those of normalisation lie around 1."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (name, spread * torch.randn(parameter.shape, generator=generator) + (1.0 if "norm" in name else 0.0))
        for name, parameter in model.named_parameters()
    ]


def tiny_subject(
    engine_class: Callable[[EngineSettings], Engine], directory: Path, settings: EngineSettings
) -> Subject:
    """A Qwen3 of 0.4 million random weights, written into a directory; its embedding is its head.

    Args:
        engine_class: What is certified.
        directory: Where the model's configuration goes.
        settings: What the engine is started with; the model directory is replaced.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**_TINY)
    config.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(map(str, range(config.vocab_size))), encoding="utf-8")
    model = Qwen3ForCausalLM(config)
    # Wide enough that the distributions are far from uniform, narrow enough that no token is certain.
    return _subject(
        engine_class,
        directory,
        settings,
        lambda seed: random_state(model, seed, 0.06),
        config.vocab_size,
        _STOP,
    )


def directory_subject(
    engine_class: Callable[[EngineSettings], Engine], directory: Path, settings: EngineSettings
) -> Subject:
    """A model of the user's own: weights A are those of the directory, weights B are moved a little."""
    model = _model(directory)
    config: Any = model.config
    stop = config.eos_token_id
    first_stop = stop[0] if isinstance(stop, Sequence) else stop

    def state(seed: int) -> list[tuple[str, torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        moved = 0.0 if seed == 1 else _PERTURBATION
        return [
            (name, tensor.detach() + moved * _noise_like(tensor, generator))
            for name, tensor in model.named_parameters()
        ]

    vocabulary_size = config.get_text_config().vocab_size
    return _subject(engine_class, directory, settings, state, vocabulary_size, first_stop or 0)


def _noise_like(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    spread = tensor.detach().float().std(correction=0)
    return spread * torch.randn(tensor.shape, generator=generator)


def _subject(
    engine_class: Callable[[EngineSettings], Engine],
    directory: Path,
    settings: EngineSettings,
    state: Callable[[int], list[tuple[str, torch.Tensor]]],
    vocabulary_size: int,
    stop: int,
) -> Subject:
    return Subject(
        engine_class=engine_class,
        model_dir=directory,
        state=state,
        vocabulary_size=vocabulary_size,
        stop_token=stop,
        prompt=_PROMPT,
        tolerance=_tolerance(settings),
        settings=dataclasses.replace(settings, model_dir=directory),
    )


def _tolerance(settings: EngineSettings) -> Tolerance:
    """What rounding explains in the data type that is computed in, emulated ones included."""
    emulation = find_emulation(settings.emulate) if settings.emulate else None
    if emulation is not None and emulation.mantissa_bits:
        return TOLERANCES["float16"]  # which keeps as many bits
    return TOLERANCES[(emulation.dtype if emulation else "") or settings.dtype]


def _model(directory: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    try:
        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise EngineError(f"cannot load the model in {directory}: {error}") from error
    return model.eval()


@torch.no_grad()
def reference_log_probs(
    directory: Path, state: Sequence[tuple[str, torch.Tensor]], sequences: Sequence[Sequence[int]]
) -> list[float]:
    """Float32 log-probabilities by a plain forward pass of transformers on the CPU, as a trainer computes them.

    Args:
        directory: Configuration of the model.
        state: Weights under the names of the module.
        sequences: Token ids; each token but the first of each sequence is scored.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False).eval()
    own = dict(model.named_parameters())
    for name, tensor in state:
        own[name].copy_(tensor)
    found: list[float] = []
    for sequence in sequences:
        ids = torch.tensor([list(sequence)])
        log_probs = model(input_ids=ids).logits[0, :-1].float().log_softmax(dim=-1)
        found += log_probs.gather(-1, ids[0, 1:, None])[:, 0].tolist()
    return found


async def probe_card(subject: Subject, engine: Engine) -> Figures:
    """A probe card with a trainer's own float32 log-probabilities passes, and one of other weights does not."""
    completions = await engine.generate(generate_work(subject, samples=4, max_new_tokens=24))
    sequences = [[*subject.prompt, *completion.token_ids] for completion in completions]
    tolerance = max(subject.tolerance.mean, TOLERANCES["float16"].mean)
    results = []
    for seed in (1, 2):
        log_probs = reference_log_probs(subject.model_dir, subject.state(seed), sequences)
        card = make_probe_card(sequences, log_probs, tolerance)
        scores = await engine.score(probe_score_work(card, engine.loaded_version))
        result = compare_probe(card, scores, engine.loaded_version)
        results.append((probe_passes(card, result), result))
    (right, own), (wrong, other) = results
    if not right:
        raise CheckFailedError(
            f"the engine differs from a trainer in float32 by {own.mean_absolute_difference:.3g} on average; "
            f"{tolerance:g} is tolerated: other weights, or another model, are computed"
        )
    if wrong:
        raise CheckFailedError(
            f"a card of other weights passes with {other.mean_absolute_difference:.3g}: it tells nothing"
        )
    return {
        "mean_absolute_difference": own.mean_absolute_difference,
        "max_absolute_difference": own.max_absolute_difference,
        "mean_difference": own.mean_difference,
        "with_other_weights": other.mean_absolute_difference,
        "tokens": own.tokens,
    }
