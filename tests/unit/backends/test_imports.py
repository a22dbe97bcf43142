"""A backend is declared and its devices are looked for without importing anything of a vendor's."""

import subprocess
import sys
from pathlib import Path

import pytest

BACKENDS = Path(__file__).parents[3] / "backends"
HEAVY = ("torch", "torch_npu", "vllm", "transformers", "numpy", "grpc")

PROGRAM = """
import sys
sys.path.insert(0, {path!r})
from hetero_rl_backend_{name} import BACKEND
BACKEND.detect()
print([module for module in {heavy!r} if module in sys.modules])
"""


@pytest.mark.parametrize("name", ["cpu", "cuda", "rocm", "ascend"])
def test_no_heavy_module_is_imported_to_look_for_devices(name):
    program = PROGRAM.format(path=str(BACKENDS / name), name=name, heavy=HEAVY)

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (result.stdout.strip(), result.returncode) == ("[]", 0), result.stderr


@pytest.mark.parametrize("name", ["cuda", "rocm", "ascend"])
def test_what_a_vendor_needs_is_named_in_its_own_backend_only(name):
    core = Path(__file__).parents[3] / "hetero_rl"
    module = f"hetero_rl_backend_{name}"

    assert not [path for path in core.rglob("*.py") if module in path.read_text()]
