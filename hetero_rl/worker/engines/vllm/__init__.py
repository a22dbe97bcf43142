"""vLLM 0.23 to 0.33 as an engine, on any of its platforms. Nothing here imports vllm before an engine starts.

    worker process                                        vLLM's own processes (loopback or pipes only)
    ──────────────                                        ─────────────────────────────────────────────
    engine.py ── client.py ──► AsyncLLM ── requests ────► EngineCore ──► worker + extension.py ──► model
        └── staging.py ── safetensors in tmpfs ─────────────────── path ─────►┘  fixups.py

engine.py        the `Engine` interface on the event loop
client.py        one request at a time: what vLLM raises becomes this package's errors
requests.py      sampling parameters, prompts, and reading what comes back; pure functions
library.py       the installed vLLM: what this release has, found by looking
startup.py       from settings to a running engine that was measured
installation.py  whether it is there, of a release that is known, and the environment it starts in
arguments.py     the engine's arguments
measure.py       what is measured at start: log-probabilities raw or processed, labels of weight versions
names.py         names and shapes that a weight version must have
staging.py       a weight version as a file that vLLM's processes read
extension.py     the part that runs inside vLLM's worker: loads weights, says what it runs on
fixups.py        what vLLM's own reload leaves wrong on some platforms
numerics.py      what the numbers depend on
"""

from hetero_rl.worker.engines.vllm.engine import VllmEngine

__all__ = ["VllmEngine"]
