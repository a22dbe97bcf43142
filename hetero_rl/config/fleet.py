"""Who generates, and what links it to the trainer. Part of the tree of settings (`config.tree`)."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from hetero_rl.config.section import Name, Section

__all__ = [
    "FleetMember",
    "HubConfig",
    "InferenceConfig",
    "LauncherConfig",
    "PlacementConfig",
    "RelayConfig",
    "WorkerConfig",
]


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
    ask_ahead: bool = False
    """Hold work beyond what the engine decodes, so that it never waits for the hub: for workers far away. Groups begin earlier, so lag grows."""
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
