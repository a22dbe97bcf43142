"""Run by torchrun: three steps of a tiny model on several ranks, then a checkpoint and a snapshot; writes what came out."""

import json
import sys
from pathlib import Path

import torch

from hetero_rl.bench.trainer import Shapes, make_batch
from hetero_rl.config.tree import LoraConfig, OptimizerConfig
from hetero_rl.errors import NonFiniteError
from hetero_rl.estimators import make_estimator
from hetero_rl.trainer.adapters import add_adapters
from hetero_rl.trainer.followers import LeadingLearner, follow
from hetero_rl.trainer.policy import load_policy
from hetero_rl.trainer.ranks import end_process, joined_ranks
from hetero_rl.trainer.sharding import shard_policy
from hetero_rl.trainer.shards import write_shards
from hetero_rl.trainer.snapshots import SnapshotScorer, take_snapshot
from hetero_rl.trainer.state import capture_tensors, restore_tensors
from hetero_rl.trainer.step import Learner, record
from hetero_rl.trainer.tensor_files import seal_of, write_tensors

SHAPES = Shapes(16, 32, 2, 2, 1, 64, 6, (2, 5, 3, 4))


def batch_of(step):
    import dataclasses

    batch = make_batch(SHAPES, None)
    generator = torch.Generator().manual_seed(step)
    behavior = torch.full_like(batch.behavior_log_probs, -4.16)
    return dataclasses.replace(
        batch, step=step, behavior_log_probs=behavior, rewards=torch.rand(4, generator=generator)
    )


def run(directory, name, policy, ranks, restore, layout):
    options = {"tokens_per_micro_batch": 16}
    # A large epsilon: Adam would divide rounding errors by themselves.
    config = OptimizerConfig(learning_rate=0.05, epsilon=1e-2)
    kind = Learner if ranks is not None and ranks.rank else LeadingLearner
    learner = kind(policy, make_estimator(name, {}), config, **options)
    if restore:
        restore_tensors(Path(restore), policy, learner.optimizer)
    if ranks is not None and ranks.rank:
        follow(learner, ranks)
        return None
    results = []
    for step in range(1, 4):
        batch = batch_of(step)
        result = learner.step(batch, record(batch, group_size=4, max_new_tokens=8))
        results.append([result.loss, result.gradient_norm, *result.log_probs.tolist()])
    poisoned = batch_of(4)
    poisoned.rewards[0] = 1e38
    try:
        learner.step(poisoned, record(poisoned, group_size=4, max_new_tokens=8))
        refused = False
    except NonFiniteError:
        refused = True
    if layout == "sharded":
        seals = write_shards(policy, learner.optimizer, directory)
        assert all(seal_of(directory / file) == seal for file, seal in seals.items())
    else:
        for file, tensors in capture_tensors(policy, learner.optimizer).items():
            write_tensors(directory / file, tensors)
    snapshot = take_snapshot(policy, 3, torch.float32)
    # Where adapters are published, every rank leaves their base alone the second time.
    snapshot = take_snapshot(policy, 3, torch.float32, snapshot)
    scores = SnapshotScorer(policy).score(snapshot, [[5, 6, 7, 8]])
    learner.stop()
    return {"steps": results, "refused": refused, "scores": scores, "tensors": sorted(snapshot.tensors)}


def main(model, out, name, restore="", layout="whole", rank="0", publish="merged"):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    directory = Path(out)
    policy = load_policy(Path(model), device=torch.device("cpu"), compute_dtype=torch.float32)
    if int(rank):
        policy = add_adapters(policy, LoraConfig(rank=int(rank), publish=publish), seed=0)
    with joined_ranks(torch.device("cpu")) as ranks:
        if ranks is not None:
            policy = shard_policy(policy, ranks)
        found = run(directory, name, policy, ranks, restore, layout)
    if found is not None:
        (directory / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process()
