"""What a run asks of a Ray cluster, without any: resources, labels, commands."""

import json

import pytest

from hetero_rl.config import load_config
from hetero_rl.errors import ConfigError
from hetero_rl.launch import placement
from hetero_rl.launch.metrics_follower import MetricsFollower
from hetero_rl.launch.placement import NodeFacts, Placement
from hetero_rl.launch.plan import PlannedWorker
from hetero_rl.launch.rank import RankResult, read_result
from hetero_rl.launch.ray_holder import CONFIG_FILE, Place
from hetero_rl.launch.ray_keeper import in_short
from hetero_rl.launch.ray_node import NodeOptions, node_command, node_environment
from hetero_rl.launch.ray_ranks import Rendezvous
from hetero_rl.launch.ray_run import hub_address_for, rank_order, worker_order
from hetero_rl.worker.backend import find_backend

GREEN = NodeFacts(address="10.0.0.1", resources={"CPU": 8, "GPU": 2}, labels={"vendor": "nvidia"})
RED = NodeFacts(address="10.0.0.2", resources={"CPU": 8, "NPU": 8}, labels={"vendor": "ascend"})
HERE = Place(address="10.0.0.2", node_id="n", devices={})


def planned(backend, **settings):
    return PlannedWorker(name=f"{backend}-0", backend=backend, index=0, settings=settings)


def asked_by(backend, *overrides, **settings):
    config = load_config(overrides=overrides)
    return placement.worker_placement(config, planned(backend, **settings), find_backend(backend))


class TestAsking:
    @pytest.mark.parametrize(
        ("backend", "options"),
        [
            ("cpu", {"num_cpus": 1.0}),
            ("cuda", {"num_cpus": 1.0, "num_gpus": 1, "label_selector": {"vendor": "nvidia"}}),
            ("rocm", {"num_cpus": 1.0, "num_gpus": 1, "label_selector": {"vendor": "amd"}}),
            ("ascend", {"num_cpus": 1.0, "resources": {"NPU": 1}}),
        ],
    )
    def test_each_vendor_s_package_says_what_a_worker_asks_for(self, backend, options):
        assert asked_by(backend).options() == options

    def test_a_tensor_parallel_worker_on_one_node_asks_for_all_its_devices(self):
        assert asked_by("ascend", "launcher.devices_per_worker=4").bundle() == {"CPU": 1.0, "NPU": 4.0}

    def test_an_engine_that_spreads_itself_by_ray_asks_for_its_devices_itself(self):
        asked = asked_by("cuda", engine_options={"distributed_executor_backend": "ray"})

        assert asked.bundle() == {"CPU": 1.0}
        assert asked.labels == {"vendor": "nvidia"}

    def test_a_rank_asks_for_the_devices_of_the_trainer_s_backend(self):
        config = load_config(overrides=["launcher.devices_per_rank=2", "launcher.cpus_per_rank=3"])

        asked = placement.rank_placement(config, find_backend("cuda"))

        assert asked.bundle() == {"CPU": 3.0, "GPU": 2.0}

    def test_all_that_a_run_asks_for_together(self):
        config = load_config(
            overrides=["inference.workers=3", "launcher.trainer_ranks=2", "launcher.cpus_per_rank=1.5"]
        )
        assert placement.cpus_in_all(config) == 6


class TestFitting:
    def test_a_node_fits_with_enough_devices_and_the_labels(self):
        cuda = Placement(cpus=1, resource="GPU", devices=2, labels={"vendor": "nvidia"})

        assert cuda.fits(GREEN)
        assert not cuda.fits(RED)
        assert not Placement(cpus=1, resource="GPU", devices=3).fits(GREEN)
        assert not Placement(cpus=1, resource="GPU", devices=1, labels={"vendor": "amd"}).fits(GREEN)

    def test_backends_without_a_place_are_left_to_other_islands_and_named(self):
        config = load_config(overrides=["inference.backends=['ascend','cuda']"])
        backends = {name: find_backend(name) for name in ("ascend", "cuda")}
        notes = []

        assert placement.placeable(config, backends, [RED], notes.append).keys() == {"ascend"}
        assert notes == [
            "no node of the Ray cluster has 1 CPU, 1 GPU, label vendor=nvidia, as a worker of cuda asks for"
        ]

    def test_a_trainer_without_a_place_is_refused_with_what_there_is(self):
        asked = Placement(cpus=1, resource="GPU", devices=1)
        with pytest.raises(ConfigError, match=r"10\.0\.0\.2 with 8 CPU, 8 NPU, vendor=ascend"):
            placement.check_room("the trainer", asked, [RED])

    def test_a_trainer_on_other_devices_than_it_asks_for_is_refused(self):
        config = load_config(overrides=["trainer.device=cuda"])

        with pytest.raises(ConfigError, match=r"launcher\.trainer_backend=cuda"):
            placement.check_trainer_device(config, find_backend("cpu"))
        placement.check_trainer_device(config, find_backend("cuda"))


class TestReaching:
    def test_a_hub_that_other_hosts_cannot_reach_is_refused_with_the_line_to_set(self):
        with pytest.raises(ConfigError, match=r'hub\.listen="10\.0\.0\.1:7077"'):
            placement.check_reachable(load_config(), "10.0.0.1", [GREEN, RED])

    def test_on_one_host_loopback_is_enough(self):
        placement.check_reachable(load_config(), "10.0.0.1", [GREEN])

    def test_a_hub_that_listens_everywhere_is_reached_at_the_address_of_its_host(self):
        assert hub_address_for("0.0.0.0:7077", "10.0.0.1") == "10.0.0.1:7077"
        assert hub_address_for("127.0.0.1:7077", "10.0.0.1") == "127.0.0.1:7077"


class TestOrders:
    def test_a_worker_is_started_by_the_command_of_a_local_one_with_files_of_its_node(self, tmp_path):
        config = load_config(overrides=[f"run.dir={tmp_path}"])
        order = worker_order(
            config, planned("cpu"), find_backend("cpu"), hub="h:1", place=HERE, gcs_address="g:2"
        )

        assert order.command[:6] == ("worker", CONFIG_FILE, "--hub", "h:1", "--infer-backend", "cpu")
        assert order.log == str(tmp_path / "logs" / "worker-cpu-0.log")
        assert "RAY_ADDRESS" not in order.environment

    def test_an_engine_that_spreads_itself_is_told_of_the_cluster_and_sees_its_devices(self, tmp_path):
        config = load_config(overrides=[f"run.dir={tmp_path}"])
        worker = planned("cuda", engine_options={"distributed_executor_backend": "ray"})
        order = worker_order(config, worker, find_backend("cuda"), hub="h:1", place=HERE, gcs_address="g:2")

        assert order.environment["RAY_ADDRESS"] == "g:2"
        assert order.environment["VLLM_HOST_IP"] == "10.0.0.2"
        assert order.unset == ("CUDA_VISIBLE_DEVICES",)

    def test_a_rank_is_told_who_it_is_and_leaves_the_metrics_address_to_its_launcher(self, tmp_path):
        told = Rendezvous(rank=1, world=4, address="10.0.0.1", port=29500)
        order = rank_order(
            load_config(overrides=[f"run.dir={tmp_path}"]), find_backend("cuda"), hub="h:1", told=told
        )

        assert {name: order.environment[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")} == {
            "RANK": "1",
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "0",
        }
        assert (order.environment["MASTER_ADDR"], order.environment["MASTER_PORT"]) == ("10.0.0.1", "29500")
        assert "observability.metrics_listen=''" in order.command

    def test_paths_mean_the_same_on_every_node(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        config = load_config(overrides=["run.dir=runs/x", "model.path=m", "security.credentials=c"])

        shipped = placement.absolute_paths(config)

        assert shipped.run.dir == tmp_path / "runs/x"
        assert shipped.model.path == str(tmp_path / "m")
        assert shipped.security.credentials == tmp_path / "c"
        assert placement.absolute_paths(load_config()).model.path == "starter"


class TestNodes:
    def test_a_node_gets_the_label_and_the_resource_of_its_vendor(self):
        command = node_command(NodeOptions(address="h:6379", backend="ascend", devices=8))

        assert command[-4:] == ("vendor=ascend", "--num-gpus=0", "--resources", '{"NPU": 8}')
        assert node_command(NodeOptions(head=True, backend="rocm", devices=2))[-2:] == (
            "vendor=amd",
            "--num-gpus=2",
        )

    def test_nothing_of_ray_s_own_is_shown_or_told(self):
        command = node_command(NodeOptions(head=True, backend="cpu"))

        assert {"--include-dashboard=false", "--disable-usage-stats"} <= set(command)
        assert node_environment({"RAY_AUTH_MODE": "disabled"})["RAY_USAGE_STATS_ENABLED"] == "0"

    @pytest.mark.parametrize("options", [NodeOptions(), NodeOptions(head=True, address="h:1")])
    def test_a_node_begins_a_cluster_or_joins_one(self, options):
        with pytest.raises(ConfigError, match="--head"):
            node_command(options)

    def test_a_node_asks_for_a_token_unless_told_otherwise(self, tmp_path):
        token = tmp_path / "token"
        token.write_text("secret")

        assert node_environment({"RAY_AUTH_TOKEN_PATH": str(token)})["RAY_AUTH_MODE"] == "token"
        assert node_environment({"RAY_AUTH_TOKEN": "secret"})["RAY_AUTH_MODE"] == "token"
        assert "RAY_AUTH_MODE" not in node_environment({"RAY_AUTH_MODE": "disabled"})
        with pytest.raises(ConfigError, match="ray get-auth-token --generate"):
            node_environment({"HOME": str(tmp_path)})


class TestTelling:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("The actor died.\nIts address was x.", "RuntimeError: The actor died."),
            (
                "Traceback (most recent call last):\n  f()\nStorageError: no room",
                "RuntimeError: StorageError: no room",
            ),
            ("", "RuntimeError"),
        ],
    )
    def test_an_error_of_ray_is_told_on_one_line(self, text, said):
        assert in_short(RuntimeError(text)) == said


class TestFollowing:
    def test_metrics_of_a_trainer_elsewhere_are_shown_once_each(self, tmp_path):
        file, seen = tmp_path / "metrics.jsonl", []
        follower = MetricsFollower(file, [_Sink(seen)])

        follower.look()
        file.write_text('{"step": 0, "a": 1.0}\n{"step": 1, "a": null, "b": 2}\n{"step": 2, "a"')
        follower.look()
        replaced = tmp_path / "new"
        replaced.write_text("".join(json.dumps({"step": step}) + "\n" for step in (0, 1, 2)))
        replaced.replace(file)
        follower.look()

        assert seen == [(0, {"a": 1.0}), (1, {"b": 2.0}), (2, {})]

    def test_a_rank_that_wrote_nothing_tells_nothing(self):
        assert read_result("") == RankResult(complete=False, step=0, seconds=0.0, checkpoint="")
        assert read_result('{"complete": true, "step": 3, "seconds": 1.5, "checkpoint": "c"}').step == 3


class _Sink:
    def __init__(self, seen):
        self.write = lambda record: seen.append((record.step, dict(record.values)))
