import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from hetero_rl.errors import TaskError
from hetero_rl.tasks import Grade, Grader, GradeRequest, GradingOutcome, grading
from hetero_rl.tasks.frames import FrameError, send_frame
from hetero_rl.tasks.math_scorer import math_scorer
from hetero_rl.tasks.payload import encode_payload
from hetero_rl.tasks.reasoning_gym_task import ReasoningGymTask
from hetero_rl.tasks.scorers import EXACT_ANSWERS, load_scorer

# Long enough for a machine under load: only the test of the time limit itself has a short one.
PATIENT = 60.0


@pytest.fixture(scope="module")
def task():
    return ReasoningGymTask("chain_sum", {}, seed=0, held_out=2)


@pytest.fixture(scope="module")
def grader(task):
    with Grader(task.scorer, processes=2, time_limit=PATIENT) as shared:
        yield shared


def test_rewards_come_back_in_order(task, grader):
    items = [task.training_item(n) for n in range(20)]
    requests = [GradeRequest(payload=item.payload, completion=item.solution) for item in items]
    wrong = GradeRequest(payload=items[0].payload, completion="no idea")

    grades = grader.grade([*requests, wrong])

    assert [grade.reward for grade in grades] == [1.0] * 20 + [0.0]
    assert [grade.correct for grade in grades] == [True] * 20 + [False]


def test_threads_may_grade_at_once(task, grader):
    item = task.training_item(0)
    rewards = {}

    def grade(completion):
        requests = [GradeRequest(payload=item.payload, completion=completion)] * 50
        rewards[completion] = {grade.reward for grade in grader.grade(requests)}

    threads = [threading.Thread(target=grade, args=(text,)) for text in (item.solution, "x", "y")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert rewards == {item.solution: {1.0}, "x": {0.0}, "y": {0.0}}


@pytest.mark.parametrize("text", ["", "\x00", "\ud800", "{{{" * 1000, "9" * 100_000, "[" * 50_000])
def test_odd_text_earns_nothing(task, grader, text):
    [grade] = grader.grade([GradeRequest(payload=task.training_item(0).payload, completion=text)])

    assert grade.reward == 0.0


def test_a_dead_process_costs_one_completion_and_is_replaced(task):
    item = task.training_item(0)
    right = GradeRequest(payload=item.payload, completion=item.solution)
    with Grader(task.scorer, time_limit=PATIENT) as grader:
        assert grader.grade([right]) == [Grade(1.0)]
        os.kill(grader._idle.queue[0]._process.pid, signal.SIGKILL)

        grades = grader.grade([right, right])

        assert [grade.outcome for grade in grades] == [GradingOutcome.CRASHED, GradingOutcome.GRADED]
        assert [grade.reward for grade in grades] == [0.0, 1.0]
        assert grader.counts == {"graded": 2, "timed_out": 0, "crashed": 1, "failed": 0}


def test_a_prompt_s_completions_go_to_a_process_in_one_frame(task, monkeypatch):
    items = [task.training_item(n) for n in range(2)]
    requests = [
        GradeRequest(payload=item.payload, completion=item.solution) for item in items for _ in range(8)
    ]
    frames = []

    def sending(connection, message):
        frames.append(message)
        send_frame(connection, message)

    monkeypatch.setattr(grading, "send_frame", sending)
    with Grader(task.scorer, time_limit=PATIENT) as grader:
        assert grader.grade(requests) == [Grade(1.0)] * 16

    setup, *sent = frames
    assert "scorer" in setup
    assert [len(frame["completions"]) for frame in sent] == [8, 8]
    assert [frame["payload"].encode() for frame in sent] == [item.payload for item in items]


@pytest.mark.parametrize(("idle", "sizes"), [(1, [4, 2]), (2, [4, 2]), (4, [2, 2, 1, 1]), (9, [1] * 6)])
def test_a_prompt_s_completions_are_cut_where_processes_would_be_idle(idle, sizes):
    requests = [GradeRequest(payload=b"a", completion=str(n)) for n in range(4)]
    requests += [GradeRequest(payload=b"b", completion=str(n)) for n in range(2)]

    bundles = list(grading._bundles(requests, idle))

    assert [len(bundle) for bundle in bundles] == sizes
    assert [request for bundle in bundles for request in bundle] == requests


def test_long_completions_go_in_frames_of_their_own():
    long = "x" * (2**20)

    assert list(grading._by_characters(["a", "b", long, "c", "d"])) == [["a", "b"], [long], ["c", "d"]]


class TestBundleOfWhichOneIsFatal:
    """The scorer of the process is replaced by frames that the test writes: one reward, then nothing more."""

    @pytest.fixture
    def stubbed(self, task, monkeypatch):
        replies = []

        def receive(connection, time_limit=None):
            reply = replies.pop(0)
            if isinstance(reply, Exception):
                raise reply
            return reply

        monkeypatch.setattr(grading, "receive_frame", receive)
        with Grader(task.scorer, time_limit=PATIENT) as grader:
            yield grader, replies

    @pytest.mark.parametrize(
        ("error", "outcome"),
        [(TimeoutError(), GradingOutcome.TIMED_OUT), (FrameError("closed"), GradingOutcome.CRASHED)],
    )
    def test_the_one_at_fault_earns_nothing_and_the_rest_is_graded_by_a_fresh_process(
        self, stubbed, error, outcome
    ):
        grader, replies = stubbed
        ready = {"ready": True, "confined": True}
        replies += [ready, {"reward": 1.0}, error, ready, {"reward": 0.5}, {"error": "odd"}]
        first = grader._idle.queue[0]._process.pid

        grades = grader.grade([GradeRequest(payload=b"{}", completion=str(n)) for n in range(4)])

        assert [grade.reward for grade in grades] == [1.0, 0.0, 0.5, 0.0]
        assert [grade.outcome for grade in grades] == [
            GradingOutcome.GRADED,
            outcome,
            GradingOutcome.GRADED,
            GradingOutcome.FAILED,
        ]
        assert grader._idle.queue[0]._process.pid != first
        assert replies == []


def test_a_process_that_takes_too_long_costs_one_completion_and_is_replaced(task):
    item = task.training_item(0)
    right = GradeRequest(payload=item.payload, completion=item.solution)
    with Grader(task.scorer, time_limit=PATIENT) as grader:
        assert grader.grade([right]) == [Grade(1.0)]
        slow = grader._idle.queue[0]._process
        os.kill(slow.pid, signal.SIGSTOP)

        grader._time_limit = 0.2
        late = grader.grade([right])
        grader._time_limit = PATIENT
        later = grader.grade([right])

        assert (late[0].outcome, late[0].reward) == (GradingOutcome.TIMED_OUT, 0.0)
        assert later == [Grade(1.0)]
        assert slow.returncode == -signal.SIGKILL


@pytest.mark.parametrize("dataset", sorted(EXACT_ANSWERS))
def test_a_scorer_that_evaluates_text_sees_the_exact_answer_only(dataset, monkeypatch):
    item = ReasoningGymTask(dataset, {}, seed=0, held_out=1).training_item(0)
    score = load_scorer({"kind": "reasoning-gym", "dataset": dataset, "options": {}})
    evaluated = []
    monkeypatch.setattr("builtins.eval", lambda text, *_: evaluated.append(text))

    assert score(item.payload, item.solution) == 1.0
    assert score(item.payload, "[1, 2]") == 0.0
    assert evaluated == []


@pytest.mark.parametrize("dataset", ["countdown", "puzzle24", "simple_integration"])
def test_a_task_whose_scorer_evaluates_text_is_refused_with_the_reason(dataset):
    with pytest.raises(TaskError, match="hands the model's text to an evaluator"):
        load_scorer({"kind": "reasoning-gym", "dataset": dataset, "options": {}})


def test_a_grader_process_may_not_fill_the_memory_or_write_a_file(tmp_path):
    program = """
import sys
from hetero_rl.tasks.grading_process import _limit_resources
_limit_resources(2**29)
def outcome(attempt):
    try:
        attempt()
    except Exception as error:
        return type(error).__name__
    return "allowed"
def write():
    with open(sys.argv[1], "w") as file:
        file.write("x" * 100_000)
print(outcome(lambda: bytearray(2**30)), outcome(write))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "file")], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["MemoryError", "OSError"]


@pytest.mark.slow
def test_text_that_would_run_if_it_were_evaluated_does_not_run(tmp_path):
    trap = tmp_path / "trap"
    attack = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    for dataset in sorted(EXACT_ANSWERS):
        item = ReasoningGymTask(dataset, {}, seed=0, held_out=1).training_item(0)
        with Grader(
            {"kind": "reasoning-gym", "dataset": dataset, "options": {}}, time_limit=PATIENT
        ) as grader:
            [grade] = grader.grade([GradeRequest(payload=item.payload, completion=attack)])

        assert grade.reward == 0.0
        assert not trap.exists()


@pytest.mark.parametrize(
    ("reference", "completion", "reward"),
    [
        ("42", "The answer is 42", 1.0),
        ("42", "The answer is 42 (I also tried 41).", 1.0),
        ("42", "First 40, then 41, so it is 42.", 1.0),
        ("1/2", "so we get 0.5", 1.0),
        ("0.5", "50%", 1.0),
        ("1,000", "x = 1000", 1.0),
        (r"\frac{1}{2}", r"$\frac{2}{4}$", 1.0),
        (r"2\sqrt{3}", r"therefore \boxed{\sqrt{12}}", 1.0),
        (r"\frac{\pi}{4}", r"\(x = \pi/4\)", 1.0),
        ("Paris", "<answer> Paris </answer>", 1.0),
        (r"x^2+1", r"$1+x^2$", 1.0),
        (r"x^2+1", r"$1+x^3$", 0.0),
        (r"\{1,2\}", r"$\{2,1\}$", 1.0),
        ("42", "<answer>41</answer> or 42?", 0.0),
        ("42", "forty-one", 0.0),
        ("42", "", 0.0),
        ("42", r"\boxed{41}, not 42", 0.0),
    ],
)
def test_mathematical_answers_are_compared_by_value_not_text(math_grader, reference, completion, reward):
    payload = encode_payload({"answer": reference}, "it")

    assert math_grader.grade([GradeRequest(payload=payload, completion=completion)])[0].reward == reward


HOSTILE_ANSWERS = [
    "{attack}",
    "${attack}$",
    r"\boxed{{{attack}}}",
    r"\({attack}\)",
    "the answer is {attack}",
    "1 + {attack}",
    "$1 + {attack}$",
    r"$\text{{{attack}}}$",
    r"$\operatorname{{{attack}}}(1)$",
    r"$\frac{{{attack}}}{{2}}$",
    r"$x_{{{attack}}}$",
    r"$\mathrm{{{attack}}}$",
    "${attack} = 1$",
]
ATTACKS = [
    "__import__('pathlib').Path('trap').touch()",
    "().__class__.__base__.__subclasses__()",
    "9**9**9**9",
    "factorial(10**9)",
    "Integer(2)**10**10",
    "(1).__class__",
    "S('1+1')",
]


@pytest.mark.parametrize("reference", ["42", "x^2+1"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_answer_reaches_an_evaluator(monkeypatch, attack, reference):
    sympy_parser = pytest.importorskip("sympy.parsing.sympy_parser")
    for name in ("parse_expr", "eval_expr"):  # the scorer replaces them; this test puts them back
        monkeypatch.setattr(sympy_parser, name, getattr(sympy_parser, name))
    score = math_scorer()
    tried = []
    monkeypatch.setattr("builtins.eval", lambda *text, **_: tried.append(text))
    for form in HOSTILE_ANSWERS:
        if (
            "**" not in attack or "$" not in form
        ):  # a tower of powers is bounded by the limits of the grader process
            with contextlib.suppress(Exception):
                score(reference, form.format(attack=attack))

    assert tried == []


def test_where_sympy_evaluates_text_it_refuses_in_a_grader():
    program = """
from hetero_rl.tasks.math_scorer import math_scorer
import sympy
from sympy.parsing import parse_expr
math_scorer()
for evaluate in (parse_expr, sympy.sympify, sympy.S):
    try:
        print(evaluate("1 + 1"))
    except Exception as error:
        print(type(error).__name__, "text is never evaluated here" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["ValueError True"] * 3


@pytest.fixture(scope="module")
def math_grader():
    with Grader({"kind": "math-verify"}, time_limit=PATIENT) as shared:
        yield shared


def test_a_scorer_that_does_not_exist_is_an_error_not_a_reward():
    with Grader({"kind": "nonsense"}) as grader, pytest.raises(TaskError, match="no scorer for"):
        grader.grade([GradeRequest(payload=b"{}", completion="")])


def test_a_closed_grader_refuses_work(task):
    grader = Grader(task.scorer)
    grader.close()
    grader.close()

    with pytest.raises(TaskError, match="closed"):
        grader.grade([])
