"""`hetero-rl weights log`."""

import json

import pytest

from hetero_rl.hub.stores.sqlite_store import SqliteStore
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.weights.digests import state_digest
from hetero_rl.wire.messages import BlobReference, DataType, TensorEntry, WeightEncoding, WeightManifest


def manifest(version, size):
    fields = {"digest": "a" * 64, "blob_index": 0, "offset": 0, "size": size}
    delta = version > 1
    entry = TensorEntry(
        name="w",
        data_type=DataType.BFLOAT16,
        shape=(1000,),
        base_digest="b" * 64 if delta else "",
        changed_elements=20 if delta else None,
        **fields,
    )
    return WeightManifest(
        version=version,
        step=version - 1,
        encoding=WeightEncoding.ULP_DELTA if delta else WeightEncoding.FULL_RAW,
        base_version=version - 1 if delta else 0,
        tensors=(entry,),
        blobs=(BlobReference("c" * 64, size),),
        state_digest=state_digest((entry,)),
    )


@pytest.fixture
def run(tmp_path):
    """A run with an empty journal; returns its directory and what publishes into it."""
    found = RunDirectory(tmp_path)
    found.config.write_text("{}")
    found.journal.parent.mkdir(parents=True)
    store = SqliteStore(found.journal)

    def publish(*manifests):
        store.begin()
        for item in manifests:
            store.add_version(item)
        store.commit()

    yield found.root, publish
    store.close()


def test_a_run_without_versions_says_so(cli, run):
    result = cli("weights", "log", run[0])
    assert result.stdout == "no weight version was published yet\n"


def test_every_version_has_a_line(cli, run):
    root, publish = run
    publish(manifest(1, 2000), manifest(2, 25))
    lines = cli("weights", "log", root).stdout.splitlines()
    assert lines[1].split() == ["1", "0", "FULL_RAW", "-", "-", "2,000", "-", "100.00", "%"]
    # 20 of 1000 elements changed in 25 bytes: 200 bits.
    assert lines[2].split() == ["2", "1", "ULP_DELTA", "1", "2.00", "%", "25", "10.00", "1.25", "%"]
    assert lines[-1] == "2 versions, 2,025 bytes for each worker; full copies: 4,000 (50.62 %)"


def test_json_has_the_same_numbers(cli, run):
    root, publish = run
    publish(manifest(1, 2000), manifest(2, 25))
    _, delta = json.loads(cli("weights", "log", root, "--json").stdout)
    assert (delta["density"], delta["bits_per_change"], delta["share_of_full"]) == (0.02, 10.0, 0.0125)
    assert (delta["version"], delta["base_version"], delta["abandoned"]) == (2, 1, False)
