import logging
import math

import pytest
import torch

from hetero_rl.config.tree import TrainerConfig
from hetero_rl.trainer.precision import LossScale, Precision


@pytest.mark.parametrize(
    ("compute", "head", "expected"),
    [
        ("float32", "compute", torch.float32),
        ("bfloat16", "compute", torch.bfloat16),
        ("bfloat16", "float32", torch.float32),
        ("float16", "compute", torch.float32),
    ],
)
def test_the_head_computes_as_the_trunk_or_in_float32(compute, head, expected):
    precision = Precision.of(TrainerConfig(compute_dtype=compute, head_dtype=head))

    assert precision.head == expected


def test_tf32_is_off_unless_asked_for():
    assert not Precision.of(TrainerConfig()).tf32
    assert Precision.of(TrainerConfig(matmul_precision="high")).tf32


def test_applying_sets_what_torch_keeps():
    Precision.of(TrainerConfig(matmul_precision="high")).apply()
    assert torch.get_float32_matmul_precision() == "high"

    Precision.of(TrainerConfig()).apply()
    assert torch.get_float32_matmul_precision() == "highest"


def test_only_float16_has_a_loss_scale():
    assert LossScale(torch.float32).value == LossScale(torch.bfloat16).value == 1
    assert LossScale(torch.float16).value == 2**14


def test_an_overflow_is_tried_again_with_smaller_scales_until_there_is_none(caplog):
    scale, found = LossScale(torch.float16), []
    with caplog.at_level(logging.WARNING):
        while scale.lowered_after(math.inf, 3):
            found.append(scale.value)

    assert found == [2**10, 2**6, 2**2, 1]
    assert "step 3: float16 gradients overflowed" in caplog.text


def test_a_finite_norm_leaves_the_scale():
    scale = LossScale(torch.float16)

    assert not scale.lowered_after(1.0, 1)
    assert scale.value == 2**14
