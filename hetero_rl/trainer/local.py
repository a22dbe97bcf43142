"""What the trainer has before it talks to the hub: task, model, optimizer, and the checkpoint that is continued."""

import dataclasses
import logging
from pathlib import Path

import torch

from hetero_rl.config.tree import Config
from hetero_rl.errors import ConfigError
from hetero_rl.estimators import make_estimator
from hetero_rl.tasks import Task, open_task
from hetero_rl.trainer.adapters import without_adapters
from hetero_rl.trainer.checkpoint import Checkpoint, latest_checkpoint
from hetero_rl.trainer.followers import LeadingLearner
from hetero_rl.trainer.model import ModelSource, open_model, open_policy
from hetero_rl.trainer.objective import LossTerms
from hetero_rl.trainer.policy import Policy
from hetero_rl.trainer.prompts import PromptMaker
from hetero_rl.trainer.ranks import Ranks
from hetero_rl.trainer.state import config_digest, restore_random_states, restore_tensors
from hetero_rl.trainer.step import Learner

__all__ = ["LocalState", "check_settings", "open_local_state"]

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LocalState:
    """Everything of a run that is on this machine."""

    config: Config
    task: Task
    model: ModelSource
    maker: PromptMaker
    learner: Learner
    checkpoint: Checkpoint | None
    """What the learner was restored from; None at the beginning of a run."""

    @property
    def step(self) -> int:
        """Optimizer steps in the weights."""
        return self.checkpoint.manifest.step if self.checkpoint else 0

    @property
    def expected_version(self) -> int:
        """The number that the weights have if they are published already."""
        return self.checkpoint.manifest.weight_version if self.checkpoint else 1


def check_settings(config: Config) -> None:
    """Raises ConfigError for settings that the trainer cannot keep."""
    if config.sampling.top_p != 1 or config.sampling.top_k != 0:
        raise ConfigError(
            f"sampling.top_p is {config.sampling.top_p} and top_k is {config.sampling.top_k}: the trainer does not"
            " reproduce a truncated distribution, so the importance ratio would be wrong; set them to 1 and 0"
        )
    if config.trainer.lora.rank and config.checkpoint.layout == "sharded":
        raise ConfigError(
            "checkpoint.layout is 'sharded', which holds no adapters; with trainer.lora set it to 'whole'"
        )
    make_estimator(config.estimator.name, config.estimator.options).check_run(
        group_size=config.trainer.group_size,
        old_log_probs=config.estimator.recompute_old_log_probs == "always",
    )


def open_local_state(
    config: Config, *, resume: bool, model_dir: Path | None, ranks: Ranks | None = None
) -> LocalState:
    """Opens task and model, and restores the newest whole checkpoint when the run is continued.

    Args:
        config: The resolved settings.
        resume: Whether the run is continued.
        model_dir: Directory of the model; None reads `model.path`.
        ranks: The trainer's processes; None when there is one.

    Raises:
        ConfigError: A setting, the model or the run directory cannot be used.
        TaskError: The task cannot be opened.
    """
    check_settings(config)
    if config.trainer.threads:
        torch.set_num_threads(config.trainer.threads)
    torch.manual_seed(config.run.seed)
    task = open_task(config.task, seed=config.run.seed, held_out=config.evaluation.prompts)
    model = open_model(config, model_dir, ranks)
    reference = None
    if config.trainer.reference_kl:
        reference = _reference(config, model, ranks)
    learner = (LeadingLearner if ranks is None or ranks.rank == 0 else Learner)(
        model.policy,
        make_estimator(config.estimator.name, config.estimator.options),
        config.optimizer,
        tokens_per_micro_batch=config.trainer.tokens_per_micro_batch,
        temperature=config.sampling.temperature,
        terms=LossTerms(config.trainer.entropy_bonus, config.trainer.reference_kl),
        reference=reference,
        offload_optimizer=config.trainer.offload_optimizer,
    )
    return LocalState(
        config=config,
        task=task,
        model=model,
        maker=PromptMaker(task, model.encoder, config, model.stop_token_ids),
        learner=learner,
        checkpoint=_restore(config, learner, resume=resume),
    )


def _reference(config: Config, model: ModelSource, ranks: Ranks | None) -> Policy:
    """The policy that the run began with; where adapters are trained it is there already, but for sharded ones."""
    if model.policy.adapters is not None and ranks is None:
        return without_adapters(model.policy)
    reference = open_policy(config, model.directory, ranks, adapted=False)
    reference.model.requires_grad_(requires_grad=False)
    return reference


def _restore(config: Config, learner: Learner, *, resume: bool) -> Checkpoint | None:
    checkpoint = latest_checkpoint(config.run.dir / "checkpoints", set_damaged_aside=resume)
    if checkpoint is None:
        return None
    if not resume:
        raise ConfigError(
            f"run.dir {str(config.run.dir)!r} holds a run of {checkpoint.manifest.step} steps; resume it, or choose"
            " another run.dir"
        )
    if checkpoint.manifest.config_digest != config_digest(config):
        _LOG.warning("settings differ from those of the checkpoint in %s", checkpoint.path)
    adapters, base = learner.policy.adapters, checkpoint.manifest.base_digest
    if adapters is not None and base and base != adapters.base_digest:
        raise ConfigError(
            f"the adapters of {checkpoint.path} are of another model than that of model.path"
            f" {config.model.path!r}: its weights have digest {adapters.base_digest[:12]}, not {base[:12]}"
        )
    restore_tensors(checkpoint.path, learner.policy, learner.optimizer)
    restore_random_states(checkpoint.manifest.random_states)
    return checkpoint
