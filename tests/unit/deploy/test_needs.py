import pytest

from hetero_rl.deploy.needs import ContainerNeeds, DeviceAccess, Image, Mount
from hetero_rl.errors import ConfigError

NODES = DeviceAccess(
    description="device nodes",
    devices=("/dev/card{id}", "/dev/manager"),
    mounts=(Mount(path="/usr/driver"),),
    environment={"VISIBLE": "{ids}", "FIXED": "1"},
)
RESERVED = DeviceAccess(
    description="a reservation", reservation_driver="nvidia", reservation_capabilities=("gpu",)
)
NEEDS = ContainerNeeds(
    image=Image(reference="registry.example/vendor:1", python="3.12", vllm="0.23.0"),
    access={"nodes": NODES, "reserved": RESERVED},
    default_access="nodes",
)


def test_a_node_with_a_placeholder_comes_once_for_each_device_and_one_without_comes_once():
    assert NODES.devices_for(["0", "3"]) == ("/dev/card0", "/dev/card3", "/dev/manager")


def test_variables_name_all_devices():
    assert NODES.environment_for(["0", "3"]) == {"VISIBLE": "0,3", "FIXED": "1"}


def test_a_reservation_names_driver_devices_and_capabilities_as_a_compose_file_does():
    assert RESERVED.reservation_for(["1"]) == {
        "driver": "nvidia",
        "device_ids": ["1"],
        "capabilities": ["gpu"],
    }
    assert NODES.reservation_for(["1"]) is None


def test_the_default_way_of_access_is_taken_unless_another_is_named():
    assert NEEDS.access_by() is NODES
    assert NEEDS.access_by("reserved") is RESERVED


def test_an_unknown_way_of_access_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="'cdi' is unknown; there are: nodes, reserved"):
        NEEDS.access_by("cdi")


def test_a_vendor_without_devices_needs_no_way_of_access():
    needs = ContainerNeeds(image=NEEDS.image)

    assert needs.access_by() is None
    with pytest.raises(ConfigError, match="there are: none"):
        needs.access_by("nodes")
