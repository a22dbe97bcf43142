import json

import pytest

from hetero_rl.config.tree import TaskConfig
from hetero_rl.errors import TaskError
from hetero_rl.tasks import open_task
from hetero_rl.tasks.reasoning_gym_task import CHUNK, ReasoningGymTask


def chain_sum(seed=0, held_out=16, **options):
    return ReasoningGymTask("chain_sum", options, seed=seed, held_out=held_out)


def test_an_ordinal_gives_the_same_item_in_any_order_and_in_a_new_object():
    ordinals = [0, 3, CHUNK - 1, CHUNK, 10**9]
    task, other = chain_sum(), chain_sum()

    assert [task.training_item(n) for n in ordinals] == [other.training_item(n) for n in ordinals[::-1]][::-1]


def test_another_seed_gives_other_training_items_and_the_same_held_out_ones():
    first, second = chain_sum(seed=1), chain_sum(seed=2)

    assert [first.training_item(n) for n in range(8)] != [second.training_item(n) for n in range(8)]
    assert first.held_out_items == second.held_out_items


def test_the_supervised_stream_differs_from_the_training_stream():
    task = chain_sum()

    assert task.training_item(0).question != task.training_item(0, stream="supervised").question


def test_no_training_question_is_a_held_out_question():
    # Two one-digit terms: 81 sums and a few more differences, so most draws collide with 100 held-out questions.
    task = chain_sum(held_out=100, min_terms=2, max_terms=2, min_digits=1, max_digits=1)

    asked = {task.training_item(n).question for n in range(300)}

    assert len(task.held_out_questions) == 100
    assert asked.isdisjoint(task.held_out_questions)


def test_held_out_questions_differ_from_each_other():
    task = chain_sum(held_out=100, min_terms=2, max_terms=2, min_digits=1, max_digits=1)

    assert len({item.question for item in task.held_out_items}) == 100


def test_more_held_out_items_than_questions_are_refused_with_advice():
    task = ReasoningGymTask("coin_flip", {"min_trials": 3, "max_trials": 3}, seed=0, held_out=50)

    with pytest.raises(TaskError, match=r"too few different questions.*Lower evaluation\.prompts"):
        _ = task.held_out_items


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(TaskError, match=r"no task called 'chain_sun'.*nearest name is 'chain_sum'"):
        open_task(TaskConfig(dataset="chain_sun"), seed=0, held_out=1)


@pytest.mark.parametrize(
    ("dataset", "reason"), [("composite", "mixes other tasks"), ("simple_integration", "evaluator")]
)
def test_a_task_without_a_usable_scorer_is_refused_with_the_reason(dataset, reason):
    with pytest.raises(TaskError, match=rf"{dataset}.*no scorer to use here.*{reason}"):
        ReasoningGymTask(dataset, {}, seed=0, held_out=1)


@pytest.mark.parametrize("options", [{"min_termz": 2}, {"min_terms": 0}])
def test_an_option_the_task_does_not_accept_is_refused(options):
    with pytest.raises(TaskError, match="does not accept task"):
        chain_sum(**options)


@pytest.mark.parametrize("owned", ["seed", "size"])
def test_options_that_would_break_the_stream_are_refused(owned):
    with pytest.raises(TaskError, match=rf"task\.options\.{owned} is set by hetero-rl"):
        ReasoningGymTask("chain_sum", {owned: 3}, seed=0, held_out=1)


def test_an_unknown_kind_is_refused_with_the_nearest_one():
    with pytest.raises(TaskError, match=r"'reasoning-jim' is unknown.*nearest: 'reasoning-gym'"):
        open_task(TaskConfig(name="reasoning-jim"), seed=0, held_out=1)


def test_the_payload_is_json_and_holds_the_answer():
    item = chain_sum().training_item(0)

    assert json.loads(item.payload)["answer"] == item.solution
