import errno
import threading

import pytest
import torch

from hetero_rl.errors import (
    ConfigError,
    DiskFullError,
    NonFiniteError,
    ProtocolError,
    RefusedError,
    UnreachableError,
)
from hetero_rl.trainer import local, tensor_files
from hetero_rl.trainer.checkpoint import list_checkpoints, read_manifest
from hetero_rl.trainer.session import train
from hetero_rl.trainer.sinks import MemorySink
from hetero_rl.trainer.waits import CAUSES
from hetero_rl.wire.messages import Disposition

pytestmark = pytest.mark.usefixtures("letters")


def run(config, hub, *, resume=False, stop=None, sink=None):
    sink = sink or MemorySink()
    summary = train(config, hub, [sink], resume=resume, stop=stop or threading.Event())
    return summary, {record.step: record.values for record in sink.records}


class StoppingSink(MemorySink):
    """Asks the run to stop once it has the metrics of a step."""

    def __init__(self, step, stop):
        super().__init__()
        self.step, self.stop = step, stop

    def write(self, record):
        super().write(record)
        if record.step == self.step:
            self.stop.set()


def test_reward_rises_in_a_few_steps(make_config, make_hub):
    config = make_config(
        run={"steps": 12}, evaluation={"every": 0}, trainer={"groups_per_step": 4, "group_size": 8}
    )

    summary, metrics = run(config, make_hub())

    early = sum(metrics[step]["reward/mean"] for step in (1, 2, 3)) / 3
    late = sum(metrics[step]["reward/mean"] for step in (10, 11, 12)) / 3
    assert summary.complete
    assert late > early + 0.3


def test_a_run_makes_its_steps_in_the_fixed_order(make_config, make_hub):
    hub = make_hub()

    summary, metrics = run(make_config(), hub)

    assert summary.step == summary.total_steps == 4
    assert sorted(metrics) == [0, 1, 2, 3, 4]
    assert [manifest.step for manifest in hub.manifests] == [0, 1, 2, 3, 4]
    assert [manifest.version for manifest in hub.manifests] == [1, 2, 3, 4, 5]
    order = [call for call in hub.calls if not call.startswith("publish")]
    assert order == [
        "commit_step 1",
        "commit_step 2",
        "commit_checkpoint 2 from 2",
        "commit_step 3",
        "commit_step 4",
        "commit_checkpoint 4 from 2",
        "close_run True",
    ]
    for step in (1, 2, 3, 4):
        assert hub.calls.index(f"commit_step {step}") < hub.calls.index(
            f"publish_version {step + 1} of step {step}"
        )


def test_metrics_have_their_names(make_config, make_hub):
    _, metrics = run(make_config(), make_hub())

    waits = {f"wait_seconds/{cause}" for cause in CAUSES}
    expected = {
        "weight_version", "time", "reward/mean", "reward/std", "lag/mean", "lag/max", "log_importance_ratio/mean",
        "ess", "ess/raw", "share/clamped", "share/masked", "share/dropped", "kl/k1", "kl/k3", "log_prob_gap/mean",
        "log_prob_gap/max", "coefficient/mean", "loss", "gradient_norm", "learning_rate", "completion_tokens/mean",
        "tokens_per_second/generated", "tokens_per_second/trained", "step_seconds",
    }  # fmt: skip
    for step in (1, 2, 3, 4):
        assert expected | waits <= metrics[step].keys()
    assert metrics[0].keys() == {
        "eval/accuracy",
        "eval/step",
        "eval/weight_version",
        "weight_version",
        "time",
    }
    assert metrics[4]["eval/step"] == 4
    assert metrics[3]["lag/max"] == 1


def test_accuracy_is_measured_before_during_and_after_training(make_config, make_hub):
    summary, _ = run(make_config(run={"steps": 5}), make_hub())

    assert [(result.step, result.weight_version) for result in summary.evaluations] == [
        (0, 1),
        (2, 3),
        (4, 5),
        (5, 6),
    ]
    assert all(result.prompts == 4 for result in summary.evaluations)


def test_a_resumed_run_has_bit_equal_losses_and_trains_nothing_twice(make_config, make_hub, tmp_path):
    whole = make_config(run={"steps": 6, "dir": tmp_path / "whole"})
    broken = make_config(run={"steps": 6, "dir": tmp_path / "broken"})
    _, expected = run(whole, make_hub())
    hub, sink = make_hub(), MemorySink()
    hub.faults["commit_step 5"] = RuntimeError("the power failed")

    with pytest.raises(RuntimeError, match="the power failed"):
        run(broken, hub, sink=sink)
    summary, found = run(broken, hub, resume=True, sink=sink)

    assert summary.complete
    assert hub.requests[-1].resume_step == 4
    assert [record.step for record in sink.records] == [0, 1, 2, 3, 4, 5, 6]
    for step in range(1, 7):
        assert found[step]["loss"] == expected[step]["loss"]
        assert found[step]["gradient_norm"] == expected[step]["gradient_norm"]
    trained = [outcome.group_id for kept in hub.commits.values() for outcome in kept]
    assert len(set(trained)) == 6 * 4
    assert len(trained) == 6 * 4 * 4
    manifest = read_manifest(list_checkpoints(broken.run.dir / "checkpoints")[0][1])
    assert manifest.consumed == {step: ((4 * step - 4, 4 * step - 1),) for step in range(1, 7)}


def test_a_run_with_sharded_checkpoints_is_resumed_bit_for_bit_and_exported(make_config, make_hub, tmp_path):
    from hetero_rl.trainer.export import export_model

    sections = {"checkpoint": {"every": 2, "layout": "sharded"}, "evaluation": {"every": 0}}
    _, straight = run(make_config(run={"steps": 4, "dir": tmp_path / "straight"}, **sections), make_hub())
    hub = make_hub()
    hub.faults["commit_step 3"] = RuntimeError("the power failed")
    config = make_config(run={"steps": 4, "dir": tmp_path / "resumed"}, **sections)
    with pytest.raises(RuntimeError, match="the power failed"):
        run(config, hub)

    summary, resumed = run(config, hub, resume=True)

    assert [resumed[step]["loss"] for step in (3, 4)] == [straight[step]["loss"] for step in (3, 4)]
    assert sorted(path.name for path in summary.checkpoint.glob("*.rank-*")) == [
        "model.rank-00000-of-00001.safetensors",
        "optimizer.rank-00000-of-00001.safetensors",
    ]
    assert not (summary.checkpoint / "model.safetensors").exists()
    assert export_model(summary.checkpoint, tmp_path / "exported", "float32") > 0


def test_adapters_and_sharded_checkpoints_are_refused_together(make_config):
    config = make_config(trainer={"lora": {"rank": 2}}, checkpoint={"layout": "sharded"})

    with pytest.raises(ConfigError, match=r"checkpoint\.layout is 'sharded', which holds no adapters"):
        local.check_settings(config)


def test_weights_that_the_hub_has_already_are_not_published_again(make_config, make_hub):
    hub, stop = make_hub(), threading.Event()
    run(make_config(), hub, stop=stop, sink=StoppingSink(2, stop))
    versions = [(manifest.version, manifest.step) for manifest in hub.manifests]

    run(make_config(), hub, resume=True)

    assert versions == [(1, 0), (2, 1), (3, 2)]
    assert [(manifest.version, manifest.step) for manifest in hub.manifests] == [*versions, (4, 3), (5, 4)]


def test_versions_go_on_above_the_hubs_latest_after_a_step_back(make_config, make_hub):
    hub = make_hub()
    hub.faults["commit_step 4"] = RuntimeError("the power failed")
    with pytest.raises(RuntimeError):
        run(make_config(), hub)
    assert [(manifest.version, manifest.step) for manifest in hub.manifests] == [
        (1, 0),
        (2, 1),
        (3, 2),
        (4, 3),
    ]

    run(make_config(), hub, resume=True)

    # Version 4 belongs to a step that is no more: the weights of step 2 are published again, above it.
    assert [(manifest.version, manifest.step) for manifest in hub.manifests[4:]] == [(5, 2), (6, 3), (7, 4)]


def test_a_stopped_run_leaves_a_checkpoint_and_can_be_continued(make_config, make_hub):
    hub, stop, config = make_hub(), threading.Event(), make_config(checkpoint={"every": 100})

    summary, _ = run(config, hub, stop=stop, sink=StoppingSink(3, stop))

    assert not summary.complete
    assert summary.step == 3
    assert summary.checkpoint == config.run.dir / "checkpoints" / "step_00000003"
    assert hub.closed is False
    resumed, _ = run(config, hub, resume=True)
    assert resumed.complete
    assert resumed.step == 4


def test_a_step_that_was_applied_has_its_line_when_the_run_is_stopped_before_it_was_published(
    make_config, make_hub
):
    hub, stop, config = make_hub(), threading.Event(), make_config(checkpoint={"every": 100})
    publish, commit = hub.publish_version, hub.commit_step

    def lose_step_2(manifest):
        if manifest.step == 2:
            raise UnreachableError("the hub is away")
        publish(manifest)

    def commit_and_stop(step, outcomes, log_probs=None):
        commit(step, outcomes, log_probs)
        if step == 3:
            stop.set()

    hub.publish_version, hub.commit_step = lose_step_2, commit_and_stop

    summary, metrics = run(config, hub, stop=stop)

    assert summary.step == 3
    assert max(metrics) == 3


def test_a_run_that_is_stopped_while_it_waits_for_data_ends(make_config, make_hub):
    hub, stop = make_hub(), threading.Event()
    waiting = threading.Event()
    hub.take_batch = lambda step, wait: waiting.set()
    threading.Thread(target=lambda: (waiting.wait(), stop.set())).start()

    summary, metrics = run(make_config(), hub, stop=stop)

    assert (summary.complete, summary.step, summary.checkpoint) == (False, 0, None)
    assert 1 not in metrics


def test_a_batch_that_is_not_finite_is_saved_and_the_state_before_it_is_kept(
    make_config, make_hub, monkeypatch
):
    hub, config, sink = make_hub(), make_config(checkpoint={"every": 100}), MemorySink()
    poisoned = threading.Event()
    commit = hub.commit_step

    def commit_and_poison(step, outcomes, log_probs=None):
        commit(step, outcomes, log_probs)
        if step == 2:
            poisoned.set()

    hub.commit_step = commit_and_poison
    load = local.open_model

    def open_poisoned(*arguments, **options):
        source = load(*arguments, **options)
        source.policy.parameters()[-1].register_hook(
            lambda gradient: gradient * float("inf") if poisoned.is_set() else gradient
        )
        return source

    monkeypatch.setattr(local, "open_model", open_poisoned)
    with pytest.raises(NonFiniteError, match=r"step 3.*is saved in"):
        run(config, hub, sink=sink)

    assert (config.run.dir / "incidents" / "step_00000003" / "batch.safetensors").is_file()
    assert [step for step, _ in list_checkpoints(config.run.dir / "checkpoints")] == [2]
    assert hub.closed is False


def test_an_error_of_the_publishing_thread_ends_the_run(make_config, make_hub):
    hub = make_hub()
    hub.faults["publish_version 3 of step 2"] = RefusedError("no space at the hub", "STORAGE_FULL")

    with pytest.raises(RefusedError, match="no space at the hub"):
        run(make_config(), hub)

    assert [manifest.version for manifest in hub.manifests] == [1, 2]
    assert hub.closed is False


def test_a_batch_that_was_trained_before_is_refused(make_config, make_hub):
    hub = make_hub()
    take = hub.take_batch
    hub.take_batch = lambda step, wait: take(1 if step == 3 else step, wait)

    with pytest.raises(ProtocolError, match=r"training groups \[0, 1, 2, 3\] again for step 3"):
        run(make_config(), hub)


def test_a_step_of_which_everything_was_dropped_counts_and_changes_nothing(make_config, make_hub):
    hub = make_hub()
    config = make_config(staleness={"max_lag": 0}, run={"steps": 3})

    # The hub in memory samples step 3 with weights of step 1, which is lag 1.
    summary, metrics = run(config, hub)

    assert summary.complete
    assert metrics[2]["share/dropped"] == metrics[3]["share/dropped"] == 1
    assert metrics[3]["dropped/stale"] == 16
    assert {outcome.disposition for outcome in hub.commits[3]} == {Disposition.DROPPED_STALE}
    assert hub.manifests[2].state_digest == hub.manifests[1].state_digest


@pytest.mark.parametrize("mode", ["sampled", "always"])
def test_log_ratios_are_split_when_asked(make_config, make_hub, mode):
    hub = make_hub()
    config = make_config(estimator={"recompute_old_log_probs": mode}, weights={"serving_dtype": "float32"})

    _, metrics = run(config, hub)

    outcomes = hub.commits[3]
    known = [outcome for outcome in outcomes if outcome.chip_log_ratio is not None]
    assert len(known) == (16 if mode == "always" else 2)
    for outcome in known:
        # The worker in memory computes as the trainer does, so the chip part is rounding.
        assert abs(outcome.chip_log_ratio) < 1e-4
        assert outcome.staleness_log_ratio + outcome.chip_log_ratio == pytest.approx(
            outcome.log_importance_ratio, abs=1e-4
        )
    assert metrics[3]["share/split"] == len(known) / 16
    assert max(abs(outcome.staleness_log_ratio) for outcome in known) > 1e-3


def test_a_probe_card_holds_log_probs_of_the_published_weights(make_config, make_hub):
    hub = make_hub()
    run(make_config(run={"steps": 1}), hub)
    manifest = hub.manifests[-1]
    hub._load(manifest)

    ids = torch.frombuffer(bytearray(manifest.probe_card.token_ids), dtype=torch.int32).long().view(2, 6)
    log_probs = hub.policy.model(input_ids=ids).logits.log_softmax(-1)
    expected = log_probs[:, :-1].gather(-1, ids[:, 1:, None]).flatten().detach()
    found = torch.frombuffer(bytearray(manifest.probe_card.log_probs), dtype=torch.float32)

    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_damaged_checkpoint_is_not_loaded_and_the_one_before_is(make_config, make_hub, tmp_path):
    config, hub = make_config(run={"steps": 5}), make_hub()
    hub.faults["commit_step 5"] = RuntimeError("the power failed")
    with pytest.raises(RuntimeError):
        run(config, hub)
    model = config.run.dir / "checkpoints" / "step_00000004" / "model.safetensors"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)

    summary, _ = run(config, hub, resume=True)

    assert hub.requests[-1].resume_step == 2
    assert summary.complete
    assert (config.run.dir / "checkpoints" / "step_00000004.damaged-0").is_dir()


def test_a_disk_that_is_full_for_a_while_does_not_end_the_run(make_config, make_hub, monkeypatch):
    config, hub = make_config(checkpoint={"every": 1}), make_hub()
    write, failed = tensor_files._SealingWriter.write, []

    def full_once(self, data):
        if not failed:
            failed.append(True)
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, data)

    monkeypatch.setattr(tensor_files._SealingWriter, "write", full_once)

    summary, metrics = run(config, hub)

    assert summary.complete
    assert [metrics[step]["checkpoint/failures"] for step in (1, 2, 3, 4)] == [0, 1, 0, 0]
    assert [call for call in hub.calls if call.startswith("commit_checkpoint")] == [
        "commit_checkpoint 2 from 2",
        "commit_checkpoint 3 from 2",
        "commit_checkpoint 4 from 3",
    ]


def test_a_disk_that_stays_full_ends_the_run_without_a_word_of_completion(make_config, make_hub, monkeypatch):
    def full(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tensor_files._SealingWriter, "write", full)
    hub = make_hub()

    with pytest.raises(DiskFullError):
        run(make_config(checkpoint={"every": 1, "max_failures": 2}), hub)

    assert hub.closed is False
    assert max(hub.commits) == 2


def test_what_an_earlier_life_was_uploading_is_removed(make_config, make_hub):
    config = make_config(run={"steps": 1})
    leftover = config.run.dir / "outgoing" / "version-9-abc" / "blob-x.partial"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"x")

    run(config, make_hub())

    assert list((config.run.dir / "outgoing").iterdir()) == []


def test_a_new_run_does_not_begin_over_an_old_one(make_config, make_hub):
    run(make_config(), make_hub())

    with pytest.raises(ConfigError, match="holds a run of 4 steps"):
        run(make_config(), make_hub())


def test_resuming_without_a_checkpoint_begins_again(make_config, make_hub):
    hub = make_hub()
    hub.faults["commit_step 1"] = RuntimeError("the power failed")
    with pytest.raises(RuntimeError):
        run(make_config(), hub)

    summary, _ = run(make_config(), hub, resume=True)

    assert summary.complete
    assert [manifest.version for manifest in hub.manifests] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"sampling": {"top_p": 0.9}}, "top_p is 0.9"),
        ({"trainer": {"group_size": 1}}, "group_size is 1"),
        ({"model": {"path": "/does/not/exist"}}, "is not a directory"),
        ({"trainer": {"device": "abacus"}}, "abacus"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_the_hub_is_asked(
    make_config, make_hub, sections, message
):
    hub = make_hub()

    with pytest.raises(ConfigError, match=message):
        run(make_config(**sections), hub)

    assert not hub.requests
