"""The CUDA backend of hetero-rl: NVIDIA GPUs with vLLM or transformers.

detection.py   which GPUs are there and which driver, without importing torch
quirks.py      environment, determinism knobs, known defects and what is done about each
container.py   image, reservation, CDI
"""

from hetero_rl.deploy.needs import SchedulerNeeds
from hetero_rl.worker.backend import Backend
from hetero_rl_backend_cuda.container import CONTAINER
from hetero_rl_backend_cuda.detection import detect
from hetero_rl_backend_cuda.quirks import ENVIRONMENT, KNOWN_BAD, PROFILES, QUIRKS

__all__ = ["BACKEND"]

BACKEND = Backend(
    name="cuda",
    vendor="nvidia",
    description="vLLM or transformers on NVIDIA GPUs",
    engines={
        "vllm": "hetero_rl.worker.engines.vllm:VllmEngine",
        "transformers": "hetero_rl.worker.engines.transformers:TransformersEngine",
    },
    default_engine="vllm",
    detect=detect,
    environment=ENVIRONMENT,
    profiles=PROFILES,
    quirks=QUIRKS,
    known_bad=KNOWN_BAD,
    container=CONTAINER,
    scheduler=SchedulerNeeds(resource="GPU", labels={"vendor": "nvidia"}),
    torch_device="cuda",
    visible_devices="CUDA_VISIBLE_DEVICES",
    distributions=("torch", "transformers", "vllm", "flashinfer-python", "triton"),
    engine_install={
        "vllm": "pip install 'hetero-rl-backend-cuda[vllm]', or the image vllm/vllm-openai:v0.33.0 with this backend in it",
        "transformers": "pip install 'hetero-rl-backend-cuda[transformers]'",
    },
)
"""What `--infer-backend cuda` starts."""
