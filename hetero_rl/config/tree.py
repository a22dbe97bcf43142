"""The one validated tree of settings. Imports neither torch nor grpc.

Every field has a bound where one exists and a sentence; an unknown key is refused with the nearest name
(`hetero_rl.config.load`). `hetero-rl config show` prints the resolved tree.
"""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

__all__ = [
    "CheckpointConfig",
    "Config",
    "CostConfig",
    "EstimatorConfig",
    "EvaluationConfig",
    "FleetMember",
    "HubConfig",
    "InferenceConfig",
    "LauncherConfig",
    "LoggingConfig",
    "ModelConfig",
    "ObservabilityConfig",
    "OptimizerConfig",
    "PlacementConfig",
    "RelayConfig",
    "RunConfig",
    "SamplingConfig",
    "SecurityConfig",
    "StalenessConfig",
    "StarterConfig",
    "TaskConfig",
    "TrainerConfig",
    "WeightsConfig",
    "WorkerConfig",
]

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class Section(BaseModel):
    """Base of every section: frozen, unknown keys refused, defaults checked like input."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )


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
    """Low-rank adapters in place of all weights. Workers get merged weights."""

    rank: int = Field(0, ge=0)
    """Columns of the adapters; 0 trains all weights. Needs peft (extra `lora`)."""
    alpha: float = Field(16.0, gt=0)
    """alpha / rank multiplies what the adapters add. There is no dropout."""
    targets: tuple[str, ...] = ()
    """Linear layers that get adapters, such as "q_proj"; none names all within the decoder layers."""


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
    blob_store: str | None = None
    """fsspec URL where the hub keeps weight blobs, such as s3://bucket/weights; None is the hub's disk. A run stays with it."""
    probe_sequences: int = Field(4, ge=0)
    """Sequences of the probe card; 0 publishes none."""
    probe_tokens: int = Field(32, ge=2)
    """Tokens of each probe sequence."""
    probe_tolerance: float = Field(0.1, gt=0)
    """Mean absolute log-probability difference above which a worker is quarantined."""


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


class HubConfig(Section):
    """The hub and its limits."""

    address: str | None = None
    """host:port of a running hub; None starts one on loopback."""
    listen: str = "127.0.0.1:0"
    """Address a started hub listens on; port 0 picks a free one."""
    lease_seconds: float = Field(60.0, gt=0)
    """How long a lease lasts without a heartbeat."""
    heartbeat_seconds: float = Field(5.0, gt=0)
    missed_heartbeats: int = Field(3, ge=1)
    """Heartbeats missed before a worker is declared dead."""
    max_message_bytes: int = Field(8 * 2**20, ge=2**16, le=2**30)
    """Largest message either way."""
    retained_sequences: int = Field(4096, ge=0)
    """Size of the reservoir sample of sequences whose token columns are kept for the audit."""


class WorkerConfig(Section):
    """One inference worker."""

    max_concurrent_sequences: int = Field(128, ge=1)
    """Sequences decoded at once."""
    threads: int = Field(0, ge=0)
    """CPU threads of the engine; 0 leaves torch's choice."""
    dtype: Literal["bfloat16", "float16", "float32"] = "float32"
    """Data type of weights and activations in the engine."""
    weight_update: Literal["in_flight", "drain"] = "in_flight"
    """Load new weights between two tokens, or after running completions end."""
    model_path: str | None = None
    """Own model directory; None takes the files from the hub."""
    engine_options: dict[str, Any] = Field(default_factory=dict)
    """Options by the engine's own names, over those of the profile, such as max_model_len for vLLM."""
    engine: Name | None = None
    """Engine of the backend, such as "transformers" on "cuda"; None takes the backend's own choice."""
    shared_dir: Path | None = None
    """Directory that all nodes of this worker's engine see: vLLM over several nodes gets new weights through it."""
    profile: Name = "default"
    """Knobs of the backend: "default", or "reproducible" where it has one; `hetero-rl doctor` lists them."""
    relay: str | None = None
    """host:port of the site's relay for weights; the hub serves them when it is gone. None always asks the hub."""
    emulate: Name | None = None
    """Numerics of another chip to imitate with the transformers engine, such as "ascend-910a"; always labelled emulated."""


class RelayConfig(Section):
    """A site's cache of the weight service, `hetero-rl relay`."""

    listen: str = "127.0.0.1:7078"
    """Address that the workers of the site dial; port 0 picks a free one."""
    cache_dir: Path | None = None
    """Where weights are kept; None is the user's cache directory. One relay each."""
    cache_bytes: int = Field(2**36, ge=0)
    """Most bytes kept; what is being fetched or read may exceed it."""


class FleetMember(Section):
    """Some workers of one backend with settings of their own."""

    backend: Name
    """Backend, as `--infer-backend` names it."""
    workers: int = Field(1, ge=1)
    name: Name | None = None
    """What the workers' names begin with; None takes the backend's name, and what it emulates."""
    worker: dict[str, Any] = Field(default_factory=dict)
    """Settings that differ from `inference.worker`, such as {emulate = "bf16"}."""

    @property
    def label(self) -> str:
        """What the workers' names begin with."""
        emulate = self.worker.get("emulate")
        return self.name or (f"{self.backend}-{emulate}" if emulate else self.backend)


class InferenceConfig(Section):
    """Where completions are generated."""

    backends: tuple[Name, ...] = ("cpu",)
    """Backends, as `--infer-backend` names them."""
    workers: int = Field(1, ge=0)
    """Workers of each backend to start on this host; 0 waits for remote ones."""
    worker: WorkerConfig = WorkerConfig()
    """Settings of the workers started here."""
    fleet: tuple[FleetMember, ...] = ()
    """Workers by groups that differ in settings, instead of `backends` and `workers`."""
    start_timeout: float = Field(300.0, gt=0)
    """Seconds to wait for the first worker."""
    remote_worker_timeout: float = Field(1800.0, gt=0)
    """Seconds to wait for a worker that has to be started on another machine, because this one has no such device."""

    @property
    def members(self) -> tuple[FleetMember, ...]:
        """The fleet; without one, a member for each backend."""
        plain = (FleetMember(backend=name, workers=max(1, self.workers)) for name in self.backends)
        return self.fleet or tuple(plain)

    @model_validator(mode="after")
    def _members_are_distinct_and_settings_are_known(self) -> "InferenceConfig":
        labels = [member.label for member in self.members]
        if len(set(labels)) < len(labels):
            raise ValueError(f"two groups of workers are called {labels}: give each a name of its own")
        for member in self.fleet:
            WorkerConfig.model_validate({**self.worker.model_dump(), **member.worker})
        return self


class LauncherConfig(Section):
    """Who starts the processes of a run, and where."""

    kind: Literal["local", "ray"] = "local"
    """"local" starts workers on this host; "ray" places workers and trainer ranks on a Ray cluster of one vendor."""
    address: str = "auto"
    """Ray cluster: host:port of its head, "auto" for the one with a node on this host, "local" for a node of this run's own."""
    trainer_backend: Name = "cpu"
    """Backend whose devices the trainer's ranks ask of Ray: "cuda", or "cpu" for none."""
    trainer_ranks: int = Field(1, ge=1)
    """Trainer processes, one for each group of devices; they share run.dir and the model's directory."""
    devices_per_rank: int = Field(1, ge=1)
    cpus_per_rank: float = Field(1.0, gt=0)
    """CPUs that a rank asks of Ray."""
    devices_per_worker: int = Field(1, ge=1)
    """Devices of a worker, all on one node; an engine that spreads itself over nodes by Ray asks for its own."""
    cpus_per_worker: float = Field(1.0, ge=0)
    """CPUs that a worker asks of Ray."""
    node_timeout: float = Field(60.0, ge=0)
    """Seconds to wait for nodes with room for the trainer and for workers of each backend to be there."""
    max_restarts: int = Field(5, ge=0)
    """Deaths in quick succession after which a worker, or the trainer, is given up."""


class PlacementConfig(Section):
    """Which worker generates what."""

    split_groups: bool = False
    """Whether the completions of a training group may be spread over workers; otherwise a group is leased whole."""


class SecurityConfig(Section):
    """Transport security: bundles of `hetero-rl certs`, or certificates of your own; nothing is plaintext on loopback."""

    credentials: Path | None = None
    """Bundle that this process shows to the hub."""
    hub_credentials: Path | None = None
    """Bundle that a hub shows; None takes `credentials`."""
    registry: Path | None = None
    """For a hub: the file of `hetero-rl certs` that knows tokens and revocations."""
    certificate_authority: Path | None = None
    certificate: Path | None = None
    """Own certificate instead of a bundle; names its holder as hetero-rl://ROLE/NAME."""
    private_key: Path | None = None
    insecure: bool = False
    """Listen on a non-loopback address without TLS. Anyone who reaches the port can then change the run."""

    @property
    def enabled(self) -> bool:
        """Whether calls to the hub use TLS."""
        return self.certificate is not None or self.credentials is not None

    @property
    def serves_tls(self) -> bool:
        """Whether a hub with these settings speaks TLS."""
        return self.enabled or self.hub_credentials is not None

    @model_validator(mode="after")
    def _all_or_none(self) -> "SecurityConfig":
        paths = (self.certificate_authority, self.certificate, self.private_key)
        if any(paths) and not all(paths):
            raise ValueError(
                "give certificate_authority, certificate and private_key together, or none of them"
            )
        if any(paths) and (self.credentials or self.hub_credentials):
            raise ValueError("give a credentials bundle or certificate files, not both")
        return self


class LoggingConfig(Section):
    """What a person sees and where metrics go."""

    live: bool | None = None
    """Live view; None shows it on a terminal."""
    tensorboard: bool = True
    audit: bool = True
    """Write audit.html and audit.json into the run directory at the end of training."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"
    """Log records as lines for people, or as one JSON object each, with run, worker and version."""


class ObservabilityConfig(Section):
    """What monitoring reads, and further places that metrics go to."""

    metrics_listen: str = ""
    """host:port where this process answers Prometheus; needs hetero-rl[metrics]. Empty is off, port 0 picks a free one."""
    wandb: bool = False
    """Whether the trainer also logs to Weights & Biases; needs hetero-rl[wandb]."""
    trackio: bool = False
    """Whether the trainer also logs to trackio; needs hetero-rl[trackio]."""
    traces: str = Field("", pattern=r"^(https?://[^\s@]+)?$")
    """OTLP collector that takes a trace of each group, such as "http://127.0.0.1:4318"; needs hetero-rl[otel]. Empty is off."""
    trace_share: float = Field(1.0, gt=0, le=1)
    """Share of groups that are traced; the same groups in every process."""
    project: Name = "hetero-rl"
    """Project at Weights & Biases and trackio; run.name is the group there."""


class CostConfig(Section):
    """What devices cost, for `hetero-rl status`; nothing is decided by it."""

    device_hour: dict[str, float] = Field(default_factory=dict)
    """Price of one device's hour by backend, such as {ascend = 1.1, cuda = 2.4}; backends without one are not priced."""
    devices_per_worker: dict[str, int] = Field(default_factory=dict)
    """Devices of a worker by backend, where that is not one."""
    currency: str = Field("", max_length=8)
    """Unit of the prices, as it is shown."""

    @model_validator(mode="after")
    def _no_negative_price(self) -> "CostConfig":
        for name, price in self.device_hour.items():
            if not 0 <= price < math.inf:
                raise ValueError(f"device_hour of {name} is {price}: a price is finite and not negative")
        for name, count in self.devices_per_worker.items():
            if count < 1:
                raise ValueError(f"devices_per_worker of {name} is {count}: give at least 1")
        return self


class Config(Section):
    """The whole tree."""

    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    task: TaskConfig = TaskConfig()
    sampling: SamplingConfig = SamplingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    staleness: StalenessConfig = StalenessConfig()
    estimator: EstimatorConfig = EstimatorConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    trainer: TrainerConfig = TrainerConfig()
    weights: WeightsConfig = WeightsConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    hub: HubConfig = HubConfig()
    relay: RelayConfig = RelayConfig()
    inference: InferenceConfig = InferenceConfig()
    launcher: LauncherConfig = LauncherConfig()
    placement: PlacementConfig = PlacementConfig()
    security: SecurityConfig = SecurityConfig()
    logging: LoggingConfig = LoggingConfig()
    observability: ObservabilityConfig = ObservabilityConfig()
    cost: CostConfig = CostConfig()

    @model_validator(mode="after")
    def _versions_keep_the_gate_open(self) -> "Config":
        """The gate opens with new versions: published more rarely than this, the run would wait for itself."""
        if self.weights.publish_every > self.staleness.max_lag + 1:
            raise ValueError(
                f"weights.publish_every is {self.weights.publish_every}, but staleness.max_lag is "
                f"{self.staleness.max_lag}: publish at least every {self.staleness.max_lag + 1} steps, or no worker may start"
            )
        return self
