import pytest
import torch

from hetero_rl.errors import DamagedError
from hetero_rl.trainer.shards import StoredTensors, fill, write_shards
from hetero_rl.trainer.tensor_files import write_tensors


@pytest.fixture
def sharded(tmp_path):
    """Five rows of a matrix on three ranks, 2 + 2 + 1, and a number that the first has."""
    rows = torch.arange(10.0).view(5, 2)
    parts = [{"m": rows[:2], "n": torch.tensor(7.0)}, {"m": rows[2:4]}, {"m": rows[4:]}]
    for rank, tensors in enumerate(parts):
        write_tensors(tmp_path / f"model.rank-{rank:05d}-of-00003.safetensors", tensors)
    return tmp_path


def test_rows_come_from_the_files_that_hold_them(sharded):
    with StoredTensors(sharded, "model") as stored:
        assert stored.names == {"m", "n"}
        assert stored.shape("m") == (5, 2)
        assert stored.shape("n") == ()
        assert stored.rows("m", 1, 3).tolist() == [[2, 3], [4, 5]]
        assert stored.rows("m", 4, 5).tolist() == [[8, 9]]
        assert stored.rows("m", 5, 5).shape == (0, 2)
        assert stored.whole("m").tolist() == torch.arange(10.0).view(5, 2).tolist()
        assert stored.whole("n").item() == 7


def test_a_whole_tensor_is_filled_from_parts(sharded):
    target = torch.zeros(5, 2)

    with StoredTensors(sharded, "model") as stored:
        fill(target, stored, "m")

    assert target.tolist() == torch.arange(10.0).view(5, 2).tolist()


def test_a_missing_rank_is_noticed(sharded):
    (sharded / "model.rank-00001-of-00003.safetensors").unlink()

    with pytest.raises(DamagedError, match="no whole model"):
        StoredTensors(sharded, "model")


def test_a_directory_without_files_of_that_kind_is_refused(tmp_path):
    with pytest.raises(DamagedError, match="no whole optimizer"):
        StoredTensors(tmp_path, "optimizer")


def test_one_rank_writes_everything_and_says_what_it_wrote(policy, tmp_path):
    from hetero_rl.config.tree import OptimizerConfig
    from hetero_rl.trainer.step import make_optimizer
    from hetero_rl.trainer.tensor_files import seal_of

    optimizer = make_optimizer(policy, OptimizerConfig())
    policy.model(input_ids=torch.tensor([[1, 2]])).logits.sum().backward()
    optimizer.step()

    seals = write_shards(policy, optimizer, tmp_path)

    assert sorted(seals) == [
        "model.rank-00000-of-00001.safetensors",
        "optimizer.rank-00000-of-00001.safetensors",
    ]
    assert all(seal_of(tmp_path / name) == seal for name, seal in seals.items())


def test_a_rank_that_cannot_write_is_named(policy, tmp_path):
    from hetero_rl.config.tree import OptimizerConfig
    from hetero_rl.trainer.step import make_optimizer

    with pytest.raises(OSError, match="rank 0 could not write its part of the model"):
        write_shards(policy, make_optimizer(policy, OptimizerConfig()), tmp_path / "missing")
