"""Power cuts: everything that was not synced is lost: `python -m tests.chaos.power_cut DIRECTORY [--cuts 20] [--seed N]`.

    driver, hub, trainer, workers, all under LD_PRELOAD of record_syncs.c ── each fsync ──► DIRECTORY/shadow
    cut: everybody is killed; DIRECTORY/run becomes what the shadow has, and no more; everybody starts again

The strict reading of POSIX: a file's content counts as it was at its last sync, and a name, new, renamed or removed, counts once its
directory was synced. What lay there at the start, and after each cut, is durable. The history, which lies elsewhere, is judged like that
of a campaign.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from hetero_rl.hub.stores import log_sync
from tests.chaos.campaign import Campaign
from tests.chaos.history import History
from tests.chaos.trainer_process import Settings

__all__ = ["PowerCuts", "build", "restore", "snapshot", "unavailable"]

_LONGEST_RUN = 1800.0
_SOURCE = Path(__file__).with_name("record_syncs.c")
_COMPILER = shutil.which("cc")
_REBUILT = ("-shm",)  # shared memory of SQLite: made anew by whoever opens the journal first
_SHARE_AFTER_A_WHILE = 0.5
_BYTES_BETWEEN_CUTS = (500, 6_000)  # of history


def unavailable():
    """Why this cannot run here; empty when it can."""
    return "" if _COMPILER else "recording what is synced needs a C compiler"


def build(target):
    """Compiles the recorder."""
    subprocess.run([_COMPILER, "-shared", "-fPIC", "-O2", "-o", target, _SOURCE, "-ldl"], check=True)


def snapshot(root, shadow):
    """Makes everything below `root` durable as it is."""
    shutil.rmtree(shadow, ignore_errors=True)
    for kind in ("files", "directories"):
        (shadow / kind).mkdir(parents=True)
    for path in (root, *root.rglob("*")):
        inode = str(path.stat().st_ino)
        if path.is_dir():
            (shadow / "directories" / inode).write_text("".join(map(_line, path.iterdir())))
        else:
            shutil.copyfile(path, shadow / "files" / inode)


def _line(entry):
    return f"{'d' if entry.is_dir() else 'f'} {entry.stat().st_ino} {entry.name}\n"


def restore(root, shadow):
    """Makes `root` what survives a power cut."""
    survivor = root.with_name(f"{root.name}.survivor")
    shutil.rmtree(survivor, ignore_errors=True)
    _restore_directory(root.stat().st_ino, survivor, shadow)
    shutil.rmtree(root)
    survivor.rename(root)


def _restore_directory(inode, target, shadow):
    target.mkdir()
    listing = shadow / "directories" / str(inode)
    for line in listing.read_text().splitlines() if listing.exists() else ():
        kind, number, name = line.split(" ", 2)
        content = shadow / "files" / number
        if name.endswith(_REBUILT):
            continue
        if kind == "d":
            _restore_directory(number, target / name, shadow)
        elif content.exists():
            shutil.copyfile(content, target / name)
        else:
            (target / name).touch()  # the name was synced, the content never


class PowerCuts(Campaign):
    """A campaign whose strikes take the whole machine."""

    def __init__(self, directory, seed, settings, *, cuts):
        root = directory / "run"
        super().__init__(root, seed, settings, kills=0, proxy=False)
        self.shadow = directory / "shadow"
        self.history = History(directory / "history.jsonl")
        self.cuts_left = cuts
        self.cuts = 0

    def run(self):
        """Cuts the power so often, then lets the run end."""
        snapshot(self.directory, self.shadow)
        deadline = time.monotonic() + _LONGEST_RUN
        room = 0
        try:
            self.start_all()
            while self.children["trainer"].poll() != 0:
                if time.monotonic() > deadline:
                    raise AssertionError(f"the run did not end: {self.logs()}")
                if self.cuts < self.cuts_left and self.history.size > room:
                    self.cut()
                    room = self.history.size + self.draw.randint(*_BYTES_BETWEEN_CUTS)
                self.restart_the_dead()
                time.sleep(0.005)
        finally:
            for child in self.children.values():
                child.kill()

    def start_all(self):
        for role in self.roles:
            self.start(role)

    def cut(self):
        """Everybody dies at once, and what was not synced is gone."""
        if self.draw.random() < _SHARE_AFTER_A_WHILE:  # the others strike right after an acknowledgement
            time.sleep(self.draw.uniform(0.0, 0.3))
        for child in self.children.values():
            child.kill()
        restore(self.directory, self.shadow)
        snapshot(self.directory, self.shadow)
        self.cuts += 1
        self.history.note("power cut")
        self.start_all()


def main():
    """Prints what the judge says; ends with 1 when it found anything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    reason = unavailable()
    if reason:
        sys.stdout.write(f"skipped: {reason}\n")
        return 0
    directory = options.directory.absolute()
    if "POWER_CUT_ROOT" not in os.environ:
        return _run_recorded(directory)
    settings = Settings(
        options.steps, groups_per_step=16, group_size=4, max_lag=2, tokens=4, checkpoint_every=2
    )
    # Short runs write little: cuts shall meet checkpoints and logs that begin again.
    log_sync.CHECKPOINT_FRAMES, log_sync.LONG_LOG_FRAMES = 40, 120
    run = PowerCuts(directory, options.seed, settings, cuts=options.cuts)
    run.run()
    problems = run.problems()
    acknowledged = sum(len(e["samples"]) for e in run.history.read() if e["event"] == "acknowledged")
    sys.stdout.write(
        f"{run.cuts} power cuts, {acknowledged} completions acknowledged, problems: {len(problems)}\n"
        + "".join(f"{problem}\n" for problem in problems[:20])
    )
    return int(bool(problems))


def _run_recorded(directory):
    """This very command again, under the recorder."""
    directory.mkdir(parents=True)
    library = directory / "record_syncs.so"
    build(library)
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "POWER_CUT_ROOT": str(directory / "run"),
        "POWER_CUT_SHADOW": str(directory / "shadow"),
    }
    command = [sys.executable, "-m", "tests.chaos.power_cut", *sys.argv[1:]]
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
