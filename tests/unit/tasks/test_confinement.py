"""A confined process keeps what it has open and gets nothing new."""

import json
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() not in {"x86_64", "aarch64"},
    reason="the filter is for Linux on x86-64 and aarch64",
)

PROGRAM = """
import json, os, socket, subprocess, sys
from hetero_rl.tasks.confinement import confine

here, there = socket.socketpair()
path = sys.argv[1]
read = os.open(path, os.O_RDONLY)
assert confine()
attempts = {
    "socket": socket.socket,
    "socketpair": socket.socketpair,
    "unix socket": lambda: socket.socket(socket.AF_UNIX),
    "resolve": lambda: socket.create_connection(("127.0.0.1", 9)),
    "fork": os.fork,
    "run": lambda: subprocess.run([sys.executable, "-c", ""]),
    "replace itself": lambda: os.execv(sys.executable, [sys.executable]),
    "signal": lambda: os.kill(os.getppid(), 0),
    "create": lambda: open(path + ".new", "w"),
    "append": lambda: open(path, "a"),
    "truncate": lambda: os.truncate(path, 0),
    "read and write": lambda: open(path, "r+"),
    "remove": lambda: os.unlink(path),
    "rename": lambda: os.rename(path, path + ".other"),
    "link": lambda: os.link(path, path + ".other"),
    "make a directory": lambda: os.mkdir(path + ".d"),
    "change a mode": lambda: os.chmod(path, 0o777),
}
let_through = []
for name, attempt in attempts.items():
    try:
        attempt()
    except PermissionError:
        continue
    except OSError as error:
        let_through.append(f"{name}: {error}")
        continue
    let_through.append(name)
here.send(b"still here")
kept = there.recv(20).decode() + ", " + os.read(read, 10).decode() + ", " + open(path).read()
print(json.dumps([let_through, kept]))
"""


def test_a_confined_process_opens_nothing_starts_nothing_and_changes_nothing(tmp_path):
    file = tmp_path / "file"
    file.write_text("text")
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file)], capture_output=True, text=True, check=True, timeout=90
    )
    let_through, kept = json.loads(ended.stdout)
    assert let_through == []
    assert kept == "still here, text, text"
    assert file.read_text() == "text"
