"""Which AMD GPUs are there. Reads the kernel driver's topology, device nodes and `rocm-smi`; imports nothing heavy."""

import json
import re
from collections.abc import Mapping

from hetero_rl.deploy.host import Host
from hetero_rl.worker.backend import DeviceReport

__all__ = ["architecture", "detect", "parse_rocm_smi"]

QUERY = ["rocm-smi", "--showproductname", "--json"]

_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"
_DRIVER_FILE = "/sys/module/amdgpu/version"
_ROCM_FILES = ("/opt/rocm/.info/version", "/opt/rocm/.info/version-dev")
_SUPPORTED = ("gfx90a", "gfx942", "gfx950")


def architecture(target: int) -> str:
    """Name of a `gfx_target_version`: 90402 is gfx942, 110001 is gfx1101; steppings count in hexadecimal."""
    major, rest = divmod(target, 10000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}"


def parse_rocm_smi(text: str) -> tuple[str, ...]:
    """Names of the cards in `rocm-smi --showproductname --json`, in the order of their numbers."""
    try:
        cards = json.loads(text)
    except ValueError:
        return ()
    if not isinstance(cards, dict):
        return ()
    numbered = sorted(
        (int(key.removeprefix("card")), fields)
        for key, fields in cards.items()
        if isinstance(fields, dict) and key.removeprefix("card").isdecimal()
    )
    # The names of the fields have changed their case between releases.
    lowered = [{str(name).lower(): str(value) for name, value in fields.items()} for _, fields in numbered]
    return tuple(fields.get("card series") or fields.get("device name") or "AMD GPU" for fields in lowered)


def detect(host: Host | None = None) -> DeviceReport:
    """What can be used here and, if nothing can, what to do next."""
    host = host or Host()
    gpus = _gpus(host)
    targets = [architecture(int(gpu["gfx_target_version"])) for gpu in gpus]
    smi = parse_rocm_smi(host.run(QUERY) or "")
    names = smi if len(smi) == len(gpus) else tuple("AMD GPU" for _ in gpus)
    blocking = _problems(host, gpus)
    available = bool(gpus) and not blocking
    return DeviceReport(
        available=available,
        devices=tuple(f"{name} ({target})" for name, target in zip(names, targets, strict=True)),
        ids=tuple(str(number) for number in range(len(gpus))),
        advice="" if available else blocking[0],
        versions=_versions(host),
        warnings=(*blocking[1:], *_odd(host, targets)),
    )


def _gpus(host: Host) -> list[Mapping[str, str]]:
    """Properties of each node that is a GPU: one with compute units."""
    texts = (host.read(path) for path in host.glob(_TOPOLOGY, "*/properties"))
    nodes = (dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line) for text in texts)
    return [
        node
        for node in nodes
        if node.get("simd_count", "0") != "0" and node.get("gfx_target_version", "").isdecimal()
    ]


def _problems(host: Host, gpus: list[Mapping[str, str]]) -> list[str]:
    """What keeps the devices from being used, most basic first."""
    if not host.exists("/dev/kfd"):
        if host.exists(_TOPOLOGY) and gpus:
            return [
                "The driver sees GPUs, but no /dev/kfd: give the container --device /dev/kfd --device /dev/dri"
            ]
        return [
            "No /dev/kfd is here: this host has no AMD GPU for computing, or the amdgpu driver is not loaded"
        ]
    if not gpus:
        return [
            "/dev/kfd is there, but the driver lists no GPU under /sys/class/kfd: check the kernel log for amdgpu"
        ]
    renders = [f"/dev/dri/renderD{gpu['drm_render_minor']}" for gpu in gpus if "drm_render_minor" in gpu]
    missing = [
        f"{node} is missing: give the container --device /dev/dri"
        for node in renders
        if not host.exists(node)
    ]
    closed = [
        f"{node} cannot be opened by this user: join the groups video and render (in a container, --group-add with the "
        "host's numeric id of render)"
        for node in ("/dev/kfd", *renders)
        if host.exists(node) and not host.usable(node)
    ]
    return missing + closed


def _odd(host: Host, targets: list[str]) -> list[str]:
    odd = [
        f"{target} is none of {', '.join(_SUPPORTED)}, for which vLLM documents batch invariance and its kernels are tuned"
        for target in sorted(set(targets))
        if target not in _SUPPORTED
    ]
    if "ROCR_VISIBLE_DEVICES" in host.environ and "HIP_VISIBLE_DEVICES" not in host.environ:
        odd.append(
            "ROCR_VISIBLE_DEVICES is set without HIP_VISIBLE_DEVICES, which Ray refuses: set HIP_VISIBLE_DEVICES"
        )
    hip, cuda = host.environ.get("HIP_VISIBLE_DEVICES"), host.environ.get("CUDA_VISIBLE_DEVICES")
    if hip is not None and cuda is not None and hip != cuda:
        odd.append("HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES differ, which vLLM refuses: make them equal")
    return odd


def _versions(host: Host) -> dict[str, str]:
    rocm = next((text for text in map(host.read, _ROCM_FILES) if text), "")
    found = {"driver": host.read(_DRIVER_FILE).strip(), "rocm": _leading_version(rocm)}
    return {name: version for name, version in found.items() if version}


def _leading_version(text: str) -> str:
    found = re.match(r"\s*(\d[\d.]*)", text)
    return found.group(1) if found else ""
