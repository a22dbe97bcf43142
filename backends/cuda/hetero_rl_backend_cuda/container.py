"""Image and device access of a CUDA worker's container, as documented by Docker, NVIDIA and vLLM."""

from hetero_rl.deploy.needs import ContainerNeeds, DeviceAccess, Image

__all__ = ["CONTAINER"]

CONTAINER = ContainerNeeds(
    image=Image(reference="vllm/vllm-openai:v0.33.0", python="3.12", vllm="0.33.0"),
    access={
        "reservation": DeviceAccess(
            description="A reservation of the compose file, served by the NVIDIA Container Toolkit.",
            reservation_driver="nvidia",
            reservation_capabilities=("gpu",),
            programs=("nvidia-container-runtime-hook", "nvidia-container-runtime", "nvidia-ctk"),
            host_needs=("NVIDIA driver", "NVIDIA Container Toolkit"),
        ),
        "cdi": DeviceAccess(
            description="Names of the Container Device Interface.",
            devices=("nvidia.com/gpu={id}",),
            programs=("nvidia-ctk",),
            host_needs=(
                "NVIDIA Container Toolkit 1.18 or newer, which keeps /var/run/cdi up to date, or `nvidia-ctk cdi generate`",
                "an engine with CDI: Docker 26 or newer",
            ),
        ),
    },
    default_access="reservation",
    ipc="host",
)
