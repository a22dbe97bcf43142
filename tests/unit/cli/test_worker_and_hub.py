import pytest

from hetero_rl.config import load_config


@pytest.fixture
def worked(monkeypatch):
    """What `hetero-rl worker` would work for."""
    worked = []

    def run_worker(address, backend, config, name, *, exit_with_parent, engine_name):
        worked.append((address, backend, config, name, exit_with_parent, engine_name))

    monkeypatch.setattr("hetero_rl.worker.main.run_worker", run_worker)
    return worked


def test_a_worker_needs_a_hub(cli, worked):
    result = cli("worker")

    assert (result.exit_code, worked) == (2, [])
    assert "--hub HOST:PORT" in result.stderr


def test_a_worker_is_named_after_host_and_backend(cli, worked, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node7.example")

    cli("worker", "--hub", "hub.example:4", "--infer-backend", "npu", "--set", "inference.worker.threads=3")

    assert worked == [
        (
            "hub.example:4",
            "npu",
            load_config(overrides=["inference.worker.threads=3"]),
            "node7-npu",
            False,
            None,
        )
    ]


def test_the_hub_may_come_from_the_settings(cli, worked):
    cli(
        "worker", "--set", "hub.address=hub.example:4", "--name", "a", "--end-with-parent", "--engine", "vllm"
    )

    ((address, _, _, name, with_parent, engine),) = worked
    assert (address, name, with_parent, engine) == ("hub.example:4", "a", True, "vllm")


def test_an_address_that_is_none_is_refused(cli, worked):
    assert cli("worker", "--hub", "nonsense").exit_code == 2
    assert worked == []


def test_a_hub_serves_the_directory_of_its_run(cli, monkeypatch, tmp_path):
    served = []
    monkeypatch.setattr("hetero_rl.hub.main.serve", lambda config, directory: served.append(directory))

    cli("hub", "--set", f"run.dir={tmp_path / 'a'}")
    cli("hub", "--run-dir", tmp_path / "b")

    assert served == [tmp_path / "a", tmp_path / "b"]


def test_a_worker_may_get_weights_from_its_sites_relay(cli, worked):
    cli("worker", "--hub", "hub.example:4", "--name", "a", "--relay", "relay.site:5")
    ((_, _, config, *_),) = worked
    assert config.inference.worker.relay == "relay.site:5"
    assert cli("worker", "--hub", "hub.example:4", "--relay", "nonsense").exit_code == 2


def test_a_relay_is_told_its_hub_and_its_bounds(cli, monkeypatch, tmp_path):
    served = []
    monkeypatch.setattr("hetero_rl.relay.server.serve", lambda *arguments: served.append(arguments))

    assert cli("relay").exit_code == 2
    cli(
        "relay",
        "--hub",
        "hub.example:4",
        "--listen",
        "127.0.0.1:9",
        "--cache-dir",
        str(tmp_path),
        "--cache-bytes",
        "5",
    )

    ((config, hub, directory),) = served
    assert (hub, directory) == ("hub.example:4", tmp_path)
    assert (config.relay.listen, config.relay.cache_bytes) == ("127.0.0.1:9", 5)


def test_metrics_are_answered_where_the_option_says(cli, worked):
    cli("worker", "--hub", "hub.example:4", "--name", "a", "--metrics-listen", "127.0.0.1:9464")
    ((_, _, config, *_),) = worked
    assert config.observability.metrics_listen == "127.0.0.1:9464"


def test_a_child_of_a_trainer_leaves_the_address_to_it(cli, worked, tmp_path):
    shared = tmp_path / "config.toml"
    shared.write_text('[observability]\nmetrics_listen = "127.0.0.1:9464"\n')
    cli("worker", shared, "--hub", "hub.example:4", "--name", "a", "--end-with-parent")
    ((_, _, config, *_),) = worked
    assert not config.observability.metrics_listen
