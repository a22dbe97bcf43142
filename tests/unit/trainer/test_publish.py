"""What publishing a step copies, and what the hub gets."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

pytest.importorskip("numba", reason="the codec extra is not installed")

from hetero_rl.bench.memory import can_measure
from hetero_rl.config.tree import WeightsConfig
from hetero_rl.errors import RefusedError
from hetero_rl.trainer.patience import Patience, StopSignal
from hetero_rl.trainer.publish import Publisher
from hetero_rl.trainer.waits import WaitClock
from hetero_rl.weights.adapter_rules import down_name, is_adapter_name, up_name
from hetero_rl.weights.digests import digest_of_bytes
from hetero_rl.weights.full import stage_full
from hetero_rl.weights.held import HeldWeights
from hetero_rl.weights.tensors import distinct_tensors, raw_bytes
from hetero_rl.wire.messages import AdapterDescription, WeightEncoding

FULL, DELTA = WeightEncoding.FULL_RAW, WeightEncoding.ULP_DELTA
MEMORY = Path(__file__).with_name("publish_memory.py")
# glibc gives a block of this size or above back to the system as soon as it is freed.
RETURNED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": str(256 * 1024)}


class Model(torch.nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(layers))


@dataclasses.dataclass
class Policy:
    model: Model
    sharded: None = None
    adapters: "Adapters | None" = None

    def twin(self):
        return self

    def step(self):
        """Moves one element in a hundred by about one unit in the last place of bfloat16."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.view(-1)[::100] *= 1.01


class Hub:
    """Keeps what it is given; refuses deltas or other ways when told to."""

    def __init__(self, directory):
        self.directory = directory
        self.versions, self.routes = {}, []
        self.wanted = ()
        self.refuses_deltas = self.refuses_routes = False

    def put_blob(self, blob, chunks):
        (self.directory / blob.digest).write_bytes(b"".join(chunks))

    def publish_version(self, manifest):
        if self.refuses_deltas and manifest.encoding is DELTA:
            raise RefusedError("worker w decodes no deltas", "INCOMPATIBLE")
        self.versions[manifest.version] = manifest
        return self.wanted

    def add_route(self, manifest):
        if self.refuses_routes:
            raise RefusedError("no such method", "INCOMPATIBLE")
        self.routes.append(manifest)

    @property
    def encodings(self):
        return [manifest.encoding for manifest in self.versions.values()]

    def digests(self, version):
        """Digest of each tensor of a version, decoded along its deltas."""
        manifest = self.versions[version]
        chain = [manifest]
        while chain[0].base_version:
            chain.insert(0, self.versions[chain[0].base_version])
        paths = [[self.directory / blob.digest for blob in item.blobs] for item in chain]
        held = HeldWeights.from_staged(stage_full(chain[0], paths[0]))
        for item, files in zip(chain[1:], paths[1:], strict=True):
            held.apply_delta(item, files)
        return {name: digest_of_bytes(raw_bytes(tensor)) for name, tensor in held.tensors()}


class Adapters:
    """Rank 1 on the first layer; stands in for peft's."""

    description = AdapterDescription(rank=1, alpha=1.0, target_modules=("0",), base_digest="")

    def __init__(self):
        self.down, self.up = torch.ones(1, 64), torch.zeros(64, 1)

    def base(self, state):
        return distinct_tensors(state)

    def tensors(self, _):
        return {down_name("layers.0"): self.down, up_name("layers.0"): self.up}


def publisher_to(hub, policy, directory, anchor_every=16):
    return Publisher(
        policy,
        hub,
        WeightsConfig(anchor_every=anchor_every),
        probes=(),
        latest_version=0,
        directory=directory / "outgoing",
        patience=Patience(StopSignal(threading.Event())),
        clock=WaitClock(),
    )


@pytest.fixture
def hub(tmp_path):
    directory = tmp_path / "hub"
    directory.mkdir()
    return Hub(directory)


@pytest.fixture
def policy():
    torch.manual_seed(3)
    return Policy(Model(3, 64))


@pytest.fixture
def make(hub, tmp_path):
    made = []

    def build(policy, anchor_every=16):
        publisher = publisher_to(hub, policy, tmp_path, anchor_every)
        made.append(publisher)
        return publisher

    yield build
    for publisher in made:
        publisher.close()


def digests_of(policy):
    return {
        name: digest_of_bytes(raw_bytes(tensor.detach().to(torch.bfloat16)))
        for name, tensor in policy.model.state_dict().items()
    }


def publish(publisher, policy, steps):
    expected = {}
    for step in range(steps):
        expected[publisher.publish_step(step)] = digests_of(policy)
        policy.step()  # training goes on while the version is coded and uploaded
        publisher.settle()
    return expected


def test_every_step_arrives_bit_for_bit_while_training_goes_on(hub, make, policy):
    expected = publish(make(policy), policy, 4)
    assert hub.encodings == [FULL, DELTA, DELTA, DELTA]
    assert {version: hub.digests(version) for version in expected} == expected


def test_a_full_copy_follows_in_the_background_and_deltas_go_on(hub, make, policy):
    publish(make(policy, anchor_every=2), policy, 5)
    assert hub.encodings == [FULL, DELTA, DELTA, DELTA, DELTA]
    assert [(way.version, way.encoding) for way in hub.routes] == [(3, FULL), (5, FULL)]
    assert [way.state_digest for way in hub.routes] == [hub.versions[v].state_digest for v in (3, 5)]


def test_a_merged_delta_is_made_from_where_the_hub_asks(hub, make, policy):
    hub.wanted = (1,)
    publish(make(policy), policy, 4)
    ways = [(way.version, way.base_version, way.encoding) for way in hub.routes]
    assert ways == [(3, 1, DELTA), (4, 1, DELTA)]  # from 1 to 2 there is the published delta


def test_a_hub_that_refuses_deltas_gets_the_same_weights_in_full(hub, make, policy):
    hub.refuses_deltas = True
    expected = publish(make(policy), policy, 3)
    assert hub.encodings == [FULL, FULL, FULL]
    assert {version: hub.digests(version) for version in expected} == expected


def test_an_older_hub_gets_full_copies_in_place_of_deltas(hub, make, policy):
    hub.refuses_routes = True
    publish(make(policy, anchor_every=2), policy, 7)
    assert hub.routes == []
    assert hub.encodings[:3] == [FULL, DELTA, DELTA]
    assert FULL in hub.encodings[4:]


def test_with_adapters_only_these_are_coded_and_a_full_copy_uploads_no_base_again(hub, make, policy):
    policy.adapters = Adapters()
    publisher = make(policy, anchor_every=2)
    for step in range(4):
        publisher.publish_step(step)
        policy.adapters.up[step] = 1.0  # the frozen model stays as it is
        publisher.settle()

    assert hub.encodings == [FULL, DELTA, DELTA, DELTA]
    coded = {entry.name for version in (2, 3, 4) for entry in hub.versions[version].tensors if entry.size}
    assert coded == {up_name("layers.0")}
    (anchor,) = hub.routes
    assert [blob.digest for blob in anchor.blobs][:1] == [hub.versions[1].blobs[0].digest]
    assert anchor.state_digest == hub.versions[3].state_digest
    assert {version.adapter for version in [*hub.versions.values(), anchor]} == {hub.versions[1].adapter}
    fourth = hub.digests(4)
    assert sum(map(is_adapter_name, fourth)) == 2
    assert digests_of(policy).items() <= fourth.items()


@pytest.mark.skipif(not can_measure(), reason="needs Linux to measure peak memory")
def test_publishing_a_step_takes_about_one_tensor_of_extra_memory(tmp_path):
    # In a process of its own: other tests leave freed memory and threads that would blur the figures.
    ended = subprocess.run(
        [sys.executable, str(MEMORY), str(tmp_path)],
        check=True, capture_output=True, text=True, env={**os.environ, **RETURNED_AT_ONCE},
    )  # fmt: skip
    growth = json.loads(ended.stdout)
    assert growth["copied"] > 0.9 * growth["served"]
    assert growth["published"] < 0.2 * growth["served"]
