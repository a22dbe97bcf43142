"""The vendors' worker images, built on a stand-in for the vendor's own: that hetero-rl gets in, changes nothing that is held, and is found.

The stand-in has Python and nothing of the vendor's, so what is shown is the Dockerfile and the constraints, not that the engine works.
"""

import json

import pytest

from hetero_rl.worker.backend import find_backend

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

VENDORS = ("cuda", "rocm", "ascend")
STAND_IN = """
FROM {base}
RUN python3 -m venv /opt/vendor
ENV PATH=/opt/vendor/bin:$PATH
RUN mkdir -p {directories} && for file in {files}; do echo "export SOURCED=\\"\\$SOURCED $file\\"" > $file; done
"""


@pytest.fixture(scope="module")
def setup_files():
    """What the Ascend image sets its environment by."""
    return find_backend("ascend").container.image.setup


@pytest.fixture(scope="module")
def vendor_host(engines, with_base, checkout, kept_data, setup_files, tmp_path_factory):
    """An engine that has built the three images from docker/compose.yaml."""
    engine = engines("vendor", data=kept_data("vendor"))
    context = tmp_path_factory.mktemp("stand_in")
    directories = " ".join(file.rpartition("/")[0] for file in setup_files)
    (context / "Dockerfile").write_text(
        STAND_IN.format(base=with_base(engine), directories=directories, files=" ".join(setup_files))
    )
    (context / "compose.yaml").write_text(
        "services: {vendor: {image: vendor-stand-in, build: {context: ., network: none}}}\n"
    )
    engine.compose("-f", context / "compose.yaml", "build")
    build = {"network": "none", "args": {"BASE": "vendor-stand-in", "PIP_NO_INDEX": "1"}}
    services = {f"worker-{vendor}": {"build": build} for vendor in VENDORS}
    override = context / "override.yaml"
    override.write_text(json.dumps({"services": services}))
    profiles = [part for vendor in VENDORS for part in ("--profile", vendor)]
    engine.compose(
        "-f", checkout / "docker" / "compose.yaml", "-f", override, *profiles, "build", timeout=3000
    )
    return engine


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_vendors_worker_is_installed_beside_what_the_image_holds(vendor_host, vendor):
    image = f"hetero-rl/worker-{vendor}:0.1.0"
    python = ("run", "--rm", "--network", "none", "--entrypoint", "python3", image)
    assert "No broken requirements found" in vendor_host.docker(*python, "-m", "pip", "check")
    frozen = vendor_host.docker(*python, "-m", "pip", "freeze")
    # Held by the constraints; and neither torch nor an engine may come from anywhere but the image.
    assert "numba==0.65.0" in frozen
    assert not {"torch", "vllm", "transformers"} & {line.partition("==")[0] for line in frozen.splitlines()}

    # It ends with 1, as no device is here.
    command = ("run", "--rm", "--network", "none", image, "doctor", "--json")
    found = json.loads(vendor_host.docker(*command, check=False))
    assert vendor in [backend["name"] for backend in found["backends"]]


def test_a_command_of_the_ascend_image_reads_the_vendors_environment_first(vendor_host, setup_files):
    run = ("run", "--rm", "--network", "none", "--entrypoint", "with-setup")
    variables = ("--env", f"HETERO_RL_SETUP={':'.join(setup_files)}")
    printed = vendor_host.docker(*run, *variables, "hetero-rl/worker-ascend:0.1.0", "env")
    assert f"SOURCED= {' '.join(setup_files)}" in printed
