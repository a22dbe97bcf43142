import pytest

from hetero_rl.errors import ConfigError
from hetero_rl.trainer.micro_batches import computed_tokens, flat, plan_micro_batches, plan_rows


def test_longest_sequences_come_first_and_padding_counts_against_the_budget():
    # 2 rows of 5 fill 10; a third row would cost 15.
    assert plan_micro_batches([2, 5, 3, 4], 10) == ((1, 3), (2, 0))


def test_every_sequence_is_in_exactly_one_micro_batch():
    lengths = [7, 1, 3, 3, 8, 2, 5, 5, 1]

    plan = plan_micro_batches(lengths, 8)

    assert sorted(index for micro_batch in plan for index in micro_batch) == list(range(9))
    assert all(len(part) * max(lengths[index] for index in part) <= 8 for part in plan)


def test_equal_lengths_keep_their_order_so_that_a_plan_is_repeatable():
    assert plan_micro_batches([3, 3, 3], 6) == ((0, 1), (2,))


def test_one_sequence_may_fill_the_budget():
    assert plan_micro_batches([4], 4) == ((0,),)


def test_a_budget_below_one_sequence_is_refused_with_the_name_of_the_setting():
    with pytest.raises(ConfigError, match=r"tokens_per_micro_batch is 4.*5 tokens"):
        plan_micro_batches([5, 1], 4)


def test_no_sequences_make_no_micro_batches():
    assert plan_micro_batches([], 4) == ()


def test_completions_of_a_prompt_share_a_row_up_to_its_limit():
    # Prompt 4 and completions 3 + 2 make 9; 5 more would make 14.
    assert plan_rows([0, 0, 0, 1], [4, 4, 4, 2], [3, 2, 5, 1], 10) == ((0, 1), (2,), (3,))


def test_packed_rows_cost_their_sum_and_fill_what_is_left():
    # 5 + 4 = 9 leaves 1 for the last row; 3 + 2 go into the next micro-batch.
    assert plan_micro_batches([2, 5, 3, 4, 1], 10, packed=True) == ((1, 3, 4), (2, 0))


def test_packed_and_padded_micro_batches_cost_what_they_compute():
    assert computed_tokens([5, 3, 1], packed=True) == 9
    assert computed_tokens([5, 3, 1], packed=False) == 15
    assert computed_tokens([], packed=False) == 0


def test_without_sharing_every_completion_has_a_row_of_its_own():
    assert plan_rows([0, 0, 1], [4, 4, 2], [3, 2, 5], 0) == ((0,), (1,), (2,))


def test_sequences_of_a_group_need_not_be_neighbours():
    assert plan_rows([0, 1, 0, 1], [1, 1, 1, 1], [1, 1, 1, 1], 8) == ((0, 2), (1, 3))


def test_a_completion_that_is_longer_than_a_shared_row_is_alone():
    assert plan_rows([0, 0, 0], [4, 4, 4], [9, 1, 1], 8) == ((0,), (1, 2))


def test_rows_flatten_to_their_sequences():
    assert flat(((0, 2), (1,))) == [0, 2, 1]
