"""Nothing acknowledged is lost and nothing is applied twice, whoever is killed and wherever.

`make chaos` runs this for as long as CHAOS_SECONDS says, from CHAOS_SEED on; in `make test` one short run of a fixed seed stands for it.
Each run prints its seed; its history stays in the temporary directory when the judge finds something.
"""

import os
import time

import pytest

from tests.chaos.site import Site, small_settings

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SECONDS = float(os.environ.get("CHAOS_SECONDS", "0"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
KILLS_PER_RUN, WORKERS = (40, 2) if SECONDS else (4, 1)


@pytest.mark.timeout(SECONDS + 900)
def test_killed_at_any_place_the_run_loses_nothing_and_applies_nothing_twice(tmp_path):
    until = time.monotonic() + SECONDS
    seed, kills = SEED, 0
    while True:
        print(f"chaos seed {seed}", flush=True)  # ruff: ignore[print] the seed repeats the run
        site = Site(tmp_path / str(seed), seed, small_settings(KILLS_PER_RUN + 2), workers=WORKERS)
        site.run(KILLS_PER_RUN, seconds=600)
        assert site.problems() == [], f"seed {seed}, history {site.history.path}"
        assert site.kills >= 1
        kills += site.kills
        seed += 1
        if time.monotonic() >= until:
            break
    print(f"{kills} kills in {seed - SEED} runs")  # ruff: ignore[print] the figure that is published
