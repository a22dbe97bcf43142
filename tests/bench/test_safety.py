"""The cost of safety is measured between two real hubs, and the bare one really lacks its guards."""

import pytest

from hetero_rl.bench import safety
from hetero_rl.bench.timing import compare_costs, spent
from hetero_rl.bench.unsafe_hub import GuardedStore, Guards
from hetero_rl.hub.stores.base import ConflictError
from hetero_rl.hub.stores.records import SubmissionId

ALL = Guards(transport=True, sync=True, checks=True)
NONE = Guards(transport=False, sync=False, checks=False)
NORMAL, OFF = 1, 0


def synchronous_of(store):
    return store._journal.row("PRAGMA synchronous")[0]


def add_submission(store, identity):
    store._journal.execute(
        "INSERT INTO submissions VALUES (NULL, ?, ?, ?, 'lease', 'group', 'backend', 'numerics', 1.0, 0)",
        (identity.worker_name, identity.worker_epoch, identity.sequence),
    )


def test_a_guarded_store_syncs_and_knows_what_was_stored(tmp_path):
    store, identity = GuardedStore(tmp_path / "journal.sqlite", ALL), SubmissionId("w", 1, 1)
    add_submission(store, identity)
    assert synchronous_of(store) == NORMAL
    assert store.has_submission(identity)
    with pytest.raises(ConflictError):
        add_submission(store, identity)
    store.close()


def test_a_bare_store_neither_syncs_nor_looks_for_repetitions(tmp_path):
    store, identity = GuardedStore(tmp_path / "journal.sqlite", NONE), SubmissionId("w", 1, 1)
    add_submission(store, identity)
    add_submission(store, identity)
    assert synchronous_of(store) == OFF
    assert not store.has_submission(identity)
    store.close()


def test_each_kind_of_cost_gets_a_ratio_of_its_own():
    wall, cpu = compare_costs(lambda: (2.0, 3.0), lambda: (1.0, 6.0), pairs=5)
    assert (wall.value, cpu.value) == (0.5, 2.0)


def test_work_is_timed_on_every_clock():
    ticks = iter([1.0, 4.0])
    assert spent(lambda: None, lambda: next(ticks), lambda: 7.0) == (3.0, 1e-9)


@pytest.mark.slow
def test_every_guard_is_measured_through_real_hub_processes_and_nothing_is_left_behind(tmp_path):
    figures = {figure.name: figure for figure in safety.safety_figures(quick=True, directory=tmp_path)}
    whole = figures["throughput_cost_of_safety"]
    assert (whole.target, whole.relation, whole.unit) == (0.1, "<=", "share")
    assert set(figures) == {
        f"{kind}_cost_of_{guard}"
        for kind in ("throughput", "processor")
        for guard in ("safety", "transport", "sync", "checks")
    }
    assert list(tmp_path.iterdir()) == []
