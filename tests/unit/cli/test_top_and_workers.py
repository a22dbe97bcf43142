import contextlib
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from hetero_rl.cli.top import watch
from hetero_rl.errors import RefusedError, UnreachableError
from hetero_rl.wire.messages import QueueCounts, RunStatus

STATUS = RunStatus(
    run=None,
    step=3,
    total_steps=20,
    training=QueueCounts(),
    evaluation=QueueCounts(),
    counters={},
    trainer_connected=False,
    uptime=5.0,
    groups_per_step=4,
    max_lag=2,
)


class Hub:
    """A hub that notes what it is asked, and who asked with which credentials."""

    def __init__(self):
        self.asked = []
        self.connections = []
        self.silent = False

    def run_status(self):
        if self.silent:
            raise UnreachableError("no answer within 5 s")
        return STATUS

    def list_workers(self, *, include_gone):
        return ()

    def list_events(self, after_sequence, limit=0):
        return ()

    def drain_worker(self, name):
        if name == "nobody":
            raise RefusedError("no worker is called 'nobody'", "NOT_FOUND")
        self.asked.append(("drain", name))

    def quarantine_worker(self, name, reason):
        self.asked.append(("quarantine", name, reason))

    def readmit_worker(self, name):
        self.asked.append(("readmit", name))


@pytest.fixture
def hub(monkeypatch):
    hub = Hub()

    @contextlib.contextmanager
    def connect(address, config):
        hub.connections.append((address, config.security.credentials))
        yield hub

    monkeypatch.setattr("hetero_rl.cli.top.connect_fleet", connect)
    monkeypatch.setattr("hetero_rl.cli.workers.connect_fleet", connect)
    return hub


def test_a_worker_is_drained_by_name(cli, hub, tmp_path):
    bundle = tmp_path / "me.credentials"
    result = cli("workers", "drain", "ascend-0", "--hub", "hub.example:1", "--credentials", bundle)

    assert result.exit_code == 0, result.output
    assert hub.asked == [("drain", "ascend-0")]
    assert hub.connections == [("hub.example:1", bundle)]


def test_quarantine_takes_a_reason_and_ends_with_readmission(cli, hub):
    assert cli("workers", "quarantine", "a", "--reason", "too hot", "--hub", "h:1").exit_code == 0
    assert cli("workers", "readmit", "a", "--hub", "h:1").exit_code == 0
    assert hub.asked == [("quarantine", "a", "too hot"), ("readmit", "a")]


def test_a_name_that_the_hub_does_not_know_is_one_clear_message(cli, hub):
    result = cli("workers", "drain", "nobody", "--hub", "h:1")
    assert result.exit_code == 1
    assert "no worker is called 'nobody'" in result.stderr


def test_top_prints_once_where_there_is_no_terminal(cli, hub):
    result = cli("top", "--hub", "hub.example:1", "--seconds", "0.2")
    assert result.exit_code == 0, result.output
    assert "hub hub.example:1" in result.stdout
    assert "no trainer has opened a run yet" in result.stdout


class Interrupted:
    """Waits that end with Ctrl-C after some, with something done before each."""

    def __init__(self, *acts):
        self.acts = list(acts)

    def __call__(self, seconds):
        if not self.acts:
            raise KeyboardInterrupt
        self.acts.pop(0)()


def painted(hub, *acts):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120, height=40)
    with pytest.raises(KeyboardInterrupt):
        watch(hub, console, title="hub", seconds=1.0, sleep=Interrupted(*acts), now=lambda: 1.0)
    return file.getvalue()


def test_top_goes_on_while_the_hub_is_silent_and_gives_the_screen_back(hub):
    text = painted(hub, lambda: setattr(hub, "silent", True), lambda: setattr(hub, "silent", False))

    assert "the hub does not answer: no answer within 5 s" in text
    assert text.rindex("\x1b[?1049l") > text.index("\x1b[?1049h")


def test_a_hub_that_never_answered_is_an_error():
    silent = SimpleNamespace(
        list_events=lambda *_: (), run_status=lambda: (_ for _ in ()).throw(UnreachableError("no"))
    )
    with pytest.raises(UnreachableError):
        watch(silent, Console(file=io.StringIO()), title="hub", seconds=1.0)
