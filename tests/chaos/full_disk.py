"""A disk that is really full: `python -m tests.chaos.full_disk PART DIRECTORY`, which mounts a small tmpfs in namespaces of its own.

    this process ── unshare, mount ──► the same module with --mounted ──► PART on the tmpfs
                                          filler ── grows until the kernel says ENOSPC; removed again by whoever filled

Parts:

    checkpoint  the real store: a miss leaves the old checkpoint and an alarm, a later one is written, too many in a row end the run
    cache       a worker's downloads: an error that names the full disk, what was there stays, and the download goes on where it stopped
    run         hub (journal and blobs), trainer with its checkpoint and a worker with its cache; the disk is full in three steps
"""

import argparse
import asyncio
import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from hetero_rl.errors import DiskFullError
from hetero_rl.wire.messages import BlobReference
from hetero_rl.worker.blob_cache import BlobCache
from hetero_rl.worker.link import Link
from hetero_rl.worker.resend import Pacing
from tests.chaos.children import fork
from tests.chaos.fast_worker import Terms, run_fast_worker
from tests.chaos.history import History
from tests.chaos.outcome import problems_of
from tests.chaos.roles import await_listening, free_port, make_model, serve_hub
from tests.chaos.trainer_process import Settings, Trainer, run_trainer_of

__all__ = ["Filler", "run_part", "unavailable"]

_SIZES = {"checkpoint": "2m", "cache": "2m", "run": "16m"}
_LONGEST = 600.0
_FULL_STEPS = (3, 6, 9)
_REFUSALS_UNTIL_FREE = 3
SETTINGS = Settings(
    total_steps=12,
    groups_per_step=8,
    group_size=4,
    max_lag=2,
    tokens=4,
    checkpoint_every=3,
    weights=100_000,
)


class Filler:
    """A file that takes what is left of a file system."""

    def __init__(self, directory):
        self.path = directory / "filler"

    def fill(self):
        """Grows until not even a page is left."""
        with self.path.open("ab", buffering=0) as file:
            for size in (2**16, 2**12):
                while _appended(file, bytes(size)):
                    pass

    def free(self):
        self.path.unlink(missing_ok=True)


def _appended(file, data):
    try:
        return file.write(data) == len(data)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False


_NAMESPACES = (
    ["--user", "--map-root-user", "--mount"],
    ["--mount"],
)  # the second one for root without the first


@functools.cache
def _permitted():
    """Options of `unshare` with which a file system can be mounted here, or why there are none."""
    reasons = []
    for options in _NAMESPACES:
        try:
            probe = _namespaced(options, "mount -t tmpfs -o size=64k none /mnt", timeout=30)
        except (OSError, subprocess.TimeoutExpired) as error:
            reasons.append(str(error))
        else:
            if probe.returncode == 0:
                return options, ""
            reasons.append(probe.stderr.strip())
    return None, f"no file system can be mounted here: {'; '.join(reasons)}"


def unavailable():
    """Why no file system can be mounted here; empty when one can."""
    return _permitted()[1]


def _namespaced(options, script, *arguments, timeout):
    command = ["unshare", *options, "sh", "-ec", script, "sh", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout)


def run_part(part, directory):
    """Runs a part on a small file system of its own; returns the ended process. Its output is JSON."""
    mount = Path(directory) / "disk"
    mount.mkdir()
    script = 'mount -t tmpfs -o "size=$1" none "$2"; shift 2; exec "$@"'
    python = [sys.executable, "-m", "tests.chaos.full_disk", "--mounted", part, str(directory)]
    return _namespaced(_permitted()[0], script, _SIZES[part], str(mount), *python, timeout=_LONGEST + 60)


# ---- checkpoint ----


def checkpoint(directory):
    """Two misses between good checkpoints, then as many in a row as end a run."""
    import torch

    from hetero_rl.trainer.checkpoint import CheckpointStore, Manifest, latest_checkpoint

    disk = directory / "disk"
    store, filler = CheckpointStore(disk / "checkpoints", keep=2, max_failures=3), Filler(disk)
    records = _Records()
    logging.getLogger("hetero_rl").addHandler(records)
    config = directory / "config.json"
    config.write_text("{}")

    def save(step):
        manifest = Manifest(
            run_id="r",
            step=step,
            weight_version=step,
            next_ordinal=step,
            consumed={step: ((0, 1),)},
            random_states={},
            config_digest="c" * 64,
            versions={},
        )
        tensors = {"model.safetensors": {"a": torch.full((50_000,), float(step))}}
        return store.try_save(manifest, tensors, [config]) is not None

    saved = {10: save(10)}
    filler.fill()
    saved |= {20: save(20), 30: save(30)}
    newest_while_full = latest_checkpoint(disk / "checkpoints").manifest.step
    filler.free()
    saved[40] = save(40)
    filler.fill()
    saved |= {50: save(50), 60: save(60)}
    try:
        save(70)
        ended = ""
    except DiskFullError as error:
        ended = str(error)
    return {
        "saved": saved,
        "newest_while_full": newest_while_full,
        "newest_at_the_end": latest_checkpoint(disk / "checkpoints").manifest.step,
        "left": sorted(path.name for path in (disk / "checkpoints").iterdir()),
        "ended": ended,
        "alarms": records.messages,
    }


class _Records(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


# ---- cache ----


class _Port:
    """A weight service with blobs of zeros; counts the bytes that it sends."""

    def __init__(self, *blobs):
        self.blobs = {hashlib.sha256(data).hexdigest(): data for data in blobs}
        self.sent = 0

    async def fetch_blob(self, digest, offset):
        data = self.blobs[digest]
        while offset < len(data):
            piece = data[offset : offset + 2**16]
            offset += len(piece)
            self.sent += len(piece)
            yield piece


def cache(directory):
    """A blob is there, the disk fills up, the next one does not fit, then it does."""
    disk = directory / "disk"
    first, second = bytes(2**18), bytes(2**19)
    port, filler = _Port(first, second), Filler(disk)
    pacing = Pacing(first_delay=0.001, longest_delay=0.002, patience=5.0)
    blobs = BlobCache(disk / "cache", port, Link(None, pacing))
    references = [BlobReference(digest, len(data)) for digest, data in port.blobs.items()]

    async def story():
        kept = await blobs.fetch(references[0])
        filler.fill()
        os.truncate(filler.path, filler.path.stat().st_size - 2**17)  # room for a part of the second
        try:
            await blobs.fetch(references[1])
            error = ""
        except DiskFullError as full:
            error = str(full)
        whole = hashlib.sha256(kept.read_bytes()).hexdigest() == references[0].digest
        before = port.sent
        filler.free()
        path = await blobs.fetch(references[1])
        right = hashlib.sha256(path.read_bytes()).hexdigest() == references[1].digest
        return {"error": error, "kept": whole, "right": right, "sent_again": port.sent - before}

    return asyncio.run(story()) | {"size": len(second)}


# ---- run ----


class FillingTrainer(Trainer):
    """A trainer in some of whose steps the disk is full until the hub has refused some calls for that reason.

    Hub and worker remove files meanwhile, so what they leave is filled again before each write and each call.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.filler = Filler(self.directory)
        self.refusals_left = 0

    def step(self, groups):
        if len(self.applied) + 1 in _FULL_STEPS and not self.refusals_left:
            self.refusals_left = _REFUSALS_UNTIL_FREE
            self.history.note("filled", step=len(self.applied) + 1)
        super().step(groups)

    def checkpoint(self):
        self.fill()
        return super().checkpoint()

    def call(self, method, *arguments, **named):
        def filled(*given, **terms):
            self.fill()
            return method(*given, **terms)

        return super().call(filled, *arguments, **named)

    def fill(self):
        if self.refusals_left:
            self.filler.fill()

    def refused(self, error):
        self.history.note("refused", reason=error.reason)
        self.refusals_left = max(0, self.refusals_left - 1)
        if not self.refusals_left and self.filler.path.exists():
            self.filler.free()
            self.history.note("freed")


def run(directory):
    """A whole run on the disk; what happened, and what the judge says."""
    disk, address = directory / "disk", f"127.0.0.1:{free_port()}"
    make_model(disk)
    (disk / "history.jsonl").symlink_to(directory / "history.jsonl")
    history = History(directory / "history.jsonl")
    work = {
        "hub": (serve_hub, address, disk, {"heartbeat_seconds": 1.0, "lease_seconds": 5.0}),
        "trainer": (run_trainer_of, FillingTrainer, address, disk, SETTINGS.json()),
        "w0": (run_fast_worker, address, "w0", 1, Terms(loss=0.0, cache=str(disk / "cache")), history),
    }
    children = {}
    deadline = time.monotonic() + _LONGEST
    try:
        for role, call in work.items():
            children[role] = fork(*call, log=directory / f"{role}.log")
            if role == "hub":
                await_listening(address, children[role], directory / "hub.log")
        # The worker hears at its next call that the run is complete.
        while (
            any(children[role].poll() is None for role in ("trainer", "w0")) and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        codes = {role: child.poll() for role, child in children.items()}
    finally:
        for child in children.values():
            child.kill()
    events = history.read()
    return {
        "codes": codes,
        "counts": Counter(event["event"] for event in events),
        "reasons": Counter(event["reason"] for event in events if event["event"] == "refused"),
        "problems": problems_of(disk, SETTINGS, events),
        "logs": {path.name: path.read_text(errors="replace")[-3000:] for path in directory.glob("*.log")},
    }


def main():
    """Mounts, or runs the part where that is done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=sorted(_SIZES))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--mounted", action="store_true", help="DIRECTORY/disk is the small file system")
    options = parser.parse_args()
    if options.mounted:
        parts = {"checkpoint": checkpoint, "cache": cache, "run": run}
        sys.stdout.write(json.dumps(parts[options.part](options.directory)) + "\n")
        return 0
    if reason := unavailable():
        sys.stderr.write(reason + "\n")
        return 1
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(options.directory)
    options.directory.mkdir(parents=True)
    ended = run_part(options.part, options.directory)
    sys.stdout.write(ended.stdout + ended.stderr)
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
