"""What the hub process loads."""

import subprocess
import sys


def loaded(module, *wanted):
    """Which of `wanted` a fresh interpreter has loaded after importing `module`."""
    program = f"import sys, {module}; print([name for name in {wanted!r} if name in sys.modules])"
    return subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_hub_loads_neither_torch_nor_numpy():
    assert loaded("hetero_rl.hub.main", "torch", "numpy", "transformers") == "[]"


def test_a_relay_and_a_blob_store_load_neither_torch_nor_numpy():
    modules = "hetero_rl.relay.server, hetero_rl.hub.remote_blobs"
    assert loaded(modules, "torch", "numpy", "fsspec") == "[]"


def test_the_handlers_load_neither_grpc_nor_protobuf():
    modules = "hetero_rl.hub.handlers.fleet, hetero_rl.hub.handlers.results, hetero_rl.hub.handlers.retention"
    assert loaded(modules, "grpc", "google.protobuf") == "[]"


def test_the_check_can_fail():
    assert loaded("json", "json") == "['json']"
