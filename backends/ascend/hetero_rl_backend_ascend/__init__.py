"""The Ascend backend of hetero-rl: Huawei NPUs with vLLM Ascend.

detection.py   which NPUs are there, which driver and CANN, without importing torch_npu
quirks.py      environment, determinism knobs, known defects and what is done about each
container.py   image, davinci nodes, driver mounts, Ascend Docker Runtime
"""

from hetero_rl.deploy.needs import SchedulerNeeds
from hetero_rl.worker.backend import Backend
from hetero_rl_backend_ascend.container import CONTAINER
from hetero_rl_backend_ascend.detection import detect
from hetero_rl_backend_ascend.quirks import ENVIRONMENT, KNOWN_BAD, PROFILES, QUIRKS, SAMPLING

__all__ = ["BACKEND"]

BACKEND = Backend(
    name="ascend",
    vendor="ascend",
    description="vLLM Ascend on Huawei NPUs",
    engines={"vllm": "hetero_rl.worker.engines.vllm:VllmEngine"},
    default_engine="vllm",
    detect=detect,
    environment=ENVIRONMENT,
    profiles=PROFILES,
    quirks=QUIRKS,
    known_bad=KNOWN_BAD,
    container=CONTAINER,
    scheduler=SchedulerNeeds(resource="NPU"),
    torch_device="npu",
    visible_devices="ASCEND_RT_VISIBLE_DEVICES",
    portable_sampling_only=SAMPLING,
    distributions=("torch", "torch-npu", "triton-ascend", "transformers", "vllm", "vllm-ascend"),
    engine_install={
        "vllm": "use the image quay.io/ascend/vllm-ascend:v0.23.0 and install this backend into it: "
        "pip install --constraint backends/ascend/image-constraints.txt . ./backends/ascend",
    },
)
"""What `--infer-backend ascend` starts."""
