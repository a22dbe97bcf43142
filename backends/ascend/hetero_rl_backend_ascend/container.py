"""Image, device nodes and driver mounts of an Ascend worker's container, as documented by vllm-ascend 0.23.0."""

from hetero_rl.deploy.needs import ContainerNeeds, DeviceAccess, Image, Mount
from hetero_rl_backend_ascend.detection import MANAGER_NODES

__all__ = ["CONTAINER"]

_NAME = "quay.io/ascend/vllm-ascend:v0.23.0"

CONTAINER = ContainerNeeds(
    image=Image(
        reference=_NAME,
        python="3.12",
        vllm="0.23.0",
        variants={
            "a2": _NAME,
            "a2-openeuler": f"{_NAME}-openeuler",
            "a3": f"{_NAME}-a3",
            "a3-openeuler": f"{_NAME}-a3-openeuler",
            "310p": f"{_NAME}-310p",
            "310p-openeuler": f"{_NAME}-310p-openeuler",
            "a5": f"{_NAME}-a5",
            "a5-openeuler": f"{_NAME}-a5-openeuler",
        },
        setup=("/usr/local/Ascend/ascend-toolkit/set_env.sh", "/usr/local/Ascend/nnal/atb/set_env.sh"),
    ),
    access={
        "nodes": DeviceAccess(
            description="Device nodes and driver files by name; needs nothing on the host but the driver.",
            devices=("/dev/davinci{id}", *MANAGER_NODES),
            mounts=(
                Mount(path="/usr/local/Ascend/driver/lib64", purpose="libraries of the driver"),
                Mount(path="/usr/local/Ascend/driver/version.info", purpose="version of the driver"),
                Mount(path="/etc/ascend_install.info", purpose="where the driver lies"),
                Mount(path="/usr/local/dcmi", purpose="device management interface"),
                Mount(path="/usr/local/bin/npu-smi", required=False, purpose="names and health of the chips"),
                Mount(
                    path="/usr/local/Ascend/driver/tools/hccn_tool",
                    required=False,
                    purpose="network between NPUs",
                ),
                Mount(path="/etc/hccn.conf", required=False, purpose="network between NPUs of several hosts"),
            ),
        ),
        "runtime": DeviceAccess(
            description="The Ascend Docker Runtime makes all nodes and mounts from one variable.",
            runtime="ascend",
            environment={"ASCEND_VISIBLE_DEVICES": "{ids}"},
            host_needs=("Ascend Docker Runtime, registered in /etc/docker/daemon.json as runtime `ascend`",),
        ),
    },
    default_access="nodes",
    shm_size="1g",
    devices_per_host=16,
    notes=(
        "Non-interactive commands do not read ~/.bashrc, where the image sets its environment: source the set-up files first.",
        "Never bake ASCEND_VISIBLE_DEVICES into an image: the runtime reads it at start.",
        "Several cards of one model need the host's network in the vendor's own instructions.",
        "An Atlas A3 card shows two chips, 16 for eight cards.",
    ),
)
