"""A fuzzer that coverage guides: `python -m tests.fuzz.coverage CORPUS [--seconds N]`. Needs atheris.

    real messages ──► CORPUS ──► libFuzzer mutates, keeps what reaches new lines ──► targets.run
                        └─ what it kept serves the next start        └─ a fault ends it; the input is written beside CORPUS

Kernels are compiled anew with a check of every index (NUMBA_BOUNDSCHECK), so an index that goes astray is a fault and no silent read.
"""

import argparse
import hashlib
import os
import random
import sys
import tempfile
from pathlib import Path

os.environ["NUMBA_BOUNDSCHECK"] = "1"
os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(prefix="fuzz-kernels-")

import atheris

# What numba compiles takes no instrumentation; it is imported before.
from hetero_rl.weights import comparison, receiver, sender, wide_receiver

with atheris.instrument_imports(include=["hetero_rl"]):
    from tests.fuzz import targets

__all__ = ["comparison", "receiver", "sender", "wide_receiver"]

_LONGEST_INPUT = 4096


def mutate(data, max_size, seed):
    """Another input: random bytes rarely get through protobuf, so messages are changed field by field as often as not."""
    draw = random.Random(seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage] libFuzzer repeats it
    made = targets.remade(draw, data) if draw.random() < 0.5 else None
    return made if made is not None and len(made) <= max_size else atheris.Mutate(data, max_size)


def main():
    """Fuzzes until the time is over; libFuzzer ends the process, with 77 when it found a fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--seconds", type=int, default=600)
    options = parser.parse_args()
    options.corpus.mkdir(parents=True, exist_ok=True)
    for data in targets.seeds():
        (options.corpus / hashlib.sha256(data).hexdigest()).write_bytes(data)
        targets.run(data)  # compiles kernels, which would look like an input that takes for ever
    arguments = [
        sys.argv[0],
        f"-max_total_time={options.seconds}",
        f"-max_len={_LONGEST_INPUT}",
        "-rss_limit_mb=2048",
        "-timeout=20",
        "-print_final_stats=1",
        f"-artifact_prefix={options.corpus}.",
        str(options.corpus),
    ]
    atheris.Setup(arguments, targets.run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
