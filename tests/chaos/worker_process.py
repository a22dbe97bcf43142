"""The real worker with the scripted engine, on a bad line: `python -m tests.chaos.worker_process ADDRESS DIRECTORY NAME SEED LOSS`.

LOSS is the share of submissions whose reply is lost (see `bad_line`). What the worker was told is on disk goes into the history.
"""

import os
import random
import sys
from pathlib import Path

from hetero_rl.config import load_config
from hetero_rl.worker import main as worker_main
from tests.chaos.bad_line import bad_line
from tests.chaos.history import History


def main(address, directory, name, seed, loss):
    os.environ["XDG_CACHE_HOME"] = str(Path(directory) / "cache" / name)
    draw = random.Random(int(seed))  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
    worker_main.RolloutClient = bad_line(History(Path(directory) / "history.jsonl"), draw, float(loss))
    config = load_config(
        overrides=["inference.worker.max_concurrent_sequences=8", "inference.start_timeout=300"]
    )
    worker_main.run_worker(address, "cpu", config, name, engine_name="scripted")


if __name__ == "__main__":
    main(*sys.argv[1:])
