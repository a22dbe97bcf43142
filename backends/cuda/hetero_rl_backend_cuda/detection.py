"""Which NVIDIA GPUs are there. Reads device nodes, the driver's files and `nvidia-smi`; imports nothing heavy."""

import re

from hetero_rl.deploy.host import Host
from hetero_rl.worker.backend import DeviceReport

__all__ = ["detect", "parse_query"]

QUERY = ["nvidia-smi", "--query-gpu=index,name,driver_version,compute_cap", "--format=csv,noheader"]
SUMMARY = ["nvidia-smi"]

_DRIVER_FILE = "/proc/driver/nvidia/version"
_CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")


def parse_query(text: str) -> tuple[tuple[str, ...], ...]:
    """Index, name, driver version and compute capability of each GPU, as `nvidia-smi --query-gpu` prints them."""
    rows = (tuple(part.strip() for part in line.split(",")) for line in text.splitlines() if line.strip())
    return tuple(row for row in rows if len(row) == 4 and row[0].isdecimal())


def detect(host: Host | None = None) -> DeviceReport:
    """What can be used here and, if nothing can, what to do next."""
    host = host or Host()
    nodes = [node for node in host.glob("/dev", "nvidia*") if node.removeprefix("/dev/nvidia").isdecimal()]
    gpus = parse_query(host.run(QUERY) or "")
    ids = tuple(gpu[0] for gpu in gpus) or tuple(node.removeprefix("/dev/nvidia") for node in nodes)
    names = (
        tuple(gpu[1] for gpu in gpus)
        or _names_of_driver(host)
        or tuple(f"NVIDIA GPU {number}" for number in ids)
    )
    # Windows' subsystem for Linux has one node of its own instead.
    blocking = _problems(host, nodes, reachable=bool(gpus) or host.exists("/dev/dxg"))
    available = bool(ids) and not blocking
    return DeviceReport(
        available=available,
        devices=names if ids else (),
        ids=ids,
        advice="" if available else blocking[0],
        versions=_versions(host, gpus),
        warnings=(*blocking[1:], *_odd(host, gpus)),
    )


def _problems(host: Host, nodes: list[str], *, reachable: bool) -> list[str]:
    """What keeps the devices from being used, most basic first."""
    if not nodes and not reachable:
        if host.exists(_DRIVER_FILE):
            advice = (
                "start the container with --gpus all, which needs the NVIDIA Container Toolkit on the host"
            )
            return [f"The NVIDIA driver is loaded, but no /dev/nvidia0: {advice}"]
        return ["No /dev/nvidia* is here: this host has no NVIDIA GPU, or its driver is not loaded"]
    blocking = [
        f"{node} is missing: run nvidia-modprobe -u on the host, or start the container through the NVIDIA Container Toolkit"
        for node in _CONTROL_NODES
        if nodes and not host.exists(node)
    ]
    blocking += [
        f"{node} cannot be opened by this user: check the node's permissions and the cgroup's device rules"
        for node in (*nodes[:1], *_CONTROL_NODES)
        if host.exists(node) and not host.usable(node)
    ]
    return blocking


def _odd(host: Host, gpus: tuple[tuple[str, ...], ...]) -> list[str]:
    odd = []
    if not gpus:
        odd.append(
            "nvidia-smi gives no list of GPUs: it is not installed here, or the driver does not answer it"
        )
    if not host.environ.get("CUDA_VISIBLE_DEVICES", "unset"):
        odd.append("CUDA_VISIBLE_DEVICES is set and empty: no process sees a GPU; unset it")
    return odd


def _names_of_driver(host: Host) -> tuple[str, ...]:
    texts = (host.read(path) for path in host.glob("/proc/driver/nvidia/gpus", "*/information"))
    found = (re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE) for text in texts)
    return tuple(match.group(1) for match in found if match)


def _versions(host: Host, gpus: tuple[tuple[str, ...], ...]) -> dict[str, str]:
    kernel = re.search(r"Kernel Module(?: for \S+)?\s+(\d[\d.]+)", host.read(_DRIVER_FILE))
    summary = re.search(r"CUDA Version\s*:\s*([\d.]+)", host.run(SUMMARY) or "") if gpus else None
    found = {
        "driver": gpus[0][2] if gpus else (kernel.group(1) if kernel else ""),
        # The newest CUDA that the driver serves, not a toolkit that is installed.
        "cuda-of-driver": summary.group(1) if summary else "",
        "compute-capability": ", ".join(sorted({gpu[3] for gpu in gpus})),
    }
    return {name: version for name, version in found.items() if version}
