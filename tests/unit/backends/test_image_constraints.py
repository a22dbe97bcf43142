"""Installing the worker into a vendor's image changes none of its versions: what hetero-rl needs, the image allows.

Metadata only, no network: each requirement that `pip install . ./backends/VENDOR` meets is held against the recorded
versions of the image. A requirement may have a lower bound that the image meets, never an upper one that it breaks.
"""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[3]
VENDORS = ("ascend", "cuda", "rocm")


def project(path: Path) -> dict:
    return tomllib.loads((path / "pyproject.toml").read_text())["project"]


def needed(vendor: str) -> list[Requirement]:
    """Everything that hetero-rl and a backend require, the extras that the backend names included."""
    core = project(ROOT)
    found = [Requirement(text) for text in core["dependencies"]]
    waiting = [Requirement(text) for text in project(ROOT / "backends" / vendor)["dependencies"]]
    while waiting:
        requirement = waiting.pop()
        if requirement.name != "hetero-rl":
            found.append(requirement)
        for extra in requirement.extras:
            waiting += [Requirement(text) for text in core["optional-dependencies"][extra]]
    return found


def image(vendor: str) -> tuple[Version, dict[str, SpecifierSet]]:
    """Python and the recorded versions of a vendor's image."""
    text = (ROOT / "backends" / vendor / "image-constraints.txt").read_text()
    python = re.search(r"^# Python: (\S+)$", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    requirements = [Requirement(line) for line in lines]
    recorded = {canonicalize_name(requirement.name): requirement.specifier for requirement in requirements}
    assert len(recorded) == len(lines), "each package once"
    return Version(python.group(1)), recorded


def candidates(recorded: SpecifierSet) -> list[Version]:
    """The versions that a recorded range names as its own, such as its lowest one."""
    named = [Version(part.version) for part in recorded if part.operator in {"==", ">=", "<="}]
    return [version for version in named if version in recorded]


@pytest.mark.parametrize("vendor", VENDORS)
def test_every_requirement_is_met_by_what_the_image_holds_or_adds(vendor):
    _, recorded = image(vendor)

    for requirement in needed(vendor):
        held = recorded[canonicalize_name(requirement.name)]
        versions = candidates(held)
        assert versions, f"{requirement.name}: the image's range names no version"
        broken = [str(version) for version in versions if version not in requirement.specifier]
        assert not broken, f"{requirement} is broken by {requirement.name} {', '.join(broken)} of the image"


@pytest.mark.parametrize("vendor", VENDORS)
def test_no_requirement_has_an_upper_bound_that_a_newer_image_would_break(vendor):
    for requirement in needed(vendor):
        assert {part.operator for part in requirement.specifier} <= {">=", "!="}, str(requirement)


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_images_python_is_taken(vendor):
    python, _ = image(vendor)

    for path in (ROOT, ROOT / "backends" / vendor):
        assert python in SpecifierSet(project(path)["requires-python"])


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_worker_brings_no_torch_and_no_engine_of_its_own(vendor):
    names = {canonicalize_name(requirement.name) for requirement in needed(vendor)}

    assert names.isdisjoint({"torch", "torch-npu", "transformers", "vllm", "vllm-ascend"})


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_record_is_of_the_image_that_the_backend_declares(vendor, declared):
    container = declared(vendor).container
    python, recorded = image(vendor)

    assert str(python) == container.image.python
    assert Version(container.image.vllm) in recorded["vllm"]


def test_the_reference_engines_own_requirements_are_met_in_the_ascend_image():
    _, recorded = image("ascend")

    for text in project(ROOT)["optional-dependencies"]["transformers"]:
        requirement = Requirement(text)
        for version in candidates(recorded[canonicalize_name(requirement.name)]):
            assert version in requirement.specifier, text


def test_a_version_that_breaks_a_requirement_would_be_found():
    assert Version("2.9.0") not in Requirement("torch>=2.10").specifier
    assert candidates(SpecifierSet(">=5.29.6,!=6.30.*")) == [Version("5.29.6")]
    assert candidates(SpecifierSet("==2.10.0")) == [Version("2.10.0")]


@pytest.mark.parametrize("vendor", ["cpu", *VENDORS])
def test_each_backend_is_a_distribution_with_its_entry_point(vendor):
    declared = project(ROOT / "backends" / vendor)

    assert declared["name"] == f"hetero-rl-backend-{vendor}"
    assert declared["entry-points"]["hetero_rl.backends"][vendor] == f"hetero_rl_backend_{vendor}:BACKEND"
