import pytest
import torch

from hetero_rl.errors import MemoryLimitError
from hetero_rl.trainer.memory_limit import naming_the_knobs


def test_the_hosts_allocator_is_recognised_by_its_real_message():
    # An allocation beyond any address space is refused before anything is reserved.
    knob = r"trainer\.tokens_per_micro_batch \(it is 8192\)"
    with pytest.raises(MemoryLimitError, match=knob), naming_the_knobs(7, 8192):
        torch.empty(2**55, dtype=torch.uint8)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried"), MemoryError()])
def test_an_accelerators_and_pythons_errors_name_the_step(error):
    with pytest.raises(MemoryLimitError, match="step 7 does not fit"), naming_the_knobs(7, 100):
        raise error


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="shapes") as caught, naming_the_knobs(7, 100):
        raise RuntimeError("shapes do not match")
    assert not isinstance(caught.value, MemoryLimitError)
