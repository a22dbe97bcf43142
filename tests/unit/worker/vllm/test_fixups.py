"""What is put right after a reload, on modules that behave like vLLM's."""

from types import SimpleNamespace

import pytest
import torch

from hetero_rl.worker.engines.vllm.fixups import check_platform, watch_reload


class Kernel:
    def process_weights_after_loading(self, layer):
        layer.packed += 1


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.packed = 0
        self.quant_method = SimpleNamespace(moe_kernel=SimpleNamespace(fused_experts=Kernel()))


class Method:
    def embedding(self, layer, tokens):
        raise AssertionError

    def process_weights_after_loading(self, layer):
        layer.packed += 1


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.packed = 0
        self.cpu_linear = torch.nn.functional.linear
        self.quant_method = Method()


def test_experts_that_a_reload_leaves_unpacked_are_packed_once():
    model = torch.nn.ModuleList([Experts(), Experts()])

    with watch_reload(model, "cpu") as watch:
        done = watch.repair()

    assert done == ["cpu-moe-repack"]
    assert [layer.packed for layer in model] == [1, 1]


def test_experts_that_the_reload_packs_itself_are_not_packed_twice():
    model = torch.nn.ModuleList([Experts(), Experts()])

    with watch_reload(model, "cpu") as watch:
        model[0].quant_method.moe_kernel.fused_experts.process_weights_after_loading(model[0])
        watch.repair()

    assert [layer.packed for layer in model] == [1, 1]


def test_the_watch_leaves_nothing_behind():
    model = torch.nn.ModuleList([Experts()])

    with watch_reload(model, "cpu"):
        pass

    assert vars(model[0].quant_method.moe_kernel.fused_experts) == {}


def test_an_embedding_that_is_used_as_head_is_packed_again():
    model = torch.nn.ModuleList([Head(), torch.nn.Linear(1, 1)])

    with watch_reload(model, "cpu") as watch:
        assert watch.repair() == ["cpu-head-repack"]

    assert model[0].packed == 1


def test_on_other_devices_nothing_is_touched():
    model = torch.nn.ModuleList([Experts(), Head()])

    with watch_reload(model, "cuda") as watch:
        assert watch.repair() == []

    assert [layer.packed for layer in model] == [0, 0]


@pytest.mark.parametrize("value", [None, "1"])
def test_ascend_with_weights_in_the_nz_layout_is_refused(monkeypatch, value):
    monkeypatch.delenv("VLLM_ASCEND_ENABLE_NZ", raising=False)
    if value is not None:
        monkeypatch.setenv("VLLM_ASCEND_ENABLE_NZ", value)
    with pytest.raises(RuntimeError, match="VLLM_ASCEND_ENABLE_NZ=0"):
        check_platform("npu")


def test_ascend_without_the_nz_layout_is_taken(monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_ENABLE_NZ", "0")
    check_platform("npu")
