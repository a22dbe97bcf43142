import errno
import json
import logging
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hetero_rl.errors import DamagedError, DiskFullError, StorageError
from hetero_rl.trainer import checkpoint as module
from hetero_rl.trainer import tensor_files
from hetero_rl.trainer.adapters import ADAPTER_FILE
from hetero_rl.trainer.checkpoint import (
    CheckpointStore,
    Manifest,
    latest_checkpoint,
    list_checkpoints,
    read_manifest,
    verify_checkpoint,
)
from hetero_rl.trainer.tensor_files import seal_of, write_tensors

FILES = ("model.safetensors", "optimizer.safetensors", "config.json", "manifest.json")


def manifest(step):
    return Manifest(
        run_id="r",
        step=step,
        weight_version=step + 1,
        next_ordinal=8 * step,
        consumed={number: ((4 * number - 4, 4 * number - 1),) for number in range(1, step + 1)},
        random_states={"python": [3, [1, 2], None]},
        config_digest="c" * 64,
        versions={"torch": "2"},
    )


def tensors(step):
    return {
        "model.safetensors": {"a": torch.full((3, 2), float(step)), "b": torch.arange(4)},
        "optimizer.safetensors": {"a.step": torch.tensor(float(step))},
    }


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "tiny"}')
    return path


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints", keep=2, max_failures=2)


@pytest.fixture
def saved(store, config_file, tmp_path):
    for step in (10, 20):
        store.save(manifest(step), tensors(step), [config_file])
    return tmp_path / "checkpoints"


def fill_disk(monkeypatch, after_bytes=0, error=errno.ENOSPC):
    """Makes every write of a checkpoint file fail after some bytes, as a full disk does."""
    written = 0
    write = tensor_files._SealingWriter.write

    def limited(self, data):
        nonlocal written
        written += memoryview(data).nbytes
        if written > after_bytes:
            raise OSError(error, os.strerror(error))
        write(self, data)

    monkeypatch.setattr(tensor_files._SealingWriter, "write", limited)


def test_a_checkpoint_reads_back_as_it_was_written(saved):
    found = latest_checkpoint(saved)

    assert found.path == saved / "step_00000020"
    assert found.manifest.files.keys() == {"model.safetensors", "optimizer.safetensors", "config.json"}
    assert found.manifest == Manifest(
        **{field: getattr(manifest(20), field) for field in Manifest.__slots__ if field != "files"},
        files=found.manifest.files,
    )
    model = load_file(found.path / "model.safetensors")
    assert torch.equal(model["a"], torch.full((3, 2), 20.0))
    assert torch.equal(model["b"], torch.arange(4))


def test_only_the_newest_few_are_kept(store, saved, config_file):
    store.save(manifest(30), tensors(30), [config_file])

    assert [step for step, _ in list_checkpoints(saved)] == [30, 20]
    assert store.oldest_step() == 20
    assert sorted(path.name for path in saved.iterdir()) == ["step_00000020", "step_00000030"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "empty"])
def test_damage_to_any_file_falls_back_to_the_checkpoint_before(saved, name, damage, caplog):
    file = saved / "step_00000020" / name
    data = bytearray(file.read_bytes())
    if damage == "remove":
        file.unlink()
    else:
        data[len(data) // 2] ^= 0x01
        file.write_bytes({"flip": data, "cut": data[:-1], "empty": b""}[damage])

    with caplog.at_level(logging.WARNING):
        found = latest_checkpoint(saved)

    assert found.manifest.step == 10
    assert "step_00000020 is damaged, falling back" in caplog.text


def shards(directory):
    """Two ranks' parts of the model and the optimizer, as `write_shards` writes them."""
    names = [f"{kind}.rank-{rank:05d}-of-00002" for kind in ("model", "optimizer") for rank in range(2)]
    return {
        f"{name}.safetensors": write_tensors(directory / f"{name}.safetensors", {"a": torch.ones(2, 2)})
        for name in names
    }


def adapters(step):
    return tensors(step) | {ADAPTER_FILE: {"a.lora_A": torch.full((2, 2), float(step))}}


@pytest.mark.parametrize("layout", ["sharded", "adapters"])
def test_damage_to_any_file_of_shards_or_adapters_falls_back_as_well(store, config_file, tmp_path, layout):
    for step in (10, 20):
        whole, parts = ({}, shards) if layout == "sharded" else (adapters(step), None)
        store.save(manifest(step), whole, [config_file], shards=parts)
    newest = tmp_path / "checkpoints" / "step_00000020"
    files = sorted(newest.iterdir())
    assert len(files) == (6 if layout == "sharded" else 5)

    for file in files:
        whole = file.read_bytes()
        flips = [0, len(whole) // 3, len(whole) // 2, len(whole) - 1]
        flipped = [whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :] for at in flips]
        for changed in (*flipped, whole[:-1], whole[: len(whole) // 2], b"", whole + b"\0", None):
            file.unlink()
            if changed is not None:
                file.write_bytes(changed)
            assert latest_checkpoint(tmp_path / "checkpoints").manifest.step == 10, (file.name, changed)
            file.write_bytes(whole)
    assert latest_checkpoint(tmp_path / "checkpoints").manifest.step == 20


def test_every_single_flipped_bit_of_the_manifest_is_noticed(saved):
    file = saved / "step_00000020" / "manifest.json"
    data = file.read_bytes()
    for position in range(0, len(data), 37):
        changed = bytearray(data)
        changed[position] ^= 0x04
        file.write_bytes(changed)
        parsed = json.loads(data)
        try:
            same = json.loads(bytes(changed)) == parsed
        except ValueError:
            same = False
        if not same:
            with pytest.raises(DamagedError):
                read_manifest(file.parent)


def test_a_damaged_checkpoint_is_set_aside_and_never_deleted(saved):
    (saved / "step_00000020" / "model.safetensors").write_bytes(b"")

    latest_checkpoint(saved, set_damaged_aside=True)

    assert (saved / "step_00000020.damaged-0" / "manifest.json").is_file()
    assert [step for step, _ in list_checkpoints(saved)] == [10]


def test_a_step_can_be_saved_again_over_a_damaged_one(store, saved, config_file):
    (saved / "step_00000020" / "model.safetensors").write_bytes(b"")

    store.save(manifest(20), tensors(21), [config_file])

    assert verify_checkpoint(saved / "step_00000020").step == 20
    assert (saved / "step_00000020.damaged-0").is_dir()


def test_no_checkpoint_is_none(tmp_path):
    assert latest_checkpoint(tmp_path / "nothing") is None


def test_a_checkpoint_of_another_format_is_refused(saved, monkeypatch):
    monkeypatch.setattr(module, "FORMAT", 2)

    with pytest.raises(DamagedError, match="format 1 is not known"):
        read_manifest(saved / "step_00000020")


def test_a_crash_before_the_rename_leaves_the_checkpoints_before_it(store, saved, config_file, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda self, target: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.save(manifest(30), tensors(30), [config_file])

    assert latest_checkpoint(saved).manifest.step == 20
    store.save(manifest(30), tensors(30), [config_file])
    assert not list(saved.glob("*.tmp-*"))


@pytest.mark.parametrize("after_bytes", [0, 100, 200])
def test_a_full_disk_destroys_nothing_and_training_may_go_on(
    store, saved, config_file, monkeypatch, after_bytes
):
    with monkeypatch.context() as patch:
        fill_disk(patch, after_bytes)
        assert store.try_save(manifest(30), tensors(30), [config_file]) is None

    assert store.failures == 1
    assert sorted(path.name for path in saved.iterdir()) == ["step_00000010", "step_00000020"]
    assert latest_checkpoint(saved).manifest.step == 20


def test_a_disk_that_stays_full_ends_the_run_after_the_allowed_failures(
    store, saved, config_file, monkeypatch
):
    fill_disk(monkeypatch)
    assert store.try_save(manifest(30), tensors(30), [config_file]) is None

    with pytest.raises(DiskFullError, match="step_00000040"):
        store.try_save(manifest(40), tensors(40), [config_file])


def test_failures_that_are_not_in_a_row_do_not_end_the_run(store, saved, config_file, monkeypatch):
    for step in (30, 50):
        with monkeypatch.context() as patch:
            fill_disk(patch)
            assert store.try_save(manifest(step), tensors(step), [config_file]) is None
        assert store.try_save(manifest(step + 10), tensors(step + 10), [config_file]) is not None

    assert store.failures == 0


def test_another_error_of_the_file_system_is_not_called_a_full_disk(store, config_file, monkeypatch):
    fill_disk(monkeypatch, error=errno.EROFS)

    with pytest.raises(StorageError) as caught:
        store.save(manifest(30), tensors(30), [config_file])

    assert not isinstance(caught.value, DiskFullError)


def test_tensor_files_are_what_the_library_reads(tmp_path):
    generator = torch.Generator().manual_seed(0)
    content = {
        "f32": torch.randn(3, 5, generator=generator),
        "bf16": torch.randn(7, generator=generator).bfloat16(),
        "i64": torch.tensor(5),
        "transposed": torch.randn(2, 3, generator=generator).T,
        "empty": torch.empty(0, 4),
        "bool": torch.tensor([True, False]),
    }

    seal = write_tensors(tmp_path / "x.safetensors", content)

    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == content.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in content.items())
    assert seal == seal_of(tmp_path / "x.safetensors")
