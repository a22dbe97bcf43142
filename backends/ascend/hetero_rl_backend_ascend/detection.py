"""Which NPUs are there. Reads device nodes, driver files and `npu-smi info`; imports nothing of the vendor's.

torch_npu without CANN makes `import torch` fail, so neither is imported to find out.
"""

import re

from hetero_rl.deploy.host import Host
from hetero_rl.worker.backend import DeviceReport

__all__ = ["MANAGER_NODES", "detect", "parse_npu_smi"]

MANAGER_NODES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")

_DRIVER_FILES = ("/usr/local/Ascend/driver/version.info",)
_TOOLKIT_FILES = (
    ("/usr/local/Ascend/ascend-toolkit/latest", "*-linux/ascend_toolkit_install.info"),
    ("/usr/local/Ascend/ascend-toolkit", "*/*-linux/ascend_toolkit_install.info"),
    ("/usr/local/Ascend", "cann*/*-linux/ascend_toolkit_install.info"),
)
_NNAL_FILES = (
    ("/usr/local/Ascend/nnal", "atb/latest/version.info"),
    ("/usr/local/Ascend/nnal", "*/version.info"),
)

# A chip is two lines: "| 0     910B4     | OK     | ..." and "| 0     0     | 0000:C1:00.0  | ...". Newer tools print the
# physical id, by which /dev/davinciN counts, beside the chip's.
_NAME_LINE = re.compile(r"^\|\s*(\d+)\s+(\S+)\s*\|\s*([A-Za-z]+)\s*\|")
_CHIP_LINE = re.compile(
    r"^\|\s*(\d+)(?:\s+(\d+))?\s*\|\s*[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d\s*\|"
)
_TOOL_VERSION = re.compile(r"npu-smi\s+(\S+)")


def parse_npu_smi(text: str) -> tuple[tuple[str, str], ...]:
    """Name and health of each chip in `npu-smi info`, in its order."""
    chips: list[tuple[str, str]] = []
    name = health = ""
    for line in text.splitlines():
        if found := _CHIP_LINE.match(line):
            if name:
                chips.append((name, health))
                name = ""
        elif found := _NAME_LINE.match(line):
            name, health = found.group(2), found.group(3)
    return tuple(chips)


def detect(host: Host | None = None) -> DeviceReport:
    """What can be used here and, if nothing can, what to do next."""
    host = host or Host()
    nodes = [node for node in host.glob("/dev", "davinci*") if node.removeprefix("/dev/davinci").isdecimal()]
    ids = tuple(node.removeprefix("/dev/davinci") for node in nodes)
    smi = host.run(["npu-smi", "info"]) or ""
    chips = parse_npu_smi(smi)
    names = tuple(f"Ascend {name}" if not name.startswith("Ascend") else name for name, _ in chips)
    versions = _versions(host, smi)
    blocking, odd = _problems(host, nodes, versions)
    odd += [
        f"chip {number} reports health {health}" for number, (_, health) in enumerate(chips) if health != "OK"
    ]
    if nodes and not chips:
        odd.append("npu-smi gives no list of chips, so their names are unknown: mount /usr/local/bin/npu-smi")
    available = bool(nodes) and not blocking
    return DeviceReport(
        available=available,
        devices=(names if len(names) == len(ids) else tuple(f"Ascend NPU {number}" for number in ids)),
        ids=ids,
        advice="" if available else blocking[0],
        versions=versions,
        warnings=(*blocking[1:], *odd),
    )


def _problems(host: Host, nodes: list[str], versions: dict[str, str]) -> tuple[list[str], list[str]]:
    """What keeps the devices from being used, most basic first, and what is merely odd."""
    blocking = []
    if not nodes:
        installed = "driver" in versions or host.exists("/dev/davinci_manager")
        blocking.append(
            "The Ascend driver is there, but no /dev/davinci0: give the container its devices with "
            "--device /dev/davinci0, or ASCEND_VISIBLE_DEVICES with the Ascend Docker Runtime"
            if installed
            else "No /dev/davinci* is here: this host has no Ascend NPU, or its driver is not loaded"
        )
        return blocking, []
    blocking += [
        f"{node} is missing: give the container --device {node}"
        for node in MANAGER_NODES
        if not host.exists(node)
    ]
    blocking += [
        f"{node} cannot be opened by this user: run as a member of HwHiAiUser, or as root in the container"
        for node in (nodes[0], *MANAGER_NODES)
        if host.exists(node) and not host.usable(node)
    ]
    if not host.exists("/usr/local/Ascend/driver/lib64"):
        blocking.append(
            "/usr/local/Ascend/driver/lib64 is missing: mount it from the host; CANN finds the driver's libraries there"
        )
    if "cann" not in versions:
        blocking.append(
            "CANN is not found under /usr/local/Ascend: use the vllm-ascend image, or install the toolkit and source "
            "/usr/local/Ascend/ascend-toolkit/set_env.sh"
        )
    return blocking, _odd_environment(host)


def _odd_environment(host: Host) -> list[str]:
    odd = []
    if "ASCEND_HOME_PATH" not in host.environ:
        odd.append(
            "The environment of CANN is not set in this shell: source /usr/local/Ascend/ascend-toolkit/set_env.sh and "
            "/usr/local/Ascend/nnal/atb/set_env.sh before `hetero-rl worker`"
        )
    if host.environ.get("VLLM_ASCEND_ENABLE_NZ", "0") != "0":
        odd.append(
            "VLLM_ASCEND_ENABLE_NZ is set to something else than 0: vLLM Ascend then refuses to take new weights; unset it"
        )
    return odd


def _versions(host: Host, smi: str) -> dict[str, str]:
    found = {
        "driver": next((_field(host.read(path), "Version") for path in _DRIVER_FILES), ""),
        "cann": _first_field(host, _TOOLKIT_FILES, "version"),
        "nnal": _first_field(host, _NNAL_FILES, "version"),
        "npu-smi": (match.group(1) if (match := _TOOL_VERSION.search(smi)) else ""),
    }
    return {name: version for name, version in found.items() if version}


def _first_field(host: Host, places: tuple[tuple[str, str], ...], name: str) -> str:
    for directory, pattern in places:
        for path in host.glob(directory, pattern):
            if version := _field(host.read(path), name):
                return version
    return ""


def _field(text: str, name: str) -> str:
    """The value of `name=value` or `name: value`, whatever its case."""
    found = re.search(rf"^\s*{name}\s*[=:]\s*(\S+)", text, re.IGNORECASE | re.MULTILINE)
    return found.group(1) if found else ""
