"""A whole calibration on this machine: from settings and names of backends to what was found.

model ─► snapshots A, B ─► trainer writes sequences ─► a hub and a worker for each backend ─► measure ─► analyse
"""

import contextlib
import dataclasses
import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from hetero_rl.calibration.analysis import TRAINER, Pair, analyse
from hetero_rl.calibration.engine_subject import EngineSubject
from hetero_rl.calibration.measure import Measured, measure
from hetero_rl.calibration.plan import Plan, TextSequence, prompts_of, text_sequences
from hetero_rl.calibration.record import Calibration
from hetero_rl.calibration.reference import Reference, perturbed
from hetero_rl.calibration.subject import Subject
from hetero_rl.calibration.thresholds import Thresholds
from hetero_rl.config import Config, load_config
from hetero_rl.errors import BackendError, ConfigError
from hetero_rl.launch.calibrated_backend import CalibratedBackend
from hetero_rl.launch.run_model import load_tokenizer
from hetero_rl.tasks.task import derive_seed
from hetero_rl.trainer.model import stop_tokens
from hetero_rl.trainer.policy import DATA_TYPES, Policy, load_policy
from hetero_rl.trainer.snapshots import Snapshot, take_snapshot
from hetero_rl.weights.model_files import model_digests
from hetero_rl.worker.backend import Backend, find_backend
from hetero_rl.worker.engine import EngineSettings

__all__ = ["BackendChoice", "Prepared", "assemble", "calibrate", "parse_backends", "prepare"]

_WORKER_KEYS = ("dtype", "emulate", "profile", "threads", "max_concurrent_sequences")


@dataclasses.dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend to calibrate, with settings of its worker."""

    label: str
    """As it was asked for, such as "cpu:dtype=bfloat16"."""
    backend: str
    settings: tuple[tuple[str, str], ...]


def parse_backends(text: str) -> tuple[BackendChoice, ...]:
    """Choices from NAME[:KEY=VALUE...],...; keys are those of `inference.worker`. Raises ConfigError."""
    choices = []
    for label in filter(None, (part.strip() for part in text.split(","))):
        name, *assignments = label.split(":")
        settings = []
        for assignment in assignments:
            key, separator, value = assignment.partition("=")
            if not separator or key not in _WORKER_KEYS:
                raise ConfigError(
                    f"--backends {label!r}: {assignment!r} is not KEY=VALUE with a key of {', '.join(_WORKER_KEYS)}"
                )
            settings.append((key, value))
        choices.append(BackendChoice(label, name, tuple(settings)))
    labels = [choice.label for choice in choices]
    if not labels or len(set(labels)) != len(labels):
        raise ConfigError(f"--backends {text!r}: name at least one backend, each once")
    return tuple(choices)


def calibrate(
    config: Config,
    choices: Sequence[BackendChoice],
    model_dir: Path,
    *,
    plan: Plan,
    thresholds: Thresholds,
    against: Sequence[str],
    work_dir: Path,
    command: str,
    report: Callable[[str], None],
) -> tuple[Calibration, Callable[[int], str]]:
    """Measures backends with hubs and workers started here; returns what was found, and what decodes a token.

    Args:
        config: The run's settings; `estimator`, `sampling.max_new_tokens`, `weights.serving_dtype` and `security` count.
        choices: Backends.
        model_dir: A Hugging Face directory with weights: A.
        plan: How much is measured; held within what the model takes.
        thresholds: What counts as too much.
        against: "trainer", or nothing to compare backends with each other only.
        work_dir: Where hubs keep their journals and logs.
        command: What the report says made it.
        report: Takes a sentence on what is done now.
    """
    backends = {choice.backend: _available(choice.backend) for choice in choices}
    report("the trainer writes sequences")
    ready = prepare(config, model_dir, plan)
    with contextlib.ExitStack() as stack:
        subjects: list[Subject] = []
        for choice in choices:
            report(f"{choice.label}: starts a hub and a worker")
            subject = CalibratedBackend(
                choice.label,
                backends[choice.backend],
                _settings(choice, config, ready.plan, work_dir),
                model_dir,
                stop_token_ids=ready.stops,
                vocabulary_size=ready.vocabulary_size,
            )
            stack.callback(subject.close)
            subjects.append(subject)
        measured = measure(ready.plan, subjects, ready.prompts, ready.texts, ready.reference, report)
    report("compares and explains")
    pairs = analyse(
        measured,
        ready.reference,
        estimator=config.estimator.name,
        longest=config.sampling.max_new_tokens,
        thresholds=thresholds,
        against=against,
    )
    digest = _state_digest(ready.reference, work_dir)
    return assemble(config, model_dir, ready, measured, pairs, thresholds, command, digest), ready.decode


def assemble(
    config: Config,
    model_dir: Path,
    ready: "Prepared",
    measured: Measured,
    pairs: tuple[Pair, ...],
    thresholds: Thresholds,
    command: str,
    state_digest: str,
) -> Calibration:
    """Puts together what was found and what it was found with."""
    return Calibration(
        made_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        model=model_dir.name,
        model_digest=model_digests(model_dir).config,
        state_digest=state_digest,
        command=command,
        estimator=config.estimator.name,
        longest=config.sampling.max_new_tokens,
        plan=ready.plan,
        thresholds=thresholds,
        pairs=pairs,
        numerics={
            one.name: {**dataclasses.asdict(one.numerics), "numerics_id": one.numerics.numerics_id}
            for one in measured.subjects
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """Everything that is known before a backend is asked."""

    plan: Plan
    tokenizer: Any
    stops: tuple[int, ...]
    vocabulary_size: int
    reference: Reference
    prompts: list[tuple[int, ...]]
    texts: list[TextSequence]

    def decode(self, token: int) -> str:
        """Text of a token id."""
        return str(self.tokenizer.decode([token]))


def prepare(config: Config, model_dir: Path, plan: Plan, weights: Snapshot | None = None) -> Prepared:
    """Loads the model and writes the trainer's sequences; under the given weights, or under A and B made of the model's."""
    tokenizer = load_tokenizer(model_dir)
    policy = load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float32)
    plan = _fitted(plan, int(getattr(policy.model.config, "max_position_embeddings", 0) or 2**20))
    stops = stop_tokens(model_dir, tokenizer.eos_token_id)
    reference = _reference(policy, config, plan) if weights is None else Reference(policy, {"A": weights})
    encode = _encoder(tokenizer)
    prompts = prompts_of(plan, encode)
    # Where backends only score, the law of the sequence ratio comes from what the trainer wrote: it takes many of them.
    copies = 1 if weights is None else plan.group_size
    written = _trainer_texts(model_dir, plan, prompts, stops, reference, config, copies)
    return Prepared(
        plan=plan,
        tokenizer=tokenizer,
        stops=stops,
        vocabulary_size=policy.vocabulary_size,
        reference=reference,
        prompts=prompts,
        texts=[*text_sequences(plan, encode), *written],
    )


def _encoder(tokenizer: Any) -> Callable[[str], Sequence[int]]:
    return lambda text: tuple(tokenizer(text, verbose=False)["input_ids"])


def _fitted(plan: Plan, positions: int) -> Plan:
    """The plan within the positions that the model has."""
    prompt_tokens = max(2, min(plan.prompt_tokens, positions // 4))
    return dataclasses.replace(
        plan,
        prompt_tokens=prompt_tokens,
        max_new_tokens=max(1, min(plan.max_new_tokens, positions - prompt_tokens - 1)),
        text_tokens=min(plan.text_tokens, positions - 1),
    )


def _reference(policy: Policy, config: Config, plan: Plan) -> Reference:
    a = take_snapshot(policy, 0, DATA_TYPES[config.weights.serving_dtype])
    b = perturbed(policy, a, plan.perturbation, derive_seed(plan.seed, "version B", 0))
    return Reference(policy, {"A": a, "B": b})


def _trainer_texts(
    model_dir: Path,
    plan: Plan,
    prompts: Sequence[tuple[int, ...]],
    stops: tuple[int, ...],
    reference: Reference,
    config: Config,
    copies: int,
) -> Iterator[TextSequence]:
    """Sequences that the trainer's own float32 arithmetic writes, at several temperatures."""
    from hetero_rl.worker.engines.transformers import TransformersEngine

    settings = EngineSettings(
        model_dir=model_dir, dtype="float32", max_concurrent_sequences=64, threads=config.trainer.threads
    )
    writer = EngineSubject(TRAINER, "cpu", TransformersEngine(settings), stops)
    try:
        writer.load(1, reference.snapshots["A"])
        for temperature in plan.text_temperatures:
            for sample in writer.generate(
                prompts[: max(2, len(prompts) // 2)],
                group_size=copies if temperature == 1.0 else 1,
                max_new_tokens=plan.max_new_tokens,
                temperature=temperature,
                seed=derive_seed(plan.seed, "trainer", int(100 * temperature)) % 2**31,
            ):
                yield TextSequence(
                    (*sample.prompt, *sample.token_ids), len(sample.prompt), TRAINER, temperature
                )
    finally:
        writer.close()


def _available(name: str) -> Backend:
    """The installed backend of that name, with a device; raises BackendError otherwise, before anything is started."""
    backend = find_backend(name)
    found = backend.detect()
    if not found.available:
        raise BackendError(f"backend {name!r} finds no device on this machine. {found.advice}".rstrip())
    return backend


def _settings(choice: BackendChoice, config: Config, plan: Plan, work_dir: Path) -> Config:
    """Settings of the hub and the worker of one choice."""
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in choice.label)[:64]
    overrides = [
        f"run.dir={_quoted(work_dir / name)}",
        f"run.name={_quoted(name)}",
        f"inference.backends=[{_quoted(choice.backend)}]",
        "inference.workers=1",
        "hub.listen='127.0.0.1:0'",
        "hub.heartbeat_seconds=2",
        "hub.missed_heartbeats=60",
        "hub.lease_seconds=3600",
        f"sampling.max_new_tokens={plan.max_new_tokens}",
        f"task.max_prompt_tokens={plan.prompt_tokens}",
        f"trainer.group_size={plan.group_size}",
        *(f"inference.worker.{key}={_worker_value(key, value)}" for key, value in choice.settings),
    ]
    settings = load_config([], overrides).model_dump()
    settings["security"] = config.security
    settings["inference"]["worker"] = {
        **config.inference.worker.model_dump(),
        **{key: settings["inference"]["worker"][key] for key, _ in choice.settings},
    }
    return Config.model_validate(settings)


def _worker_value(key: str, value: str) -> str:
    return value if key in {"threads", "max_concurrent_sequences"} else _quoted(value)


def _quoted(value: object) -> str:
    text = str(value)
    if "'" in text or "\n" in text:
        raise ConfigError(f"{text!r} holds a quote or a line break; choose another name")
    return f"'{text}'"


def _state_digest(reference: Reference, work_dir: Path) -> str:
    """The digest that the published weights A have."""
    import tempfile

    from hetero_rl.weights.full import encode_full

    work_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work_dir) as directory:
        encoded = encode_full(reference.snapshots["A"].tensors, Path(directory), version=1, step=0)
        return encoded.manifest.state_digest
