"""Images and device access of a ROCm worker's container, as documented by AMD and vLLM."""

from hetero_rl.deploy.needs import ContainerNeeds, DeviceAccess, Image

__all__ = ["CONTAINER"]

CONTAINER = ContainerNeeds(
    image=Image(
        reference="rocm/vllm:rocm7.14.0_cdna_ubuntu24.04_py3.14_pytorch_2.11.0_vllm_0.23.0",
        python="3.14",
        vllm="0.23.0",
        variants={"upstream": "vllm/vllm-openai-rocm:v0.23.0"},
    ),
    access={
        "nodes": DeviceAccess(
            description="The nodes of the kernel driver; all cards of the host, narrowed down by a variable.",
            devices=("/dev/kfd", "/dev/dri"),
            groups=("video", "render"),
            environment={"HIP_VISIBLE_DEVICES": "{ids}"},
            host_needs=(
                "amdgpu driver",
                "group render under the same number inside and outside, or its number instead of its name",
            ),
        ),
        "cdi": DeviceAccess(
            description="Names of the Container Device Interface.",
            devices=("amd.com/gpu={id}",),
            host_needs=("AMD Container Toolkit", "an engine with CDI: Docker 26 or newer"),
        ),
    },
    default_access="nodes",
    ipc="host",
    cap_add=("SYS_PTRACE",),
    security_opt=("seccomp=unconfined",),
)
