import socket

import pytest

from hetero_rl.config import load_config
from hetero_rl.errors import BackendNotFoundError, ConfigError
from hetero_rl.files import write_whole
from hetero_rl.launch import checks
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.worker.backend import Backend, DeviceReport


@pytest.fixture
def install(monkeypatch):
    """Pretends that backends are installed; `available` says whether each sees a device."""

    def _install(*, portable_only: tuple[str, ...] = (), **available: bool) -> None:
        def backend(name: str) -> Backend:
            report = DeviceReport(available=available[name], devices=(), advice="Load the driver.")
            return Backend(
                name=name,
                vendor="x",
                description="",
                engines={},
                default_engine="",
                detect=lambda: report,
                portable_sampling_only="It reports too early." if name in portable_only else "",
            )

        loaders = {name: lambda name=name: backend(name) for name in available}
        monkeypatch.setattr("hetero_rl.worker.backend.installed_backends", lambda: loaders)

    return _install


@pytest.fixture
def model_dir(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").touch()
    return directory


@pytest.fixture
def used_run(tmp_path):
    """A run directory that holds a run with default settings."""
    run = RunDirectory(tmp_path / "run")
    run.prepare()
    write_whole(run.config, load_config(overrides=[f"run.dir={run.root}"]).model_dump_json())
    run.journal.touch()
    return run


def test_an_unknown_backend_lists_those_installed(install):
    install(cpu=True, rocm=True)

    with pytest.raises(BackendNotFoundError, match="'ascend'; installed: cpu, rocm"):
        checks.check_backends(load_config(overrides=["inference.backends=['ascend']"]))


def test_a_backend_without_a_device_is_left_to_other_machines(install):
    install(cpu=True, rocm=False)

    config = load_config(overrides=["inference.backends=['cpu', 'rocm']"])

    assert list(checks.check_backends(config)) == ["cpu"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{emulate = 'chip'}", "'chip': is unknown; there are: ascend-910a"),
        ("{profile = 'fast'}", "'cpu' has no profile 'fast'"),
    ],
)
def test_what_a_worker_cannot_do_is_refused_before_anything_is_started(install, settings, message):
    install(cpu=True)

    with pytest.raises(ConfigError, match=message):
        checks.check_backends(
            load_config(overrides=[f"inference.fleet=[{{backend = 'cpu', worker = {settings}}}]"])
        )


def test_sampling_that_a_vendor_cannot_report_is_refused_with_its_reason(install):
    install(cpu=True, portable_only=("cpu",))

    with pytest.raises(
        ConfigError, match=r"temperature 0\.5.*'cpu' offers 1, 1, 0 only\. It reports too early\."
    ):
        checks.check_backends(load_config(overrides=["sampling.temperature=0.5"]))
    assert list(checks.check_backends(load_config())) == ["cpu"]


def test_remote_workers_bring_their_own_backend(install):
    install()

    config = load_config(overrides=["inference.backends=['ascend']", "inference.workers=0"])

    assert checks.check_backends(config) == {}


def test_a_model_directory_and_the_starter_pass(model_dir):
    checks.check_model(str(model_dir))
    checks.check_model("starter")


def test_a_missing_model_directory_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.path = '.*none': no such directory"):
        checks.check_model(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("missing", "message"),
    [("config.json", "no config.json"), ("model.safetensors", "no .*safetensors file")],
)
def test_an_incomplete_model_directory_says_what_is_missing(model_dir, missing, message):
    (model_dir / missing).unlink()

    with pytest.raises(ConfigError, match=message):
        checks.check_model(str(model_dir))


@pytest.mark.parametrize(
    ("address", "parts"),
    [("127.0.0.1:7421", ("127.0.0.1", 7421)), ("[::1]:0", ("::1", 0)), ("hub:1", ("hub", 1))],
)
def test_an_address_is_split_into_host_and_port(address, parts):
    assert checks.split_address(address, "hub.listen") == parts


@pytest.mark.parametrize("address", ["", "7421", "host", "host:", ":1", "host:65536", "host:-1", "host:x"])
def test_an_address_that_is_none_is_refused_with_its_key(address):
    with pytest.raises(ConfigError, match=r"hub\.listen"):
        checks.split_address(address, "hub.listen")


def test_a_port_in_use_is_refused_with_a_way_out():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        with pytest.raises(ConfigError, match=r"in use.*hub\.listen=127\.0\.0\.1:0"):
            checks.check_port(address)


def test_a_free_port_passes_and_is_free_afterwards():
    checks.check_port("127.0.0.1:0")


def test_an_unused_directory_takes_a_new_run(tmp_path):
    checks.check_run_directory(load_config(overrides=[f"run.dir={tmp_path / 'new'}"]), resume=False)


def test_a_used_directory_is_refused_without_resume(used_run):
    with pytest.raises(ConfigError, match=r"holds a run already\. Continue it with --resume"):
        checks.check_run_directory(load_config([used_run.config]), resume=False)


def test_there_must_be_a_run_to_resume(tmp_path):
    with pytest.raises(ConfigError, match="holds no run to continue"):
        checks.check_run_directory(load_config(overrides=[f"run.dir={tmp_path}"]), resume=True)


def test_a_run_directory_that_is_a_file_is_refused(tmp_path):
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(ConfigError, match="is not a directory"):
        checks.check_run_directory(load_config(overrides=[f"run.dir={file}"]), resume=False)


def test_a_run_goes_on_with_more_steps_and_other_ways_to_run_it(used_run):
    changed = ["run.steps=500", "inference.workers=3", "logging.live=false", "hub.listen=127.0.0.1:9"]

    checks.check_run_directory(load_config([used_run.config], changed), resume=True)


def test_a_run_does_not_go_on_as_another_one_and_the_difference_is_shown(used_run):
    changed = ["estimator.name=gepo", "task.options={min_terms = 2}", "run.seed=1"]

    with pytest.raises(ConfigError) as caught:
        checks.check_run_directory(load_config([used_run.config], changed), resume=True)

    assert str(caught.value).splitlines()[1:-1] == [
        "  estimator.name: began with 'vespo', now 'gepo'",
        "  run.seed: began with 0, now 1",
        "  task.options: began with {}, now unset",
        "  task.options.min_terms: began with unset, now 2",
    ]


def test_the_journal_of_a_hub_that_runs_already_is_no_run_of_the_trainers(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.prepare()
    run.journal.touch()
    with pytest.raises(ConfigError, match="holds a run already"):
        checks.check_run_directory(load_config([], [f"run.dir={str(run.root)!r}"]), resume=False)

    beside_it = load_config([], [f"run.dir={str(run.root)!r}", "hub.address='hub:7077'"])
    checks.check_run_directory(beside_it, resume=False)

    write_whole(run.metrics, "{}\n")
    with pytest.raises(ConfigError, match="holds a run already"):
        checks.check_run_directory(beside_it, resume=False)
