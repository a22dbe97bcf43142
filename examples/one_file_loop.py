"""The whole algorithm in one file and one process: sample, grade, weigh, step. No hub, no worker, no network.

    python examples/one_file_loop.py
    python examples/one_file_loop.py --set estimator.name=gepo --set staleness.max_lag=0

It runs the quickstart's task with the package's own tasks and estimators. What `hetero-rl train` adds is everything
around this loop: completions that other processes make, on other vendors' chips, while the trainer trains.

Names: P prompts of a step, G completions of each, S = P * G sequences, N completion tokens in all of them.
"""

import argparse
import collections
import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from hetero_rl.config.load import load_config
from hetero_rl.config.tree import Config
from hetero_rl.estimators import Coefficients, Estimator, RecordedBatch, make_estimator, surrogate_loss
from hetero_rl.starter import ensure_starter
from hetero_rl.tasks import Grader, GradeRequest, PromptEncoder, Task, TaskItem, open_task

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.toml"


@dataclasses.dataclass(frozen=True, slots=True)
class Completion:
    """Sampled ids, and log mu of each as it was when the id was drawn."""

    token_ids: list[int]
    log_probs: list[float]


def main(overrides: Sequence[str] = ()) -> list[float]:
    """Runs the loop; returns the held-out accuracies it measured, the first one before any step."""
    config = load_config([QUICKSTART], overrides)
    print("making the starter model, or taking it from the cache ...")
    model_path = ensure_starter(config)
    policy = AutoModelForCausalLM.from_pretrained(model_path)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    encoder = PromptEncoder(tokenizer, config.task, max_new_tokens=config.sampling.max_new_tokens)
    task = open_task(config.task, seed=config.run.seed, held_out=config.evaluation.prompts)
    torch.manual_seed(config.run.seed)
    with Grader(task.scorer, time_limit=config.task.grading_timeout) as grader:
        return train(config, policy, task, encoder, grader)


def train(config: Config, policy: Any, task: Task, encoder: PromptEncoder, grader: Grader) -> list[float]:
    """The loop: sample with weights of max_lag steps ago, grade, step."""
    settings, count, group_size = config.optimizer, config.trainer.groups_per_step, config.trainer.group_size
    estimator = make_estimator(config.estimator.name, config.estimator.options)
    optimizer = torch.optim.AdamW(
        policy.parameters(), settings.learning_rate, settings.betas, weight_decay=settings.weight_decay
    )
    sampler = copy.deepcopy(policy)
    versions = collections.deque([copy.deepcopy(policy.state_dict())], maxlen=config.staleness.max_lag + 1)
    accuracies = [evaluate(policy, task, encoder, grader, config)]
    print(f"held-out accuracy before the first step: {accuracies[0]:.3f}")

    for step in range(1, config.run.steps + 1):
        items = [task.training_item(ordinal) for ordinal in range((step - 1) * count, step * count)]
        prompts = [encoder.encode(item.question) for item in items]
        sampler.load_state_dict(versions[0])
        completions = sample(sampler, prompts, group_size, config.sampling.max_new_tokens)

        items, prompts = repeat(items, group_size), repeat(prompts, group_size)
        recorded = RecordedBatch(
            behavior_log_probs=torch.tensor([value for one in completions for value in one.log_probs]),
            lengths=torch.tensor([len(one.token_ids) for one in completions]),
            group_ids=torch.arange(count).repeat_interleave(group_size),
            rewards=torch.tensor(grade(grader, encoder, items, completions)),
        )
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, step / max(1, settings.warmup_steps))
        weights = take_step(
            policy, optimizer, estimator, recorded, prompts, completions, settings.max_gradient_norm
        )
        versions.append(copy.deepcopy(policy.state_dict()))
        print(
            f"step {step:3d}   reward {recorded.rewards.mean():.3f}   "
            f"mean log W {weights.log_importance_ratio.mean():+.3f}   coefficient {weights.values.mean():.2f}"
        )
        if step == config.run.steps or (config.evaluation.every and step % config.evaluation.every == 0):
            accuracies.append(evaluate(policy, task, encoder, grader, config))
            print(f"held-out accuracy after step {step}: {accuracies[-1]:.3f}")
    return accuracies


def take_step(
    policy: Any,
    optimizer: torch.optim.Optimizer,
    estimator: Estimator[Any],
    recorded: RecordedBatch,
    prompts: Sequence[list[int]],
    completions: Sequence[Completion],
    max_gradient_norm: float,
) -> Coefficients:
    """One forward pass, coefficients from its detached log-probabilities, one backward pass, one step."""
    batch = estimator.prepare(recorded)  # advantages, and whatever else couples sequences
    log_probs = score(policy, prompts, completions)
    coefficients = estimator.coefficients(batch, log_probs.detach())
    loss = surrogate_loss(batch, coefficients, log_probs)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without types
    torch.nn.utils.clip_grad_norm_(policy.parameters(), max_gradient_norm)
    optimizer.step()
    return coefficients


@torch.no_grad()
def sample(
    model: Any, prompts: Sequence[list[int]], group_size: int, max_new_tokens: int, *, greedy: bool = False
) -> list[Completion]:
    """G completions of each prompt, group by group, with a key-value cache; each prompt is prefilled once."""
    stop = model.generation_config.eos_token_id
    width = max(len(prompt) for prompt in prompts)
    token_ids = torch.tensor([[stop] * (width - len(prompt)) + prompt for prompt in prompts])
    attended = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    positions = (attended.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    logits = model(token_ids, attention_mask=attended, position_ids=positions, cache=cache).logits[:, -1]
    cache.batch_repeat_interleave(group_size)
    attended, logits = attended.repeat_interleave(group_size, 0), logits.repeat_interleave(group_size, 0)

    completions = [Completion([], []) for _ in range(len(prompts) * group_size)]
    running = torch.ones(len(completions), dtype=torch.bool)
    while True:
        log_probs = logits.log_softmax(-1)
        chosen = log_probs.argmax(-1, keepdim=True) if greedy else torch.multinomial(log_probs.exp(), 1)
        chosen_log_probs = log_probs.gather(1, chosen)
        for row in running.nonzero().flatten().tolist():
            completions[row].token_ids.append(int(chosen[row]))
            completions[row].log_probs.append(float(chosen_log_probs[row]))
        running &= chosen.squeeze(1) != stop
        if not running.any() or attended.shape[1] == width + max_new_tokens - 1:
            return completions
        attended = torch.cat([attended, torch.ones_like(chosen)], 1)
        positions = attended.sum(1, keepdim=True) - 1
        logits = model(chosen, attention_mask=attended, position_ids=positions, cache=cache).logits[:, -1]


def score(model: Any, prompts: Sequence[list[int]], completions: Sequence[Completion]) -> Tensor:
    """The log pi of each completion token [N], with gradients. Padding on the right: causal attention never sees it."""
    rows = [prompt + one.token_ids for prompt, one in zip(prompts, completions, strict=True)]
    width = max(len(row) for row in rows)
    token_ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    log_probs = model(token_ids[:, :-1], use_cache=False).logits.log_softmax(-1)
    of_next = log_probs.gather(2, token_ids[:, 1:, None]).squeeze(2)
    spans = [(len(prompt) - 1, len(row) - 1) for prompt, row in zip(prompts, rows, strict=True)]
    return torch.cat([of_next[row, start:end] for row, (start, end) in enumerate(spans)])


def grade(
    grader: Grader, encoder: PromptEncoder, items: Sequence[TaskItem], completions: Sequence[Completion]
) -> list[float]:
    """Rewards by the task's own scorer, in a process of its own."""
    requests = [
        GradeRequest(payload=item.payload, completion=encoder.decode(one.token_ids))
        for item, one in zip(items, completions, strict=True)
    ]
    return [grade.reward for grade in grader.grade(requests)]


def evaluate(model: Any, task: Task, encoder: PromptEncoder, grader: Grader, config: Config) -> float:
    """Share of the held-out questions answered exactly; at temperature 0 the likeliest token is chosen each time."""
    items = task.held_out_items
    prompts = [encoder.encode(item.question) for item in items]
    greedy = config.evaluation.temperature == 0
    completions = sample(model, prompts, 1, config.sampling.max_new_tokens, greedy=greedy)
    rewards = grade(grader, encoder, items, completions)
    return sum(reward == 1.0 for reward in rewards) / len(rewards)


def repeat(elements: list[Any], times: int) -> list[Any]:
    """Each element that many times, side by side."""
    return [element for element in elements for _ in range(times)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", action="append", default=[], metavar="key=value", dest="overrides")
    main(parser.parse_args().overrides)
