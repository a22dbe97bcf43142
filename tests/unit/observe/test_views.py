import io
import threading

import pytest
from rich.console import Console

from hetero_rl.errors import UnreachableError
from hetero_rl.observe.lines import LineView
from hetero_rl.observe.live import LiveView, run_panel
from hetero_rl.observe.progress import RunProgress
from hetero_rl.observe.sink import ViewSink
from hetero_rl.observe.view import choose_view
from hetero_rl.trainer.sinks import MetricsRecord

STEP = {
    "step_seconds": 2.0,
    "reward/mean": 0.5,
    "lag/mean": 1.25,
    "lag/max": 2.0,
    "log_prob_gap/mean": 0.003,
    "log_prob_gap/max": 0.2,
    "ess": 0.93,
    "tokens_per_second/generated": 12345.0,
    "tokens_per_second/trained": 2333.0,
    "wait_seconds/data": 0.5,
}


@pytest.fixture
def lines():
    file = io.StringIO()
    return LineView(20, file), file


def test_a_step_is_one_line(lines):
    view, file = lines

    view.write(3, STEP)

    assert file.getvalue() == (
        "step 3/20  reward 0.500  lag 1.25 max 2  |log mu - log pi| 3.00e-03  ESS 0.93  "
        "generated 12345 tok/s  trained 2333 tok/s  waited for data 25%  ETA 0:34\n"
    )


def test_an_evaluation_before_training_is_a_line_of_its_own(lines):
    view, file = lines

    view.write(0, {"eval/accuracy": 0.25})

    assert file.getvalue() == "held-out accuracy 0.250 after step 0\n"


def test_a_phase_and_a_notice_are_lines(lines):
    view, file = lines

    view.phase("starting the hub")
    view.notify("worker-cpu-0 was ended by SIGKILL")

    assert file.getvalue() == "starting the hub\nworker-cpu-0 was ended by SIGKILL\n"


def test_news_of_one_phase_are_printed_now_and_then():
    file, times = io.StringIO(), iter([10.0, 11.0, 16.0, 16.5])
    view = LineView(20, file, now=lambda: next(times))

    for text in ("model: 1", "model: 2", "model: 3", "hub"):
        view.phase(text)

    assert file.getvalue() == "model: 1\nmodel: 3\nhub\n"


def test_a_view_as_a_sink_goes_on_from_the_resumed_step(lines):
    view, file = lines
    sink = ViewSink(view)

    sink.start(resume_step=7)
    sink.write(MetricsRecord(8, {"reward/mean": 1.0}))
    sink.close()

    assert file.getvalue() == "step 8/20  reward 1.000\n"


def test_the_panel_shows_everything_a_person_asks_for(text_of, fleet):
    progress = RunProgress(20)
    progress.observe(0, {"eval/accuracy": 0.25})
    progress.observe(3, {**STEP, "eval/accuracy": 0.75})

    text = text_of(run_panel("quickstart", progress, elapsed=61, notices=("a notice",)))

    for part in (
        "quickstart",
        "step 3/20",
        "1:01 so far  ETA 0:34",
        "0.500",
        "0.250 → 0.750 at step 3",
        "1.25 mean  2 max",
        "3.00e-03 mean  2.00e-01 max",
        "12.3k tok/s",
        "2333 tok/s",
        "93% of the batch",
        "data 25%",
        "a notice",
    ):
        assert part in text


def test_before_the_first_step_the_panel_says_what_is_being_done(text_of):
    text = text_of(run_panel("quickstart", RunProgress(20), elapsed=0, phase="starting the hub"))

    assert "step 0/20" in text
    assert "starting the hub ..." in text
    assert "reward" not in text


class TestLiveView:
    @pytest.fixture
    def console(self):
        return Console(file=io.StringIO(), width=160, height=40, force_terminal=True, color_system=None)

    def test_the_last_picture_stays_on_the_screen(self, console):
        with LiveView("quickstart", 20, console) as view:
            view.begin(2)
            view.write(3, STEP)

        assert "step 3/20" in console.file.getvalue().rpartition("quickstart")[2]

    def test_the_first_metrics_end_the_phase(self, console):
        with LiveView("quickstart", 20, console) as view:
            view.phase("starting the hub")
            view.write(0, {"eval/accuracy": 0.25})

        last = console.file.getvalue().rpartition("quickstart")[2]
        assert "starting the hub" not in last
        assert "0.250 at step 0" in last

    def test_workers_appear_once_the_hub_is_known(self, console, fleet):
        asked = threading.Event()
        list_workers = fleet.list_workers
        fleet.list_workers = lambda *, include_gone: (list_workers(include_gone=include_gone), asked.set())[0]

        with LiveView("quickstart", 20, console) as view:
            view.watch(fleet)
            assert asked.wait(100)

        assert "cpu-0" in console.file.getvalue()

    def test_a_hub_that_does_not_answer_costs_only_the_workers(self, console, fleet):
        asked = threading.Event()

        def run_status():
            asked.set()
            raise UnreachableError("away")

        fleet.run_status = run_status
        with LiveView("quickstart", 20, console) as view:
            view.watch(fleet)
            assert asked.wait(100)
            view.write(3, STEP)

        assert "step 3/20" in console.file.getvalue()

    def test_close_may_be_repeated(self, console):
        with LiveView("quickstart", 20, console) as view:
            view.close()


@pytest.mark.parametrize(("live", "kind"), [(True, LiveView), (False, LineView), (None, LineView)])
def test_a_pipe_gets_lines_unless_the_live_view_is_asked_for(live, kind):
    assert type(choose_view("quickstart", 20, live=live)) is kind
