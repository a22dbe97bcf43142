"""A vLLM without vLLM: the classes that the engine uses, with the signatures recorded from a release in vllm_api/.

Its model is a hash: with h the hash of all weights and all tokens so far, token v has a weight of 1 + byte v of h. So it
samples from a real distribution that changes with every weight and token. What the releases do differently, it does:
queue or refuse requests while it pauses, label tokens or not, honour `logprobs_mode` or not.
"""

import asyncio
import contextlib
import dataclasses
import enum
import hashlib
import inspect
import json
import math
import random
import sys
import types
from pathlib import Path
from unittest import mock

import torch

from hetero_rl.worker.engines.vllm.extension import WeightExtension

RECORDED = Path(__file__).parent / "vllm_api"
STEP_SECONDS = 0.002


class EngineDeadError(Exception):
    """As vllm.v1.engine.exceptions has it."""


class RetryableRequestError(Exception):
    """As vllm.exceptions has it."""


class VLLMClientError(Exception):
    """As vllm.exceptions has it."""


class RequestOutputKind(enum.Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclasses.dataclass
class FlatLogprobs:
    start_indices: list = dataclasses.field(default_factory=list)
    end_indices: list = dataclasses.field(default_factory=list)
    token_ids: list = dataclasses.field(default_factory=list)
    logprobs: list = dataclasses.field(default_factory=list)
    ranks: list = dataclasses.field(default_factory=list)
    decoded_tokens: list = dataclasses.field(default_factory=list)

    def append(self, token=None, log_prob=None):
        self.start_indices.append(len(self.logprobs))
        if token is not None:
            self.token_ids.append(token)
            self.logprobs.append(log_prob)
        self.end_indices.append(len(self.logprobs))


def settings_class(name, fields, defaults):
    """A class with the recorded fields; like the real ones it refuses others."""

    def initialise(self, **given):
        unknown = set(given) - set(fields)
        if unknown:
            raise TypeError(f"{name} has no {sorted(unknown)}")
        for field in fields:
            setattr(self, field, given.get(field, defaults.get(field)))

    return type(name, (), {"__annotations__": dict.fromkeys(fields, object), "__init__": initialise})


SAMPLING_DEFAULTS = {
    "n": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "stop_token_ids": (),
    "max_tokens": 16,
    "output_kind": RequestOutputKind.CUMULATIVE,
}


class HashModel(torch.nn.Module):
    """Weights as bytes."""

    def __init__(self):
        super().__init__()
        self.digest = b"dummy"

    def load(self, weights_iterator):
        hashed = hashlib.blake2b()
        for name, tensor in weights_iterator:
            hashed.update(name.encode() + tensor.float().numpy().tobytes())
        self.digest = hashed.digest()

    def log_probs(self, tokens, vocabulary):
        hashed = hashlib.blake2b(self.digest + bytes(json.dumps(list(tokens)), "ascii")).digest()
        weights = [1 + hashed[token % 64] for token in range(vocabulary)]
        total = math.log(sum(weights))
        return [math.log(weight) - total for weight in weights]


class FakeWorker(WeightExtension):
    """What vLLM's worker is to the extension."""

    def __init__(self, model):
        self.device = "cpu"
        self.model_runner = types.SimpleNamespace(get_model=lambda: model, reload_weights=model.load)
        layer = types.SimpleNamespace(get_attn_backend=lambda: types.SimpleNamespace(get_name=lambda: "FAKE"))
        self.vllm_config = types.SimpleNamespace(
            compilation_config=types.SimpleNamespace(static_forward_context={"layer": layer})
        )

    def hetero_rl_follow(self, pid):
        """There is no process here that could outlive the test."""


@dataclasses.dataclass(eq=False)
class Request:
    request_id: str
    prompt: list
    params: object
    queue: asyncio.Queue = dataclasses.field(default_factory=asyncio.Queue)
    tokens: list = dataclasses.field(default_factory=list)
    flat: FlatLogprobs = dataclasses.field(default_factory=FlatLogprobs)
    spans: list = dataclasses.field(default_factory=list)
    noise: random.Random | None = None


class FakeLLM:
    """`AsyncLLM` of one release, with the engine's process as a task."""

    def __init__(self, api, arguments):
        self._api, self._arguments = api, arguments
        self._vocabulary = json.loads((Path(arguments.model) / "config.json").read_text())["vocab_size"]
        self._model = HashModel()
        self._worker = FakeWorker(self._model)
        self._waiting, self._running = [], []
        self._pause_mode = None
        self._label = ""
        self._dead = False
        self._task = None
        self._work = asyncio.Event()

    @property
    def errored(self):
        return self._dead

    def shutdown(self, timeout=None):
        self._dead = True
        if self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def die(self):
        """The engine's process ends, as by a signal."""
        self._dead = True
        for request in (*self._running, *self._waiting):
            request.queue.put_nowait(EngineDeadError("EngineCore encountered an issue"))

    async def generate(self, prompt, sampling_params, request_id, **_):
        if self._dead:
            raise EngineDeadError("dead")
        await asyncio.sleep(0)  # the input is processed before the engine's process hears of it
        if self._pause_mode in {"abort", "wait"} and self._api["exceptions"]:
            raise RetryableRequestError("paused")
        if sampling_params.max_tokens < 1 or len(prompt["prompt_token_ids"]) >= self._arguments.max_model_len:
            raise VLLMClientError("too long") if self._api["exceptions"] else ValueError("too long")
        request = Request(request_id, prompt["prompt_token_ids"], sampling_params)
        request.noise = random.Random(sampling_params.seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage] - repeatable on purpose
        self._waiting.append(request)
        self._task = self._task or asyncio.create_task(self._run())
        self._work.set()
        try:
            finished = False
            while not finished:
                output = await request.queue.get()
                if isinstance(output, Exception):
                    raise output
                finished = output.outputs[0].finish_reason is not None
                yield output
        finally:
            for requests in (self._waiting, self._running):
                with contextlib.suppress(ValueError):
                    requests.remove(request)

    async def pause_generation(self, *, mode="abort", clear_cache=True):
        self._pause_mode = mode
        if mode == "abort":
            for request in (*self._running, *self._waiting):
                self._send(request, "abort")
            self._running.clear()
            self._waiting.clear()
        while mode == "wait" and (self._running or self._waiting):  # ruff: ignore[async-busy-wait] - a fake
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)

    async def resume_generation(self):
        self._pause_mode = None
        self._work.set()

    async def collective_rpc(self, method, timeout=None, args=(), kwargs=None):  # ruff: ignore[async-function-with-timeout] - the signature of vLLM
        if self._dead:
            raise EngineDeadError("dead")
        await asyncio.sleep(0)
        config = types.ModuleType("vllm.config")
        config.set_current_vllm_config = lambda _: contextlib.nullcontext()
        with mock.patch.dict(sys.modules, {"vllm": types.ModuleType("vllm"), "vllm.config": config}):
            return [getattr(self._worker, method)(*args, **(kwargs or {}))]

    async def _run(self):
        while True:
            room = self._arguments.max_num_seqs - len(self._running)
            if self._pause_mode is None:
                self._running += self._waiting[:room]
                del self._waiting[:room]
                for request in list(self._running):
                    self._step(request)
            if self._pause_mode is not None or not (self._running or self._waiting):
                self._work.clear()
                await self._work.wait()
            # A model takes its time, so that threads of the process get theirs between two steps.
            await asyncio.sleep(STEP_SECONDS)

    def _step(self, request):
        params = request.params
        raw = self._model.log_probs([*request.prompt, *request.tokens], self._vocabulary)
        processed = _processed(raw, params)
        weights = [math.exp(value) for value in processed]
        token = request.noise.choices(range(self._vocabulary), weights)[0]
        honoured = self._api["version"] != "0.23.0" and self._arguments.logprobs_mode == "processed_logprobs"
        request.tokens.append(token)
        if params.logprobs is not None:
            request.flat.append(token, (processed if honoured else raw)[token])
        if request.spans and request.spans[-1].version == self._label:
            request.spans[-1].end = len(request.tokens)
        else:
            start = len(request.tokens) - 1
            request.spans.append(types.SimpleNamespace(version=self._label, start=start, end=start + 1))
        if token in params.stop_token_ids:
            self._finish(request, "stop")
        elif len(request.tokens) == params.max_tokens:
            self._finish(request, "length")
        elif len(request.tokens) % (getattr(params, "stream_interval", None) or 1) == 0:
            self._send(request, None)

    def _finish(self, request, reason):
        self._running.remove(request)
        self._send(request, reason)

    def _send(self, request, reason):
        fields = {"token_ids": list(request.tokens), "finish_reason": reason, "stop_reason": None}
        fields["logprobs"] = request.flat if request.params.logprobs is not None else None
        if "weight_versions" in self._api["CompletionOutput"]:
            fields["weight_versions"] = list(request.spans) if reason else None
        scores = self._prompt_scores(request) if request.params.prompt_logprobs is not None else None
        request.queue.put_nowait(
            types.SimpleNamespace(outputs=[types.SimpleNamespace(**fields)], prompt_logprobs=scores)
        )

    def _prompt_scores(self, request):
        flat = FlatLogprobs()
        flat.append()
        for position, token in enumerate(request.prompt[1:], start=1):
            flat.append(token, self._model.log_probs(request.prompt[:position], self._vocabulary)[token])
        return flat


async def update_weight_version(self, new_version):  # ruff: ignore[unused-async] - as vLLM has it
    self._label = new_version


async def get_weight_version(self):  # ruff: ignore[unused-async] - as vLLM has it
    return self._label


def _processed(raw, params):
    """Log-probabilities of what is sampled from: bias, temperature, top-k, top-p, renormalised."""
    biases = params.logit_bias or {}
    values = [value + biases.get(token, 0.0) for token, value in enumerate(raw)]
    if params.temperature == 0:
        best = values.index(max(values))
        return [0.0 if token == best else -math.inf for token in range(len(values))]
    order = sorted(range(len(values)), key=lambda token: -values[token])
    kept = set(order[: params.top_k or None])
    scaled = [
        value / params.temperature if token in kept else -math.inf for token, value in enumerate(values)
    ]
    largest = max(scaled)
    total = largest + math.log(sum(math.exp(value - largest) for value in scaled))
    return [value - total for value in scaled]


class FakeVllm:
    """The modules of one release; `import_module` finds them by name."""

    def __init__(self, version):
        self.api = json.loads((RECORDED / f"{version}.json").read_text())
        self.started = []
        self.modules = {
            "vllm": types.SimpleNamespace(__version__=version),
            "vllm.engine.arg_utils": types.SimpleNamespace(
                AsyncEngineArgs=settings_class("AsyncEngineArgs", self.api["AsyncEngineArgs"], {})
            ),
            "vllm.v1.engine.async_llm": types.SimpleNamespace(AsyncLLM=self._llm_class()),
            "vllm.v1.engine.exceptions": types.SimpleNamespace(EngineDeadError=EngineDeadError),
            "vllm.sampling_params": types.SimpleNamespace(
                SamplingParams=settings_class(
                    "SamplingParams", self.api["SamplingParams"], SAMPLING_DEFAULTS
                ),
                RequestOutputKind=RequestOutputKind,
            ),
            "vllm.outputs": types.SimpleNamespace(
                CompletionOutput=settings_class("CompletionOutput", self.api["CompletionOutput"], {})
            ),
            "vllm.platforms": types.SimpleNamespace(
                current_platform=types.SimpleNamespace(device_type="cpu")
            ),
        }
        if self.api["exceptions"]:
            self.modules["vllm.exceptions"] = types.SimpleNamespace(
                RetryableRequestError=RetryableRequestError, VLLMClientError=VLLMClientError
            )

    def import_module(self, name):
        if name not in self.modules:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return self.modules[name]

    def _llm_class(self):
        """`AsyncLLM` with exactly the recorded methods and parameters."""

        def from_engine_args(engine_args, start_engine_loop=True, usage_context=None, stat_loggers=None):
            self.started.append(cls(self.api, engine_args))
            return self.started[-1]

        members = {"from_engine_args": staticmethod(from_engine_args)}
        if "update_weight_version" in self.api["AsyncLLM"]:
            members |= {
                "update_weight_version": update_weight_version,
                "get_weight_version": get_weight_version,
            }
        for name, parameters in self.api["AsyncLLM"].items():
            method = members.get(name, getattr(FakeLLM, name, None))
            if not inspect.isfunction(method):
                continue
            recorded = [
                inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in parameters
            ]
            members[name] = _with_signature(method, recorded)
        cls = type("AsyncLLM", (FakeLLM,), members)
        return cls


def _with_signature(method, parameters):
    copy = types.FunctionType(
        method.__code__, method.__globals__, method.__name__, method.__defaults__, method.__closure__
    )
    copy.__kwdefaults__ = method.__kwdefaults__
    copy.__signature__ = inspect.Signature(parameters)
    return copy
