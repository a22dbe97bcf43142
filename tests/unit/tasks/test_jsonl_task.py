import json

import pytest

from hetero_rl.config.tree import TaskConfig
from hetero_rl.errors import TaskError
from hetero_rl.tasks import open_task
from hetero_rl.tasks.jsonl_task import JsonlTask


@pytest.fixture
def write(tmp_path):
    def write_lines(*lines):
        path = tmp_path / "items.jsonl"
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return path

    return write_lines


def sums(count):
    return [{"prompt": f"{n}+1=", "answer": n + 1} for n in range(count)]


def open_jsonl(path, *, seed=0, held_out=100, fraction=0.1):
    return JsonlTask(path, held_out_fraction=fraction, seed=seed, held_out=held_out)


def test_the_stated_share_of_prompts_is_held_out(write):
    assert len(open_jsonl(write(*sums(50))).held_out_items) == 5


def test_one_round_of_training_asks_every_other_question_once(write):
    task = open_jsonl(write(*sums(50)))

    asked = [task.training_item(n).question for n in range(45)]

    assert sorted([*asked, *task.held_out_questions]) == sorted(item["prompt"] for item in sums(50))


def test_each_round_has_its_own_order_that_the_seed_decides(write):
    path = write(*sums(50))
    task, same, other = open_jsonl(path, seed=1), open_jsonl(path, seed=1), open_jsonl(path, seed=2)

    rounds = [[task.training_item(45 * epoch + n) for n in range(45)] for epoch in range(2)]

    assert rounds[0] != rounds[1]
    assert rounds[1] == [same.training_item(45 + n) for n in range(45)]
    assert rounds[0] != [other.training_item(n) for n in range(45)]


def test_lines_with_one_prompt_never_fall_on_different_sides(write):
    task = open_jsonl(write(*(sums(10) * 3)), fraction=0.5)

    asked = {task.training_item(n).question for n in range(15)}

    assert asked.isdisjoint(task.held_out_questions)
    assert len(task.held_out_items) == 5


def test_prompts_beyond_the_wanted_number_stay_out_of_training(write):
    task = open_jsonl(write(*sums(50)), held_out=2)

    assert len(task.held_out_items) == 2
    assert len(task.held_out_questions) == 5


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("{", "not JSON"),
        ("[1]", "expected an object"),
        ('{"prompt": "a"}', "'answer' is missing"),
        ('{"answer": "a"}', "'prompt' is missing"),
        ('{"prompt": "", "answer": "a"}', "'prompt' must be text"),
        ('{"prompt": 3, "answer": "a"}', "'prompt' must be text"),
        ('{"prompt": "a", "answer": null}', "'answer' must be text"),
        ('{"prompt": "a", "answer": true}', "'answer' must be text"),
    ],
)
def test_a_bad_line_is_refused_with_file_line_and_fault(write, line, wrong):
    path = write({"prompt": "1+1=", "answer": "2"}, "", line)

    with pytest.raises(TaskError, match=rf"items\.jsonl, line 3: {wrong}"):
        open_jsonl(path)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(TaskError, match=r"absent\.jsonl \(task\.path\) cannot be read: No such file"):
        open_jsonl(tmp_path / "absent.jsonl")


def test_a_single_prompt_is_refused(write):
    with pytest.raises(TaskError, match="has 1 different prompts"):
        open_jsonl(write({"prompt": "a", "answer": "b"}))


def test_a_jsonl_task_without_a_path_is_refused():
    with pytest.raises(TaskError, match=r"task\.path must name a file"):
        open_task(TaskConfig(name="jsonl"), seed=0, held_out=1)
