"""`hetero-rl` whose vLLM engine gets damaged numbers for every version but the first."""

from hetero_rl.cli.main import run
from hetero_rl.worker.engines.vllm import VllmEngine

_load = VllmEngine.load_weights


async def _load_damaged(self, tensors, version):
    damaged = [(name, -tensor if "o_proj" in name and version > 1 else tensor) for name, tensor in tensors]
    await _load(self, damaged, version)


if __name__ == "__main__":
    VllmEngine.load_weights = _load_damaged
    run()
