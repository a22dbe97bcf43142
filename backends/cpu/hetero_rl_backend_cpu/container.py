"""Images and settings of a CPU worker's container, as documented by vLLM for its CPU build."""

from hetero_rl.deploy.needs import ContainerNeeds, Image

__all__ = ["CONTAINER"]

CONTAINER = ContainerNeeds(
    image=Image(
        reference="python:3.12-slim-bookworm",
        python="3.12",
        vllm="",
        variants={
            "vllm": "vllm/vllm-openai-cpu:v0.32.0-x86_64",
            "vllm-arm64": "vllm/vllm-openai-cpu:v0.32.0-arm64",
        },
    ),
    shm_size="4g",
    notes=("There are no devices to give; the worker leaves threads unbound, so it needs no SYS_NICE.",),
)
