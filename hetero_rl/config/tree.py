"""The one validated tree of settings. Imports neither torch nor grpc.

Every field has a bound where one exists and a sentence; an unknown key is refused with the nearest name
(`hetero_rl.config.load`). `hetero-rl config show` prints the resolved tree.
"""

from pydantic import model_validator

from hetero_rl.config.fleet import (
    FleetMember,
    HubConfig,
    InferenceConfig,
    LauncherConfig,
    PlacementConfig,
    RelayConfig,
    WorkerConfig,
)
from hetero_rl.config.learning import (
    CheckpointConfig,
    EstimatorConfig,
    EvaluationConfig,
    LoraConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    SamplingConfig,
    StalenessConfig,
    StarterConfig,
    TaskConfig,
    TrainerConfig,
    WeightsConfig,
)
from hetero_rl.config.operations import CostConfig, LoggingConfig, ObservabilityConfig, SecurityConfig
from hetero_rl.config.section import Section

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
    "LoraConfig",
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
