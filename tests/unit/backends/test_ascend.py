import pytest

NODES = dict.fromkeys(
    ("/dev/davinci0", "/dev/davinci1", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"), ""
)
DRIVER = {
    "/usr/local/Ascend/driver/version.info": "Version=25.2.0\nascendhal_version=7.35.23\npackage_version=25.2.0\n",
    "/usr/local/Ascend/driver/lib64/libdrvdsmi_host.so": "",
}
TOOLKIT = {
    "/usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info": (
        "package_name=Ascend-cann-toolkit\nversion=9.1.0\ninnerversion=V100R001C23SPC001B225\narch=aarch64\nos=linux\n"
    ),
    "/usr/local/Ascend/nnal/atb/latest/version.info": "Ascend-cann-atb : 9.1.0\nVersion=9.1.0\n",
}
# The table of a machine with one card of an older series.
TABLE_A2 = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.1                   Version: 24.1.1                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B4               | OK            | 88.2        30                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          26838/ 32768         |
+===========================+===============+====================================================+
| 1     910B4               | Alarm         | 87.0        30                0    / 0             |
| 0                         | 0000:C2:00.0  | 0           0    / 0          29356/ 32768         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 1842993       | python3                  | 24100                   |
+===========================+===============+====================================================+
"""
# A3: one card is two chips, with the physical id in a column of its own; the second shows no power.
TABLE_A3 = """\
+------------------------------------------------------------------------------------------------------------------+
| npu-smi 26.0.rc2                            Version: 26.0.rc2                                                    |
+---------------------------+---------------+----------------------------------------------------------------------+
| NPU   Name                | Health        | Power(W)             Temp(C)                 Hugepages-Usage(page)   |
| Chip  Phy-ID              | Bus-Id        | AICore(%)            Memory-Usage(MB)        HBM-Usage(MB)           |
+===========================+===============+======================================================================+
| 0     Ascend910           | OK            | 162.6                34                      0    / 0                |
| 0     0                   | 0000:9D:00.0  | 0                    0    / 0                3419 / 65536            |
+------------------------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -                    34                      0    / 0                |
| 1     1                   | 0000:9F:00.0  | 0                    0    / 0                2874 / 65536            |
+===========================+===============+======================================================================+
"""
CANN = {"ASCEND_HOME_PATH": "/usr/local/Ascend/ascend-toolkit/latest"}


@pytest.fixture
def ascend(declared):
    return declared("ascend")


@pytest.fixture
def detect(ascend):
    from hetero_rl_backend_ascend.detection import detect  # on the path since `declared`

    return detect


def test_npus_are_named_with_driver_and_toolkit_versions(detect, machine):
    host = machine({**NODES, **DRIVER, **TOOLKIT}, {"npu-smi info": TABLE_A2}, **CANN)

    report = detect(host)

    assert report.available
    assert report.devices == ("Ascend 910B4", "Ascend 910B4")
    assert report.ids == ("0", "1")
    assert report.versions == {"driver": "25.2.0", "cann": "9.1.0", "nnal": "9.1.0", "npu-smi": "24.1.1"}
    assert report.warnings == ("chip 1 reports health Alarm",)


def test_both_chips_of_an_a3_card_count(detect, machine):
    host = machine({**NODES, **DRIVER, **TOOLKIT}, {"npu-smi info": TABLE_A3}, **CANN)

    assert detect(host).devices == ("Ascend910", "Ascend910")


def test_ten_devices_are_counted_in_the_order_of_their_numbers(detect, machine):
    host = machine({**NODES, **DRIVER, **TOOLKIT, "/dev/davinci10": "", "/dev/davinci2": ""}, **CANN)

    report = detect(host)

    assert report.ids == ("0", "1", "2", "10")
    assert report.devices[-1] == "Ascend NPU 10"
    assert "mount /usr/local/bin/npu-smi" in report.warnings[0]


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        ({}, "no Ascend NPU, or its driver is not loaded"),
        (DRIVER, "--device /dev/davinci0, or ASCEND_VISIBLE_DEVICES"),
        ({**NODES, **TOOLKIT}, "/usr/local/Ascend/driver/lib64 is missing: mount it"),
        ({**NODES, **DRIVER}, "CANN is not found"),
        ({"/dev/davinci0": "", **DRIVER, **TOOLKIT}, "/dev/davinci_manager is missing"),
    ],
    ids=["nothing", "no-node", "no-driver-mount", "no-toolkit", "no-manager"],
)
def test_what_is_missing_is_said_with_what_to_do(detect, machine, files, advice):
    report = detect(machine(files, **CANN))

    assert not report.available
    assert advice in report.advice


def test_a_shell_that_would_spoil_the_worker_is_warned_of(detect, machine):
    host = machine({**NODES, **DRIVER, **TOOLKIT}, {"npu-smi info": TABLE_A2}, VLLM_ASCEND_ENABLE_NZ="1")

    warnings = " ".join(detect(host).warnings)

    assert "set_env.sh" in warnings
    assert "VLLM_ASCEND_ENABLE_NZ" in warnings


def test_new_weights_can_be_taken_whatever_the_profile(ascend):
    for profile in ("default", "reproducible"):
        assert ascend.process_environment(profile)["VLLM_ASCEND_ENABLE_NZ"] == "0"
        options = ascend.engine_options("vllm", profile)
        assert options["additional_config"] == {"weight_nz_mode": 0, "enable_reduce_sample": False}


def test_the_reproducible_profile_orders_reductions_and_leaves_graphs_out(ascend):
    environment = ascend.process_environment("reproducible")

    assert (environment["HCCL_DETERMINISTIC"], environment["VLLM_BATCH_INVARIANT"]) == ("true", "1")
    assert ascend.engine_options("vllm", "reproducible")["enforce_eager"] is True
    assert ascend.engine_options("vllm")["enforce_eager"] is False


def test_only_portable_sampling_is_offered_and_the_reason_is_said(ascend):
    assert "ignores logprobs_mode" in ascend.portable_sampling_only


@pytest.mark.parametrize(
    ("versions", "name"),
    [
        ({"torch-npu": "2.10.0", "torch": "2.10.0"}, "torch-npu-without-cann"),
        ({"torch-npu": "2.10.0", "torch": "2.10.0+cu128", "cann": "9.1.0"}, "torch-for-cuda"),
        ({"torch-npu": "2.10.0", "torch": "2.13.0+cpu", "cann": "9.1.0"}, "torch-npu-version"),
        ({"vllm": "0.33.0", "vllm-ascend": "0.23.0", "cann": "9.1.0"}, "vllm-ascend-version"),
        ({"vllm-ascend": "0.23.0", "python": "3.13.1"}, "python-version"),
        ({"vllm-ascend": "0.23.0", "cann": "8.2.RC1"}, "cann-version"),
        (
            {
                "torch-npu": "2.10.0.post4",
                "torch": "2.10.0",
                "vllm": "0.23.0",
                "vllm-ascend": "0.23.0",
                "cann": "9.1.0",
            },
            None,
        ),
    ],
)
def test_combinations_that_never_work_are_found(ascend, versions, name):
    found = [known.name for known in ascend.known_bad if known.found({"python": "3.12.3", **versions})]

    assert found == ([name] if name else [])


def test_the_container_gets_its_nodes_and_driver_files(ascend):
    access = ascend.container.access_by()

    assert access.devices_for(["0", "3"]) == (
        "/dev/davinci0",
        "/dev/davinci3",
        "/dev/davinci_manager",
        "/dev/devmm_svm",
        "/dev/hisi_hdc",
    )
    assert "/usr/local/Ascend/driver/lib64" in {mount.path for mount in access.mounts if mount.required}
    runtime = ascend.container.access_by("runtime")
    assert (runtime.runtime, runtime.environment_for(["0", "1"])) == (
        "ascend",
        {"ASCEND_VISIBLE_DEVICES": "0,1"},
    )
