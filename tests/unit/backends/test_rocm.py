import json

import pytest

NODE = "/sys/class/kfd/kfd/topology/nodes/{}/properties"
CPU = "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\nvendor_id 0\n"
GPU = "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version {}\nvendor_id 4098\ndevice_id 29857\ndrm_render_minor {}\n"
TOPOLOGY = {
    NODE.format(0): CPU,
    NODE.format(1): CPU,
    NODE.format(2): GPU.format(90402, 128),
    NODE.format(10): GPU.format(90402, 136),
}
NODES = dict.fromkeys(("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD136"), "")
DRIVER = {"/sys/module/amdgpu/version": "6.14.14\n", "/opt/rocm/.info/version": "7.2.1-43\n"}
QUERY = "rocm-smi --showproductname --json"
CARDS = {
    "card1": {"Card series": "AMD Instinct MI300X OAM", "Card model": "0x74a1", "GFX Version": "gfx942"},
    "card0": {"Card Series": "AMD Instinct MI300X", "Card Model": "0x74a1", "GFX Version": "gfx942"},
}


@pytest.fixture
def rocm(declared):
    return declared("rocm")


@pytest.fixture
def detection(rocm):
    from hetero_rl_backend_rocm import detection  # on the path since `declared`

    return detection


def test_gpus_are_named_with_architecture_driver_and_rocm(detection, machine):
    report = detection.detect(machine({**TOPOLOGY, **NODES, **DRIVER}, {QUERY: json.dumps(CARDS)}))

    assert report.available
    assert report.devices == ("AMD Instinct MI300X (gfx942)", "AMD Instinct MI300X OAM (gfx942)")
    assert report.ids == ("0", "1")
    assert report.versions == {"driver": "6.14.14", "rocm": "7.2.1"}
    assert report.warnings == ()


@pytest.mark.parametrize("output", [None, "WARNING: no device", "[]", json.dumps({"system": {}})])
def test_without_the_tool_the_kernel_driver_is_read(detection, machine, output):
    report = detection.detect(machine({**TOPOLOGY, **NODES, **DRIVER}, {QUERY: output}))

    assert report.devices == ("AMD GPU (gfx942)", "AMD GPU (gfx942)")


@pytest.mark.parametrize(
    ("target", "name"),
    [(90402, "gfx942"), (90010, "gfx90a"), (90500, "gfx950"), (110001, "gfx1101"), (100306, "gfx1036")],
)
def test_architectures_have_the_names_of_the_compiler(detection, target, name):
    assert detection.architecture(target) == name


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        ({}, "no AMD GPU for computing"),
        (TOPOLOGY, "--device /dev/kfd --device /dev/dri"),
        ({"/dev/kfd": "", NODE.format(0): CPU}, "the driver lists no GPU"),
        ({**TOPOLOGY, "/dev/kfd": ""}, "/dev/dri/renderD128 is missing"),
    ],
    ids=["nothing", "no-node", "no-gpu", "no-render-node"],
)
def test_what_is_missing_is_said_with_what_to_do(detection, machine, files, advice):
    report = detection.detect(machine(files))

    assert not report.available
    assert advice in report.advice


def test_an_architecture_that_nobody_tuned_for_is_warned_of(detection, machine):
    files = {**NODES, NODE.format(1): GPU.format(110001, 128)}

    assert "gfx1101 is none of" in detection.detect(machine(files)).warnings[0]


@pytest.mark.parametrize(
    ("environ", "warning"),
    [
        ({"ROCR_VISIBLE_DEVICES": "0"}, "which Ray refuses"),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, "which vLLM refuses"),
    ],
)
def test_variables_that_others_refuse_are_warned_of(detection, machine, environ, warning):
    report = detection.detect(machine({**TOPOLOGY, **NODES, **DRIVER}, **environ))

    assert warning in report.warnings[0]


def test_shuffled_experts_and_silent_quantisation_are_off(rocm):
    environment = rocm.process_environment()

    assert environment["VLLM_ROCM_USE_AITER"] == "0"
    assert environment["VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"] == "NONE"
    assert rocm.process_environment("reproducible")["VLLM_ROCM_USE_SKINNY_GEMM"] == "0"


@pytest.mark.parametrize(
    ("versions", "name"),
    [
        ({"rocm": "7.2.1", "torch": "2.14.0+cu130"}, "torch-for-another-vendor"),
        ({"rocm": "7.2.1", "vllm": "0.33.0", "flashinfer-python": "0.7.2"}, "vllm-from-pypi"),
        ({"rocm": "6.2.0", "vllm": "0.23.0"}, "rocm-version"),
        ({"rocm": "7.2.1", "vllm": "0.23.0", "torch": "2.11.0+rocm7.2"}, None),
    ],
)
def test_combinations_that_never_work_are_found(rocm, versions, name):
    found = [known.name for known in rocm.known_bad if known.found({"python": "3.12.3", **versions})]

    assert found == ([name] if name else [])


def test_the_container_gets_its_nodes_and_groups(rocm):
    access = rocm.container.access_by()

    assert access.devices_for(["0", "1"]) == ("/dev/kfd", "/dev/dri")
    assert access.groups == ("video", "render")
    assert access.environment_for(["0", "1"]) == {"HIP_VISIBLE_DEVICES": "0,1"}
    assert rocm.container.access_by("cdi").devices_for(["1"]) == ("amd.com/gpu=1",)
