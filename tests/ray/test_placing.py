"""Where Ray puts workers and ranks, and what becomes of them when a process or a node is killed."""

import os
import queue
import signal
import threading

import pytest

from hetero_rl.config import Config, load_config
from hetero_rl.errors import LaunchError
from hetero_rl.launch.placement import Placement, rank_placement, worker_placement
from hetero_rl.launch.plan import PlannedWorker
from hetero_rl.launch.ray_cluster import Cluster
from hetero_rl.launch.ray_holder import Order
from hetero_rl.launch.ray_keeper import RayKeeper
from hetero_rl.launch.ray_ranks import RankGang
from hetero_rl.launch.restart import RestartPolicy
from hetero_rl.worker.backend import find_backend

pytest.importorskip(
    "ray", reason="Ray is not installed here; `make test-ray` has an environment of its own for it"
)
pytestmark = [pytest.mark.e2e, pytest.mark.slow]
PATIENCE = 600.0
PROMPT = RestartPolicy(max_restarts=3, first_delay=0.0)


def a_worker_of(backend):
    worker = PlannedWorker(name=f"{backend}-0", backend=backend, index=0, settings={})
    return worker_placement(load_config(), worker, find_backend(backend))


@pytest.fixture
def order(tmp_path):
    """A process that runs until it is asked to end: a hub, which needs neither torch nor a model."""
    number = iter(range(100))

    def _order(_):
        run = tmp_path / f"run-{next(number)}"
        (run / "hub").mkdir(parents=True)
        return Order(
            name="held",
            command=("hub", "{config}", "--run-dir", str(run), "--end-with-parent"),
            config=Config().model_dump_json(),
            log=str(tmp_path / "held.log"),
            environment={"OMP_NUM_THREADS": "1"},
        )

    return _order


class Placed:
    """A kept process, with every place that it had and what was said of it."""

    def __init__(self, order, placement, policy=PROMPT):
        self.places = queue.Queue()
        self.notes = queue.Queue()
        self.ends = queue.Queue()

        def ordered(place):
            self.places.put(place)
            return order(place)

        self.keeper = RayKeeper("held", ordered, placement, policy, self.notes.put, self.ends.put)
        self.keeper.start()

    def next_place(self):
        return self.places.get(timeout=PATIENCE)

    def pid(self):
        """Of the process, once it runs: the holder knows it, and nobody needs it but this test."""
        import ray

        while (found := ray.get(self.keeper._actor.pid.remote())) is None:
            pass
        return found


@pytest.fixture
def place(order):
    made = []

    def _place(placement, ordered=None, policy=PROMPT):
        made.append(Placed(ordered or order, placement, policy))
        return made[-1]

    yield _place
    for placed in made:
        placed.keeper.request_stop()
    for placed in made:
        placed.keeper.close(60.0)


def test_workers_go_to_the_nodes_of_their_vendor_and_see_one_device_each(cluster, place):
    cuda = [place(a_worker_of("cuda")) for _ in range(2)]
    ascend = place(a_worker_of("ascend"))

    greens, red = [placed.next_place() for placed in cuda], ascend.next_place()

    assert {green.node_id for green in greens} == {cluster.green.node_id}
    assert sorted(green.devices["CUDA_VISIBLE_DEVICES"] for green in greens) == ["0", "1"]
    assert red.node_id == cluster.red.node_id
    assert red.devices["ASCEND_RT_VISIBLE_DEVICES"] == "0"


def test_vendors_of_one_resource_name_are_told_apart_by_their_label(cluster, place):
    import ray

    nodes = Cluster(ray).nodes()

    assert not any(a_worker_of("rocm").fits(node) for node in nodes)
    assert [a_worker_of("cuda").fits(node) for node in nodes].count(True) == 1


def test_a_killed_process_is_placed_again(cluster, place):
    worker = place(a_worker_of("ascend"))
    worker.next_place()

    os.kill(worker.pid(), signal.SIGKILL)

    assert worker.next_place().node_id == cluster.red.node_id
    assert worker.notes.get_nowait() == "held was ended by SIGKILL; placing it again in 0 s"


def test_a_process_that_keeps_dying_is_given_up_with_the_end_of_its_log(cluster, place, tmp_path):
    def refused(_):
        return Order(
            name="held", command=("hub", "--no-such-option"), config="{}", log=str(tmp_path / "refused.log")
        )

    worker = place(a_worker_of("cuda"), refused)

    assert worker.ends.get(timeout=PATIENCE) is worker.keeper
    assert "No such option" in worker.keeper.describe("is of no use")


def test_what_was_on_a_killed_node_is_placed_on_one_that_comes(cluster, place):
    worker = place(a_worker_of("ascend"))
    first = worker.next_place()

    cluster.remove_node(cluster.red, allow_graceful=False)
    cluster.red = cluster.add_node(**cluster.common, resources={"NPU": 2}, labels={"vendor": "ascend"})

    second = worker.next_place()
    assert second.node_id == cluster.red.node_id != first.node_id
    assert "is lost with its node" in worker.notes.get(timeout=PATIENCE)


def test_ranks_are_placed_together_on_devices_of_their_own(cluster, order, tmp_path):
    config = load_config(overrides=["launcher.trainer_backend=cuda", "launcher.trainer_ranks=2"])
    told = queue.Queue()
    stop = threading.Event()

    def ordered(rendezvous):
        told.put(rendezvous)
        return Order(
            name=f"rank-{rendezvous.rank}", command=("version",), config="{}", log=str(tmp_path / "rank.log")
        )

    gang = RankGang(2, rank_placement(config, find_backend("cuda")), ordered, PROMPT, print)
    end = gang.run(stop)

    first, second = told.get_nowait(), told.get_nowait()
    assert end.code == 0
    assert {place.node_id for place in gang.places} == {cluster.green.node_id}
    assert sorted(place.devices["CUDA_VISIBLE_DEVICES"] for place in gang.places) == ["0", "1"]
    assert (first.rank, second.rank, first.world) == (0, 1, 2)
    assert (first.address, first.port) == (second.address, second.port)


def test_ranks_that_keep_failing_are_given_up_with_the_end_of_the_log(cluster, tmp_path):
    def ordered(_):
        return Order(name="rank", command=("hub", "--no-such"), config="{}", log=str(tmp_path / "rank.log"))

    gang = RankGang(2, Placement(cpus=0.5), ordered, PROMPT, print)

    with pytest.raises(LaunchError, match=r"trainer rank . on .* ended with exit code 2"):
        gang.run(threading.Event())
