"""Extra memory of publishing one step, in a process of its own; called by test_publish.py.

Prints one JSON object of bytes: `served`, a copy of the model (24 tensors); `copied`, what copying the
whole model takes; `published`, what publishing a step takes.
"""

import json
import sys
from pathlib import Path

import torch
from test_publish import Hub, Model, Policy, publish, publisher_to

from hetero_rl.bench.memory import peak_growth
from hetero_rl.trainer.snapshots import take_snapshot


def main(directory):
    (directory / "hub").mkdir()
    policy = Policy(Model(24, 1024))
    publisher = publisher_to(Hub(directory / "hub"), policy, directory)
    publish(publisher, policy, 2)
    growth = {
        "served": 24 * 1024 * 1024 * torch.bfloat16.itemsize,
        "copied": peak_growth(lambda: take_snapshot(policy, 2, torch.bfloat16)),
        "published": peak_growth(lambda: publisher.publish_step(2)),
    }
    publisher.close()
    sys.stdout.write(json.dumps(growth))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
