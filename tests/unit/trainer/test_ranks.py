import subprocess
import sys

import pytest
import torch

from hetero_rl.errors import ConfigError
from hetero_rl.trainer.ranks import Ranks, joined_ranks

CPU = torch.device("cpu")


def test_one_process_has_no_ranks(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    with joined_ranks(CPU) as ranks:
        assert ranks is None


def test_a_number_of_ranks_without_torchruns_other_variables_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)

    with pytest.raises(ConfigError, match="WORLD_SIZE is 2, but RANK is not set"), joined_ranks(CPU):
        pytest.fail("the ranks were joined")


def test_a_number_of_ranks_that_does_not_divide_leaves_one_item_fewer_to_some():
    parts = "abcde"

    shares = [Ranks(rank, 3, CPU).share(parts) for rank in range(3)]

    assert shares == [("a", "d"), ("b", "e"), ("c",)]


def test_a_process_that_has_done_its_part_ends_with_its_output_and_without_finalizing():
    code = """
import atexit
from hetero_rl.trainer.ranks import end_process
atexit.register(print, "finalized")
print("done")
end_process()
"""

    ended = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=90
    )

    assert ended.stdout == "done\n"
