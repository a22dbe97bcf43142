"""The settings and the command line stay light: a hub, a `status` call or a `--help` loads no torch."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "numpy")


def loaded_after(statement: str, modules: tuple[str, ...]) -> list[str]:
    """The modules of `modules` that a fresh interpreter holds after running `statement`."""
    program = f"import sys\n{statement}\nprint(','.join(name for name in {modules!r} if name in sys.modules))"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return finished.stdout.splitlines()[-1].split(",") if finished.stdout.strip() else []


def test_importing_the_settings_loads_neither_torch_nor_grpc():
    assert loaded_after("import hetero_rl.config", (*HEAVY, "grpc")) == []


@pytest.mark.parametrize("module", ["grpc", "json"])
def test_the_check_sees_a_module_that_is_loaded(module):
    assert loaded_after(f"import hetero_rl.config, {module}", (*HEAVY, module)) == [module]
