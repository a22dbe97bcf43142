"""Settings of a run that takes seconds, for the tests that start whole runs."""

from hetero_rl.config.show import toml_value

TINY = {
    "run.name": "tiny",
    "run.steps": 6,
    "model.starter.hidden_size": 32,
    "model.starter.num_layers": 1,
    "model.starter.num_heads": 2,
    "model.starter.intermediate_size": 64,
    "model.starter.supervised_steps": 30,
    "model.starter.supervised_batch_size": 16,
    "task.dataset": "spell_backward",
    "task.options": {"min_word_len": 3, "max_word_len": 3},
    "task.max_prompt_tokens": 64,
    "sampling.max_new_tokens": 6,
    "evaluation.prompts": 8,
    "optimizer.learning_rate": 1e-3,
    "trainer.groups_per_step": 2,
    "trainer.group_size": 4,
    "trainer.threads": 1,
    "inference.worker.threads": 1,
    "inference.worker.max_concurrent_sequences": 32,
}


def tiny_run(**changes):
    """A settings file as text; `changes` are by key, with two underscores for each dot: `run__steps=20`."""
    settings = TINY | {key.replace("__", "."): value for key, value in changes.items()}
    return "".join(f"{key} = {toml_value(key, value)}\n" for key, value in settings.items())
