"""A trainer in one environment and a vLLM worker in another, on models of a few ten thousand weights."""

import os
import signal
import time
from pathlib import Path

import pytest

from hetero_rl.hub.journal_reader import JournalReader
from hetero_rl.weights.adapter_rules import is_adapter_name

CORRUPTING = Path(__file__).with_name("corrupting_worker.py")


def processes_below(pid):
    """Ids of a process's descendants."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *processes_below(int(child))]
    return found


def listening_addresses(pids):
    """Local addresses, as the kernel writes them, on which processes listen for TCP connections."""
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            target = str(descriptor.readlink()) if descriptor.is_symlink() else ""
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


@pytest.mark.parametrize("kind", ["dense", "tied", "moe"])
def test_in_float32_vllm_gives_the_log_probs_of_the_trainer_for_every_version(cluster, measured, kind):
    mixed = cluster(kind, "float32")
    mixed.start_worker()
    mixed.wait_for_step(1)
    assert listening_addresses(processes_below(mixed.worker.pid)) <= LOOPBACK
    assert mixed.finish() == (0, 0), mixed.text()

    steps = [record for record in mixed.metrics() if record["step"] >= 1]
    gaps = [record["log_prob_gap/mean"] for record in steps]
    measured(
        f"{kind} float32: mean |dlogp| {max(gaps):.1e}, max {max(r['log_prob_gap/max'] for r in steps):.1e}"
    )
    log = (mixed.directory / "worker.log").read_text()
    assert [record["step"] for record in steps] == [1, 2, 3]
    assert max(gaps) <= 1e-4
    assert all(f"version {version} (step {version - 1}) loaded" in log for version in (1, 2, 3))
    assert "quarantine" not in log


@pytest.mark.parametrize("kind", ["dense", "tied", "moe"])
def test_in_bfloat16_the_difference_is_reported_and_a_run_outlives_the_death_of_the_engine(
    cluster, measured, kind
):
    mixed = cluster(kind, "bfloat16")
    mixed.start_worker()
    mixed.wait_for_step(1)
    if kind == "dense":
        core, *_ = [
            pid
            for pid in processes_below(mixed.worker.pid)
            if "EngineCore" in Path("/proc", str(pid), "cmdline").read_text(encoding="utf-8")
        ]
        os.kill(core, signal.SIGKILL)
    assert mixed.finish() == (0, 0), mixed.text()

    steps = [record for record in mixed.metrics() if record["step"] >= 1]
    gaps = [record["log_prob_gap/mean"] for record in steps]
    measured(
        f"{kind} bfloat16: mean |dlogp| {max(gaps):.1e}, max {max(r['log_prob_gap/max'] for r in steps):.1e}"
    )
    assert [record["step"] for record in steps] == [1, 2, 3]
    restarted = "the engine runs again" in (mixed.directory / "worker.log").read_text()
    assert restarted == (kind == "dense")


@pytest.mark.parametrize(("kind", "dtype", "most"), [("tied", "float32", 1e-4), ("dense", "bfloat16", 0.1)])
def test_adapters_that_are_published_alone_are_served_by_vllm(cluster, measured, kind, dtype, most):
    pytest.importorskip("peft", reason="the extra `lora` is not installed")
    lora = '[trainer.lora]\nrank = 4\npublish = "adapter"\n'
    mixed = cluster(kind, dtype, settings=lora)
    mixed.start_worker()
    assert mixed.finish() == (0, 0), mixed.text()

    steps = [record for record in mixed.metrics() if record["step"] >= 1]
    gaps = [record["log_prob_gap/mean"] for record in steps]
    with JournalReader(mixed.run / "hub" / "journal.sqlite") as reader:
        manifests = [manifest for _, manifest in reader.versions()]
        probes = [(row[2], row[3]) for row in reader.probes()]
    measured(
        f"{kind} {dtype}, adapters: mean |dlogp| {max(gaps):.1e}, probe cards {max(gap for _, gap in probes):.1e}"
    )
    assert [record["step"] for record in steps] == [1, 2, 3]
    assert max(gaps) <= most
    assert {version for version, _ in probes} >= {1, 2, 3}
    assert all(
        is_adapter_name(entry.name) for manifest in manifests[1:] for entry in manifest.tensors if entry.size
    )
    assert "quarantine" not in (mixed.directory / "worker.log").read_text()


def test_a_worker_whose_update_went_wrong_is_quarantined_and_leaves_no_process_when_killed(cluster):
    mixed = cluster("tied", "float32")
    mixed.start_worker(str(CORRUPTING))
    mixed.wait_for_log("quarantine: the probe card of version 2 differs")

    (worker,) = mixed.status()["workers"]
    assert worker["state"].lower() == "quarantined", worker
    assert [record["step"] for record in mixed.metrics() if record["step"] >= 1] == [1]

    below = processes_below(mixed.worker.pid)
    mixed.worker.kill()
    while any(Path("/proc", str(pid)).exists() for pid in below):
        time.sleep(0.1)  # the test's own time-out ends this
