import pytest

from hetero_rl.errors import TaskError
from hetero_rl.tasks.payload import MAX_PAYLOAD_BYTES, decode_payload, encode_payload


@pytest.mark.parametrize(
    "value",
    [
        {"a": (1, 2.5, None), "b": [True, "x"]},
        {1: "one", (2, 3): ["pair"]},
        {"$tuple": [1], "plain": {"$pairs": ()}},
        [],
        "\ud800",
    ],
)
def test_a_payload_comes_back_as_it_was(value):
    assert decode_payload(encode_payload(value, "it")) == value


def test_a_tuple_does_not_come_back_as_a_list():
    assert type(decode_payload(encode_payload((1,), "it"))) is tuple


@pytest.mark.parametrize("value", [object(), {"a": {1, 2}}, float("nan")])
def test_a_value_json_cannot_carry_is_refused(value):
    with pytest.raises(TaskError, match="my item cannot be handed to a grader"):
        encode_payload(value, "my item")


def test_a_payload_beyond_the_protocol_limit_is_refused():
    with pytest.raises(TaskError, match=f"the protocol carries {MAX_PAYLOAD_BYTES}"):
        encode_payload("x" * MAX_PAYLOAD_BYTES, "my item")
