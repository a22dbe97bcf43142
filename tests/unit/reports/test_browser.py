"""A page in a real browser, where there is one: no console message, no request, no sideways scrolling, light and dark.

The browser is driven through its debugging pipe. HETERO_RL_CHROMIUM names one that is not on the path.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_rl.reports.blocks import Axis, Column, Page, Plot, Section, Series, Table, TokenStrip, TokenValue
from hetero_rl.reports.findings import Finding, Verdict
from hetero_rl.reports.page import render_page

DOCS = Path(__file__).resolve().parents[3] / "docs"
PUBLISHED = sorted(DOCS.glob("*/*/*.html"))
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")
CHROMIUM = os.environ.get("HETERO_RL_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium on this machine; test_page checks the markup itself"
    ),
    pytest.mark.timeout(300),
]


# The browser reads commands from descriptor 3 and writes answers to descriptor 4, whatever the pipes are here.
PLUMBER = """
import os, sys
reading, writing = (os.dup(os.dup(os.dup(int(number)))) for number in sys.argv[1:3])
os.dup2(reading, 3)
os.dup2(writing, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A headless Chromium and one page in it."""

    def __init__(self, profile):
        ours, theirs = os.pipe(), os.pipe()
        self._to, self._from = ours[1], theirs[0]
        command = [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-quic",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        numbers = [str(ours[0]), str(theirs[1])]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PLUMBER, *numbers, *command],
            pass_fds=(ours[0], theirs[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._numbers = itertools.count(1)
        self._rest = b""
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    session = None

    def call(self, method, **parameters):
        """The result of a command; events that come meanwhile are kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, url):
        """Returns when the page has loaded."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def evaluate(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def _next(self):
        while b"\0" not in self._rest:
            part = os.read(self._from, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._to)
        os.close(self._from)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    series = Series(name="measured", xs=[1.0, 10.0], ys=[0.1, 0.9], lows=[0.0, 0.8], highs=[0.2, 1.0])
    plot = Plot(
        title="Share", x=Axis("length", "tokens", logarithmic=True), y=Axis("share", "1"), series=(series,)
    )
    wide = Table(
        "Wide", tuple(Column(f"column {n}", "nats") for n in range(20)), [[float(n) for n in range(20)]]
    )
    words = TokenStrip("Tokens", [TokenValue("supercalifragilistic" * 8, 0.7), TokenValue("<script>", 0.01)])
    finding = Finding(verdict=Verdict.CAUTION, code="x", cause="c" * 300, evidence=("e",), next_step="n")
    page = Page(
        title="T" * 90, first_line="f", findings=[finding], sections=[Section("S", [plot, wide, words])]
    )
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(render_page(page), encoding="utf-8")
    return path.as_uri()


def look_at(browser, url, width, scheme):
    """Opens a page and returns the requests that it made besides itself; fails where it cannot be read."""
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
    )
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.open(url)

    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    shown = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert shown == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")
    smallest = (
        "Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"
    )
    assert browser.evaluate(smallest) >= 8
    methods = [event.get("method") for event in browser.events]
    assert "Runtime.consoleAPICalled" not in methods
    assert "Log.entryAdded" not in methods
    requests = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event.get("method") == "Network.requestWillBeSent"
    ]
    return [one for one in requests if one != url and not one.startswith("data:")]


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_quiet_and_readable(browser, url, width, scheme):
    assert look_at(browser, url, width, scheme) == []


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PUBLISHED, ids=lambda page: page.parent.name + "-" + page.stem)
def test_every_published_report_is_quiet_and_readable(browser, page, width, scheme):
    assert look_at(browser, page.as_uri(), width, scheme) == []
    plots = browser.evaluate("document.querySelectorAll('figure svg').length")
    captions = browser.evaluate(
        "[...document.querySelectorAll('figure')].filter(f => f.querySelector('figcaption')).length"
    )
    tables = browser.evaluate(
        "[...document.querySelectorAll('figure')].filter(f => f.querySelector('table')).length"
    )
    assert plots >= 1
    assert captions >= plots
    assert tables >= plots
