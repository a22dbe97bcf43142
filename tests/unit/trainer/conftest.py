"""A tiny random model, groups written out by hand, and a hub and a task in memory."""

import dataclasses
import hashlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Self

import pytest
import torch

from hetero_rl.config.tree import Config
from hetero_rl.tasks import Grade, GradeRequest, PendingGrades, Task, TaskItem
from hetero_rl.trainer import local, session
from hetero_rl.trainer.policy import Policy, load_policy
from hetero_rl.weights.low_rank import merged_tensors, take_apart
from hetero_rl.weights.tensors import tensor_from_bytes
from hetero_rl.wire.columns import float32_column, int32_column
from hetero_rl.wire.messages import (
    BlobReference,
    EnqueueReceipt,
    FinishedGroup,
    FinishReason,
    PromptGroup,
    Purpose,
    RunGrant,
    RunRequest,
    SamplingParameters,
    SequenceOutcome,
    TrajectoryBatch,
    VersionSpan,
    WeightManifest,
)
from hetero_rl.wire.ports import BatchProgress

ALPHABET = ("<e>", "?", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j")
VOCABULARY = len(ALPHABET)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 of two layers with tied embeddings, as a directory."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.2,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
    )
    directory = tmp_path_factory.mktemp("model") / "tiny"
    Qwen3ForCausalLM(config).save_pretrained(directory)
    letters = Tokenizer(WordLevel({token: index for index, token in enumerate(ALPHABET)}, unk_token="?"))
    letters.pre_tokenizer = Split("", "isolated")
    letters.decoder = Fuse()
    PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<e>", pad_token="<e>").save_pretrained(
        directory
    )
    return directory


@pytest.fixture
def policy(model_dir: Path) -> Policy:
    """A fresh copy of the tiny model on the CPU in float32."""
    return load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float32)


@pytest.fixture
def make_group() -> Callable[..., FinishedGroup]:
    """Builds a finished group of one batch from plain lists."""

    def make(
        ordinal: int,
        prompt: Sequence[int],
        completions: Sequence[Sequence[int]],
        *,
        log_probs: Sequence[Sequence[float]] | None = None,
        version: int = 1,
        spans: Sequence[VersionSpan] | None = None,
        version_steps: Mapping[int, int] | None = None,
        reasons: Sequence[FinishReason] | None = None,
        backend: str = "cpu",
    ) -> FinishedGroup:
        group_id = f"train-{ordinal:08d}"
        log_probs = log_probs or [[-1.0] * len(ids) for ids in completions]
        spans = spans or [VersionSpan(index, 0, len(ids), version) for index, ids in enumerate(completions)]
        batch = TrajectoryBatch(
            group_id=group_id,
            sample_indices=tuple(range(len(completions))),
            lengths=tuple(len(ids) for ids in completions),
            token_ids=int32_column(token for ids in completions for token in ids),
            log_probs=float32_column(value for values in log_probs for value in values),
            version_spans=tuple(spans),
            finish_reasons=tuple(reasons or [FinishReason.STOP] * len(completions)),
            numerics_id="0" * 16,
            generation_seconds=0.1,
        )
        return FinishedGroup(
            group=PromptGroup(
                group_id=group_id,
                ordinal=ordinal,
                prompt_token_ids=int32_column(prompt),
                group_size=len(completions),
                sampling=SamplingParameters(max_new_tokens=8, stop_token_ids=(0,)),
            ),
            batches=(batch,),
            version_steps=dict(version_steps or {version: 0}),
            worker_names=("worker-0",),
            backends=(backend,),
        )

    return make


class LettersTask(Task):
    """Prompts of two letters; the reward is the share of the completion that is the letter b."""

    @property
    def scorer(self) -> dict[str, str]:
        return {"kind": "letters"}

    def training_item(self, ordinal: int, *, stream: str = "training") -> TaskItem:
        return TaskItem(question="acdefg"[ordinal % 6] + "h", payload=b"{}", solution=None)

    def _make_held_out_items(self) -> tuple[TaskItem, ...]:
        return tuple(
            TaskItem(question=first + "i", payload=b"{}", solution=None) for first in "acde"[: self.held_out]
        )


class LettersGrader:
    """Grades in this process, without any model text being more than counted."""

    def __init__(self, scorer: object, *, processes: int, time_limit: float) -> None:
        self.closed = False

    def grade(self, requests: Sequence[GradeRequest]) -> list[Grade]:
        return [Grade(request.completion.count("b") / 4) for request in requests]

    def submit(self, requests: Sequence[GradeRequest]) -> PendingGrades:
        grades = Future()
        grades.set_result(self.grade(requests))
        return PendingGrades((grades,))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.closed = True


@dataclasses.dataclass
class _Loaded:
    """A full copy out of blobs in memory."""

    manifest: WeightManifest
    blobs: Mapping[str, bytes]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for entry in self.manifest.tensors:
            data = self.blobs[self.manifest.blobs[entry.blob_index].digest]
            raw = memoryview(bytearray(data[entry.offset : entry.offset + entry.size]))
            yield entry.name, tensor_from_bytes(entry, raw)


class MemoryHub:
    """A hub and a worker in memory: a batch of step s is sampled by the version of step s - 2 as soon as it is there.

    What it samples depends on the group's seed and the weights only, and a step keeps its batch, so two runs that
    publish the same weights get the same data.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.changed = threading.Condition()
        self.blobs: dict[str, bytes] = {}
        self.manifests: list[WeightManifest] = []
        self.groups: dict[str, PromptGroup] = {}
        self.batches: dict[int, tuple[FinishedGroup, ...]] = {}
        self.commits: dict[int, list[SequenceOutcome]] = {}
        self.calls: list[str] = []
        self.requests: list[RunRequest] = []
        self.faults: dict[str, Exception] = {}
        self.closed: bool | None = None

    def open_run(self, request: RunRequest) -> RunGrant:
        self.requests.append(request)
        self.commits = {step: kept for step, kept in self.commits.items() if step <= request.resume_step}
        latest = self.manifests[-1] if self.manifests else None
        return RunGrant(
            trainer_epoch=len(self.requests),
            latest_weight_version=latest.version if latest else 0,
            latest_state_digest=latest.state_digest if latest else "",
            next_train_ordinal=len(self._training_groups()),
            credits=64,
            adapter_weights=request.adapter_weights,
        )

    def enqueue_groups(self, groups: Sequence[PromptGroup]) -> EnqueueReceipt:
        with self.changed:
            for group in groups:
                self.groups.setdefault(group.group_id, group)
        return EnqueueReceipt(len(groups), 64)

    def take_batch(self, step: int, wait: float) -> tuple[FinishedGroup, ...] | None:
        with self.changed:
            if step not in self.batches:
                manifest = self._version_of(max(0, step - 2), wait)
                size = self.requests[-1].groups_per_step
                chosen = self._training_groups()[(step - 1) * size : step * size]
                if manifest is None or len(chosen) < size:
                    return None
                self.batches[step] = tuple(self._generate(group, manifest) for group in chosen)
            return self.batches[step]

    def take_batch_ahead(
        self, step: int, wait: float, *, held: Collection[str], at_least: int
    ) -> BatchProgress:
        groups = self.take_batch(step, wait)
        names = groups and tuple(group.group.group_id for group in groups)
        return BatchProgress(
            names, tuple(group for group in groups or () if group.group.group_id not in held)
        )

    def take_evaluation(self, group_ids: Sequence[str], wait: float) -> tuple[FinishedGroup, ...] | None:
        with self.changed:
            wanted = self.groups[group_ids[0]].min_weight_version
            self.changed.wait_for(lambda: self.manifests and self.manifests[-1].version >= wanted, wait)
            found = [manifest for manifest in self.manifests if manifest.version == wanted]
            return tuple(self._generate(self.groups[name], found[0]) for name in group_ids) if found else None

    def commit_step(
        self, step: int, outcomes: Sequence[SequenceOutcome], log_probs: bytes | None = None
    ) -> None:
        self._call(f"commit_step {step}")
        assert step == max(self.commits, default=0) + 1
        self.commits[step] = list(outcomes)

    def put_blob(self, blob: BlobReference, chunks: Iterator[bytes]) -> None:
        data = b"".join(chunks)
        assert hashlib.sha256(data).hexdigest() == blob.digest
        self.blobs[blob.digest] = data

    def publish_version(self, manifest: WeightManifest) -> None:
        self._call(f"publish_version {manifest.version} of step {manifest.step}")
        assert all(blob.digest in self.blobs for blob in manifest.blobs)
        with self.changed:
            self.manifests.append(manifest)
            self.changed.notify_all()

    def commit_checkpoint(self, step: int, oldest_kept_step: int) -> None:
        self._call(f"commit_checkpoint {step} from {oldest_kept_step}")

    def close_run(self, *, complete: bool) -> None:
        self._call(f"close_run {complete}")
        self.closed = complete

    def _call(self, call: str) -> None:
        self.calls.append(call)
        if call in self.faults:
            raise self.faults.pop(call)

    def _training_groups(self) -> list[PromptGroup]:
        groups = [group for group in self.groups.values() if group.purpose is Purpose.TRAIN]
        return sorted(groups, key=lambda group: group.ordinal)

    def _version_of(self, step: int, wait: float) -> WeightManifest | None:
        self.changed.wait_for(lambda: any(manifest.step == step for manifest in self.manifests), wait)
        return next((manifest for manifest in reversed(self.manifests) if manifest.step == step), None)

    def _generate(self, group: PromptGroup, manifest: WeightManifest) -> FinishedGroup:
        self._load(manifest)
        generator = torch.Generator().manual_seed(group.sampling.seed or 0)
        prompt = torch.frombuffer(bytearray(group.prompt_token_ids), dtype=torch.int32).long()
        samples = self._sample(group, prompt, generator)
        batch = TrajectoryBatch(
            group_id=group.group_id,
            sample_indices=tuple(range(len(samples))),
            lengths=tuple(len(ids) for ids, _ in samples),
            token_ids=int32_column(token for ids, _ in samples for token in ids),
            log_probs=float32_column(value for _, values in samples for value in values),
            version_spans=tuple(
                VersionSpan(index, 0, len(ids), manifest.version) for index, (ids, _) in enumerate(samples)
            ),
            finish_reasons=(FinishReason.LENGTH,) * len(samples),
            numerics_id="0" * 16,
            generation_seconds=0.1,
        )
        return FinishedGroup(
            group=group,
            batches=(batch,),
            version_steps={manifest.version: manifest.step},
            worker_names=("worker-0",),
            backends=("cpu",),
        )

    def _load(self, manifest: WeightManifest) -> None:
        version = _Loaded(manifest, self.blobs)
        tensors = version.tensors()
        if manifest.adapter is not None:
            tensors = merged_tensors(*take_apart(version, manifest.adapter))
        for name, tensor in tensors:
            with torch.no_grad():
                self.policy.model.state_dict()[name].copy_(tensor)

    @torch.no_grad()
    def _sample(
        self, group: PromptGroup, prompt: torch.Tensor, generator: torch.Generator
    ) -> list[tuple[list[int], list[float]]]:
        """Samples the members of a group side by side; what follows a stop token is cut off."""
        sampling = group.sampling
        rows, values = prompt.repeat(group.group_size, 1), []
        for _ in range(sampling.max_new_tokens):
            log_probs = self.policy.model(input_ids=rows).logits[:, -1].log_softmax(-1)
            greedy = sampling.temperature == 0
            tokens = (
                log_probs.argmax(-1, keepdim=True)
                if greedy
                else torch.multinomial(log_probs.exp(), 1, generator=generator)
            )
            rows = torch.cat([rows, tokens], 1)
            values.append(log_probs.gather(-1, tokens))
        completions, columns = rows[:, prompt.numel() :].tolist(), torch.cat(values, 1).tolist()
        ends = [
            next((i + 1 for i, token in enumerate(ids) if token in sampling.stop_token_ids), len(ids))
            for ids in completions
        ]
        return [
            (ids[:end], column[:end]) for ids, column, end in zip(completions, columns, ends, strict=True)
        ]


@pytest.fixture
def make_hub(model_dir: Path) -> Callable[[], MemoryHub]:
    """Builds hubs in memory."""
    return lambda: MemoryHub(load_policy(model_dir, device=torch.device("cpu"), compute_dtype=torch.float32))


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `train` use the task and the grader of this file."""
    monkeypatch.setattr(
        local, "open_task", lambda config, *, seed, held_out: LettersTask(seed=seed, held_out=held_out)
    )
    monkeypatch.setattr(session, "Grader", LettersGrader)


@pytest.fixture
def make_config(model_dir: Path, tmp_path: Path) -> Callable[..., Config]:
    """Settings of a short run on the tiny model."""

    def make(**sections: Mapping[str, object]) -> Config:
        tree: dict[str, dict[str, object]] = {
            "run": {"dir": tmp_path / "run", "steps": 4},
            "model": {"path": str(model_dir)},
            "task": {"max_prompt_tokens": 8},
            "sampling": {"max_new_tokens": 4},
            "evaluation": {"every": 2, "prompts": 4},
            "estimator": {"name": "vespo"},
            "optimizer": {"learning_rate": 0.02, "epsilon": 1e-3},
            "trainer": {"groups_per_step": 4, "group_size": 4, "tokens_per_micro_batch": 64, "device": "cpu"},
            # The hub in memory reads full copies only.
            "weights": {
                "serving_dtype": "bfloat16",
                "anchor_every": 1,
                "probe_sequences": 2,
                "probe_tokens": 6,
            },
            "checkpoint": {"every": 2},
        }
        for name, section in sections.items():
            tree[name] = {**tree.get(name, {}), **section}
        return Config.model_validate(tree)

    return make
