"""The ROCm backend of hetero-rl: AMD GPUs with vLLM.

detection.py   which GPUs are there, which driver and ROCm, without importing torch
quirks.py      environment, determinism knobs, known defects and what is done about each
container.py   images, kfd and dri nodes, groups, CDI
"""

from hetero_rl.deploy.needs import SchedulerNeeds
from hetero_rl.worker.backend import Backend
from hetero_rl_backend_rocm.container import CONTAINER
from hetero_rl_backend_rocm.detection import detect
from hetero_rl_backend_rocm.quirks import ENVIRONMENT, KNOWN_BAD, PROFILES, QUIRKS

__all__ = ["BACKEND"]

BACKEND = Backend(
    name="rocm",
    vendor="amd",
    description="vLLM or transformers on AMD GPUs",
    engines={
        "vllm": "hetero_rl.worker.engines.vllm:VllmEngine",
        # A torch built for ROCm calls its devices "cuda".
        "transformers": "hetero_rl.worker.engines.transformers:TransformersEngine",
    },
    default_engine="vllm",
    detect=detect,
    environment=ENVIRONMENT,
    profiles=PROFILES,
    quirks=QUIRKS,
    known_bad=KNOWN_BAD,
    container=CONTAINER,
    scheduler=SchedulerNeeds(resource="GPU", labels={"vendor": "amd"}),
    torch_device="cuda",
    visible_devices="HIP_VISIBLE_DEVICES",
    distributions=("torch", "transformers", "vllm", "triton", "amd-aiter"),
    engine_install={
        "vllm": "use an image with vLLM for ROCm (PyPI's vllm is built for CUDA) and install this backend into it: "
        "pip install --constraint backends/rocm/image-constraints.txt . ./backends/rocm",
        "transformers": "install a torch built for ROCm first, then: pip install 'hetero-rl[transformers]'",
    },
)
"""What `--infer-backend rocm` starts."""
