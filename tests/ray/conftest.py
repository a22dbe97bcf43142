"""Clusters of several nodes on this machine, whose devices are numbers only: placing is real, computing is on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ISLANDS = '''
"""Backends that ask a scheduler for the devices of a vendor and compute on the CPU."""
import dataclasses
from hetero_rl.worker.backend import DeviceReport
from hetero_rl_backend_ascend import BACKEND as ASCEND
from hetero_rl_backend_cpu import BACKEND as CPU
from hetero_rl_backend_cuda import BACKEND as CUDA

def _nothing():
    return DeviceReport(available=False, devices=(), advice="there is none")

GREEN = dataclasses.replace(CPU, name="green", vendor="nvidia", scheduler=CUDA.scheduler, detect=_nothing)
RED = dataclasses.replace(CPU, name="red", vendor="ascend", scheduler=ASCEND.scheduler, detect=_nothing)
'''
ENTRY_POINTS = "[hetero_rl.backends]\ngreen = islands:GREEN\nred = islands:RED\n"
OBJECT_STORE_BYTES = 80 * 2**20
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Variables of every process, with two more backends to be found."""
    directory = tmp_path_factory.mktemp("islands")
    (directory / "islands.py").write_text(ISLANDS)
    info = directory / "islands-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: islands\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    paths = [str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}


@pytest.fixture(scope="module")
def cluster():
    """A joined cluster: a head without devices, a node with two GPUs, a node with two NPUs. Returns it with its nodes."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        common = {"num_cpus": 4, "object_store_memory": OBJECT_STORE_BYTES}
        made = Cluster(
            initialize_head=True, head_node_args={**common, "num_gpus": 0, "include_dashboard": False}
        )
        made.common = common
        made.green = made.add_node(**common, num_gpus=2, labels={"vendor": "nvidia"})
        made.red = made.add_node(**common, resources={"NPU": 2}, labels={"vendor": "ascend"})
        ray.init(address=made.address, namespace="tests", log_to_driver=False, configure_logging=False)
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def started(environment):
    """Starts `hetero-rl` with arguments; whatever is left of it at the end is asked to end, then killed."""
    processes: list[subprocess.Popen[bytes]] = []

    def _started(*arguments: object, output: Path) -> subprocess.Popen[bytes]:
        with output.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "hetero_rl.cli.main", *map(str, arguments)],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        processes.append(process)
        return process

    yield _started
    for process in reversed(processes):
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
