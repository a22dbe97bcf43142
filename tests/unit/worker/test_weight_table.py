"""New weights for a running model: copied beside the ones that serve, then exchanged; in place where that cannot be."""

import pytest
import torch

from hetero_rl.errors import InvalidMessageError
from hetero_rl.worker.engines.transformers.model import WeightTable


class Tied(torch.nn.Module):
    """An embedding whose weight is a second parameter's too, and a layer in another type."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(8, 4)
        self.head = torch.nn.Linear(4, 8, bias=False)
        self.head.weight = torch.nn.Parameter(self.embedding.weight.data)  # one storage, two parameters
        self.layer = torch.nn.Linear(4, 4, bias=False).to(torch.bfloat16)
        self.requires_grad_(requires_grad=False)


def weights(value):
    return {
        "embedding.weight": torch.full((8, 4), value),
        "layer.weight": torch.full((4, 4), value),
    }


def typed(value):
    """In the model's own types, as tensors come early."""
    return {
        name: tensor.to(torch.bfloat16) if name == "layer.weight" else tensor
        for name, tensor in weights(value).items()
    }


def take_all(table, version, tensors):
    table.begin(version)
    for name, tensor in tensors.items():
        table.take(name, tensor)


def pointers(model):
    return {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}


def test_nothing_changes_before_the_exchange():
    model = Tied()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    WeightTable(model).new_weights(weights(2.0).items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_every_tied_parameter_gets_the_new_weights_in_its_own_type():
    model = Tied()
    table = WeightTable(model)
    new = table.new_weights(weights(2.0).items())
    assert not new.copied
    table.replace(new)
    assert torch.equal(model.embedding.weight, torch.full((8, 4), 2.0))
    assert model.head.weight.data_ptr() == model.embedding.weight.data_ptr()
    assert model.layer.weight.dtype == torch.bfloat16
    assert torch.equal(model.layer.weight, torch.full((4, 4), 2.0, dtype=torch.bfloat16))


def test_two_sets_of_tensors_take_turns():
    model = Tied()
    table = WeightTable(model)
    first = pointers(model)
    table.replace(table.new_weights(weights(1.0).items()))
    second = pointers(model)
    table.replace(table.new_weights(weights(2.0).items()))
    assert pointers(model) == first
    assert not set(first.values()) & set(second.values())
    assert float(model.head.weight[7, 3]) == 2.0


def test_the_senders_tensors_may_change_after_the_copy():
    model, sent = Tied(), weights(1.0)
    table = WeightTable(model)
    new = table.new_weights(sent.items())
    sent["embedding.weight"].zero_()
    table.replace(new)
    sent["layer.weight"].zero_()
    assert float(model.embedding.weight.min()) == 1.0
    assert float(model.layer.weight.min()) == 1.0


def test_without_room_for_spare_tensors_weights_are_copied_in_place():
    model = Tied()
    # 8 x 4 float32, once for both names, and 4 x 4 bfloat16: 160 bytes.
    table, before = WeightTable(model, spare_bytes=159), pointers(model)
    new = table.new_weights(weights(3.0).items())
    assert not new.exchanged
    table.replace(new)
    assert pointers(model) == before
    assert float(model.head.weight.min()) == 3.0


def test_room_for_exactly_all_of_them_is_enough():
    assert WeightTable(Tied(), spare_bytes=160).new_weights(weights(3.0).items()).exchanged


def test_a_part_of_a_larger_tensor_is_copied_in_place():
    model = torch.nn.Module()
    whole = torch.zeros(2, 4)
    model.first, model.second = (torch.nn.Parameter(part, requires_grad=False) for part in whole)
    table = WeightTable(model)
    table.replace(table.new_weights({"first": torch.ones(4), "second": torch.full((4,), 2.0)}.items()))
    assert whole.tolist() == [[1.0] * 4, [2.0] * 4]


def test_weights_that_do_not_fit_leave_the_model_as_it_was():
    model = Tied()
    table, before = WeightTable(model), model.embedding.weight.clone()
    with pytest.raises(InvalidMessageError, match=r"layer\.weight"):
        table.new_weights({**weights(1.0), "layer.weight": torch.ones(2, 2)}.items())
    assert torch.equal(model.embedding.weight, before)
    table.replace(table.new_weights(weights(1.0).items()))
    assert float(model.embedding.weight.min()) == 1.0


def test_tensors_that_came_early_are_not_copied_again():
    model, sent = Tied(), typed(2.0)
    table, before = WeightTable(model), model.embedding.weight.clone()
    take_all(table, 7, sent)
    assert torch.equal(model.embedding.weight, before)
    sent["embedding.weight"].zero_()  # a second copy would be of this
    table.replace(table.new_weights(sent.items(), 7))
    assert float(model.head.weight.min()) == 2.0
    assert float(model.layer.weight.min()) == 2.0


@pytest.mark.parametrize("version", [0, 8])
def test_tensors_that_came_early_for_another_version_are_copied(version):
    model = Tied()
    table = WeightTable(model)
    take_all(table, 7, typed(2.0))
    table.replace(table.new_weights(typed(3.0).items(), version))
    assert float(model.head.weight.min()) == 3.0
    table.replace(table.new_weights(typed(4.0).items(), 7))  # what came early counts once
    assert float(model.head.weight.min()) == 4.0


def test_a_version_that_begins_again_forgets_what_came_before():
    model = Tied()
    table = WeightTable(model)
    take_all(table, 7, typed(2.0))
    take_all(table, 7, {})
    table.replace(table.new_weights(typed(3.0).items(), 7))
    assert float(model.head.weight.min()) == 3.0


def test_what_cannot_be_copied_early_as_it_is_waits_for_the_rest():
    model = Tied()
    table = WeightTable(model)
    take_all(table, 7, weights(2.0) | {"unknown": torch.ones(1), "embedding.weight": torch.ones(2, 2)})
    table.replace(table.new_weights(weights(3.0).items(), 7))
    assert float(model.head.weight.min()) == 3.0
    assert model.layer.weight.dtype == torch.bfloat16
    assert float(model.layer.weight.min()) == 3.0


def test_without_spare_tensors_nothing_is_taken_early():
    model = Tied()
    table = WeightTable(model, spare_bytes=0)
    before = model.embedding.weight.clone()
    assert not table.has_spare_tensors
    take_all(table, 7, typed(2.0))
    assert torch.equal(model.embedding.weight, before)


def test_weights_that_wait_for_the_exchange_are_not_written_to():
    model = Tied()
    table = WeightTable(model)
    waiting = table.new_weights(typed(1.0).items(), 1)
    take_all(table, 2, typed(2.0))
    table.replace(waiting)
    assert float(model.head.weight.max()) == 1.0
