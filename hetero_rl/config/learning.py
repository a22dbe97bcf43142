"""What is trained, on what, and how. Part of the tree of settings (`config.tree`)."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from hetero_rl.config.section import Name, Section

__all__ = [
    "CheckpointConfig",
    "EstimatorConfig",
    "EvaluationConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
    "SamplingConfig",
    "StalenessConfig",
    "StarterConfig",
    "TaskConfig",
    "TrainerConfig",
    "WeightsConfig",
]


class RunConfig(Section):
    """The run as a whole."""

    dir: Path = Path("runs/default")
    """Directory of everything the run keeps."""
    name: Name = "default"
    """Identity of the run in the protocol and in reports."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of data order, initialisation and sampling."""
    steps: int = Field(100, ge=1)
    """Optimizer steps to make."""


class StarterConfig(Section):
    """A small model made on the spot when `model.path` is "starter": a fixture to see the job run, not a model to use."""

    hidden_size: int = Field(128, ge=16)
    num_layers: int = Field(4, ge=1)
    num_heads: int = Field(4, ge=1)
    intermediate_size: int = Field(512, ge=16)
    supervised_steps: int = Field(400, ge=0)
    """Most steps of supervised training on the task's own solutions before reinforcement starts."""
    target_loss: float = Field(0.0, ge=0)
    """Supervision ends early once the cross-entropy of a solution's token, mean of four steps, is below this; in nats."""
    supervised_batch_size: int = Field(128, ge=1)
    learning_rate: float = Field(2e-3, gt=0)
    cache_dir: Path | None = None
    """Where made models are kept by content; None is the user's cache directory."""


class ModelConfig(Section):
    """The policy."""

    path: str = "starter"
    """Directory of a Hugging Face causal language model in safetensors, or "starter"."""
    starter: StarterConfig = StarterConfig()
    """The model made when path is "starter"."""
    attention: Literal["eager", "sdpa"] = "sdpa"
    """Attention implementation of the trainer."""


class TaskConfig(Section):
    """Prompts and rewards."""

    name: str = "reasoning-gym"
    """Kind of task: "reasoning-gym" or "jsonl"."""
    dataset: str = "chain_sum"
    """reasoning-gym: name of the task."""
    options: dict[str, Any] = Field(default_factory=dict)
    """reasoning-gym: settings of the task, as its own documentation names them."""
    path: Path | None = None
    """jsonl: file of one {"prompt": ..., "answer": ...} object per line."""
    prompt_template: str = "{question}"
    """How a question becomes a prompt; {question} is replaced. Models with a chat template get it as the user turn."""
    chat_template: bool = False
    """Whether the tokenizer's chat template wraps the prompt."""
    max_prompt_tokens: int = Field(1024, ge=1)
    """Longer prompts are refused at start."""
    grading_timeout: float = Field(5.0, gt=0)
    """Seconds that the grader may take for one completion; over it the reward is 0."""
    grading_processes: int = Field(1, ge=1)
    """Grader processes."""
    held_out_fraction: float = Field(0.1, gt=0, lt=1)
    """jsonl: share of the lines kept for evaluation. reasoning-gym draws held-out items from a seed of its own."""


class SamplingConfig(Section):
    """How training completions are sampled. Anything but 1, 1, 0 needs workers that report the processed distribution."""

    max_new_tokens: int = Field(32, ge=1)
    temperature: float = Field(1.0, gt=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)


class EvaluationConfig(Section):
    """Held-out evaluation by the workers that serve the policy."""

    every: int = Field(10, ge=0)
    """Steps between evaluations; 0 evaluates only before the first and after the last step."""
    prompts: int = Field(128, ge=1)
    """Held-out prompts per evaluation."""
    temperature: float = Field(0.0, ge=0, le=2)
    """0 is greedy."""


class StalenessConfig(Section):
    """How far behind the trainer a sample's weights may be."""

    max_lag: int = Field(2, ge=0)
    """Largest lag in optimizer steps; 0 alternates generation and training."""


class EstimatorConfig(Section):
    """The off-policy estimator."""

    name: str = "vespo"
    """Preset; `hetero-rl estimators` lists them."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Constants that replace the preset's own."""
    recompute_old_log_probs: Literal["never", "sampled", "always"] = "never"
    """Whether log pi_old is recomputed, to split the importance ratio into chip and staleness exactly."""


class OptimizerConfig(Section):
    """AdamW on float32 master weights."""

    learning_rate: float = Field(1e-6, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_gradient_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this norm."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of linear warm-up; constant afterwards."""

    @field_validator("betas")
    @classmethod
    def _betas_in_range(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must lie in [0, 1), got {betas}")
        return betas


class LoraConfig(Section):
    """Low-rank adapters in place of all weights."""

    rank: int = Field(0, ge=0)
    """Columns of the adapters; 0 trains all weights. Needs peft (extra `lora`)."""
    alpha: float = Field(16.0, gt=0)
    """alpha / rank multiplies what the adapters add. There is no dropout."""
    targets: tuple[str, ...] = ()
    """Linear layers that get adapters, such as "q_proj"; none names all within the decoder layers."""
    publish: Literal["merged", "adapter"] = "merged"
    """What workers get: "merged", the model with the adapters added, or "adapter", the frozen model once and the adapters
    alone with every version."""

    @model_validator(mode="after")
    def _adapters_to_publish(self) -> Self:
        if self.publish == "adapter" and not self.rank:
            raise ValueError(
                'publish is "adapter", but rank is 0: there are no adapters; set rank, or publish "merged"'
            )
        return self


class TrainerConfig(Section):
    """The optimizer step."""

    groups_per_step: int = Field(16, ge=1)
    """Prompt groups per optimizer step."""
    group_size: int = Field(8, ge=1)
    """Completions per prompt."""
    tokens_per_micro_batch: int = Field(8192, ge=1)
    """Prompt and completion tokens, padding included, of one forward and backward pass."""
    device: str = "auto"
    """Where the trainer computes: "auto", "cpu" or a torch device such as "cuda:0"."""
    compute_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Data type of forward and backward; master weights stay float32."""
    head_dtype: Literal["compute", "float32"] = "compute"
    """Data type of the output head's products: as the rest, or float32. Sums and log-probabilities are float32 anyway."""
    matmul_precision: Literal["highest", "high"] = "highest"
    """float32 products on an accelerator: "highest" is IEEE float32, "high" allows TF32."""
    entropy_bonus: float = Field(0.0, ge=0)
    """Weight of the mean entropy of the policy's distributions in the loss, in nats; 0 leaves it out."""
    reference_kl: float = Field(0.0, ge=0)
    """Weight of the divergence from the policy that the run began with; 0 leaves it out and loads no reference."""
    activation_checkpointing: bool = False
    """Keep only the inputs of decoder layers and compute them again in backward: less memory, a third more time."""
    compile: bool = False
    """Compile decoder layers with torch.compile."""
    offload_optimizer: bool = False
    """Keep the optimizer's moments in the host's memory between steps."""
    lora: LoraConfig = LoraConfig()
    threads: int = Field(0, ge=0)
    """CPU threads of the trainer; 0 leaves torch's choice."""
    prefetch_groups: int = Field(0, ge=0)
    """Prompt groups kept queued ahead at the hub; 0 derives it from the batch and max_lag."""


class WeightsConfig(Section):
    """What is published to the workers."""

    serving_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Data type of the published copy."""
    publish_every: int = Field(1, ge=1)
    """Steps between published versions."""
    anchor_every: int = Field(16, ge=1)
    """Versions from one full copy to the next, which follows its delta in the background. 1 publishes full copies only."""
    anchor_encoding: Literal["raw", "planes"] = "raw"
    """How full copies that follow a delta are coded. "planes": about 0.7 of the bytes, and slower than "raw" on lines beyond about 0.5 Gbit/s."""
    blob_store: str | None = None
    """fsspec URL where the hub keeps weight blobs, such as s3://bucket/weights; None is the hub's disk. A run stays with it."""
    probe_sequences: int = Field(4, ge=0)
    """Sequences of the probe card; 0 publishes none."""
    probe_tokens: int = Field(32, ge=2)
    """Tokens of each probe sequence."""
    probe_tolerance: float = Field(0.2, gt=0)
    """Mean absolute log-probability difference above which a worker is quarantined. A sound bfloat16 worker was seen at 0.10."""


class CheckpointConfig(Section):
    """Durable state of the trainer."""

    every: int = Field(20, ge=1)
    """Steps between checkpoints; the last step is always kept."""
    layout: Literal["whole", "sharded"] = "whole"
    """"whole": a model directory with whole tensors. "sharded": every rank writes its own rows; `hetero-rl export` puts them
    together."""
    keep: int = Field(2, ge=2)
    """Valid checkpoints kept."""
    max_failures: int = Field(3, ge=1)
    """Checkpoints in a row that may fail, on a full disk for example, before the run stops."""
