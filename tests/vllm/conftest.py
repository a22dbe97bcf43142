"""A cluster of two environments: hub and trainer in this one, vLLM in another, as on machines of two vendors."""

import contextlib
import json
import os
import subprocess
import sys
import time

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from hetero_rl.starter.tokenizer import build_tokenizer

VLLM_PYTHON = os.environ.get("HETERO_RL_VLLM_PYTHON", "")
"""Python of the environment that has vLLM; without it there is nothing to test here."""
collect_ignore_glob = [] if VLLM_PYTHON else ["test_*.py"]
COMMAND = ["-m", "hetero_rl.cli.main"]
PATIENCE = 500.0
STEPS = 3

SETTINGS = """
[run]
name = "mixed"
dir = "{directory}/run"
steps = {steps}

[model]
path = "{directory}/model"

[task]
dataset = "spell_backward"
options = {{min_word_len = 3, max_word_len = 3}}
max_prompt_tokens = 64

[sampling]
max_new_tokens = 12

[evaluation]
every = 0
prompts = 8
temperature = 1.0

[staleness]
max_lag = 0

[optimizer]
learning_rate = 1e-3

[trainer]
groups_per_step = 4
group_size = 4
threads = 1

[weights]
serving_dtype = "{dtype}"

[inference]
workers = 0
backends = ["vllm-cpu"]
start_timeout = 600
remote_worker_timeout = 600

[inference.worker]
dtype = "{dtype}"
threads = 1
max_concurrent_sequences = 32
"""

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}

MODELS = {
    "dense": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)),
    "tied": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True)),
    "moe": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **EXPERTS, tie_word_embeddings=False)),
}

MEASURED = pytest.StashKey[list[str]]()


def make_model(kind, directory):
    """A model with random weights wide enough that its distributions are far from uniform."""
    torch.manual_seed(0)
    model = MODELS[kind]()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape) + (1.0 if "norm" in name else 0.0))
    model.save_pretrained(directory)
    build_tokenizer(max_length=SIZES["max_position_embeddings"]).save_pretrained(directory)


class Cluster:
    """A run of hub and trainer, and a vLLM worker beside it; whatever is left is ended with the test."""

    def __init__(self, directory, kind, dtype, steps=STEPS, settings=""):
        self.directory = directory
        make_model(kind, directory / "model")
        self.settings = directory / "mixed.toml"
        self.settings.write_text(SETTINGS.format(directory=directory, dtype=dtype, steps=steps) + settings)
        self.run = directory / "run"
        self.trainer = self._start("trainer", sys.executable, [*COMMAND, "train", self.settings])
        self.hub = self._wait_for(self.run / "hub" / "address")
        self.worker = None

    def start_worker(self, *start):
        """Starts the worker; `start` are what Python runs in place of the command line."""
        arguments = [*(start or COMMAND), "worker", self.settings, "--hub", self.hub]
        arguments += ["--infer-backend", "vllm-cpu", "--name", "other-site"]
        self.worker = self._start("worker", VLLM_PYTHON, arguments)

    def metrics(self):
        file = self.run / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for_step(self, step):
        self._until(lambda: any(record["step"] >= step for record in self.metrics()))

    def wait_for_log(self, text):
        """Returns once the worker has said something; what is in a log stays there."""
        log = self.directory / "worker.log"
        self._until(lambda: text in log.read_text(errors="replace"))

    def finish(self):
        """Waits for the end of trainer and worker; returns both exit codes."""
        return self.trainer.wait(PATIENCE), self.worker.wait(60)

    def status(self):
        command = [sys.executable, *COMMAND, "status", "--hub", self.hub, "--json"]
        return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)

    def text(self):
        files = [*self.directory.glob("*.log"), *self.run.glob("logs/*.log")]
        return "\n".join(f"--- {file}\n{file.read_text(errors='replace')[-4000:]}" for file in files)

    def close(self):
        for process in (self.worker, self.trainer):
            if process is not None and process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(60)
                process.kill()
                process.wait()

    def _start(self, name, python, arguments):
        with (self.directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [python, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
                start_new_session=True,
            )

    def _wait_for(self, file):
        self._until(file.exists)
        return file.read_text().strip()

    def _until(self, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            ended = [each for each in (self.trainer, getattr(self, "worker", None)) if each and each.poll()]
            if ended or time.monotonic() > deadline:
                pytest.fail(self.text())
            time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path):
    """Starts clusters in the test's own directory."""
    started = []

    def _cluster(kind, dtype, **changes):
        started.append(Cluster(tmp_path, kind, dtype, **changes))
        return started[-1]

    yield _cluster
    for each in started:
        each.close()


@pytest.fixture
def measured(request):
    """Takes a sentence that is printed when all is done."""
    return request.config.stash.setdefault(MEASURED, []).append


def pytest_terminal_summary(terminalreporter, config):
    lines = config.stash.get(MEASURED, [])
    if lines:
        terminalreporter.section("measured: vLLM against the trainer")
        for line in lines:
            terminalreporter.line(line)
