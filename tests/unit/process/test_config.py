"""The configuration of a server reaches its processes unchanged."""

from __future__ import annotations

import dataclasses

import msgpack

import headrace_server as hs
from headrace_server.files.manifest import DataFile
from headrace_server.process.config import FeedConfig, RunConfig

PIPELINE = (
    hs.read_tfrecord("a-*.tfrecord", {"x": hs.sequence("float32", (3,)), "y": hs.scalar("bytes")})
    .options(on_bad_example="skip", max_bad_examples=9)
    .shuffle(seed=-4, window=100)
    .repeat()
    .batch(7, dynamic_pad=True)
)
FEED = FeedConfig(
    "speech", PIPELINE.declaration(), (DataFile("/a-1.tfrecord", 10, "1"),), partitions=12
)
RUN = RunConfig(
    feeds=(FEED, dataclasses.replace(FEED, name="other")),
    directory="/dev/shm/there",
    binds=("tcp://127.0.0.1:*", "ipc:///tmp/x"),
    worker_ports=(7000, 7004),
    workers=5,
    lease_ttl_s=0.25,
    max_credits=3,
    max_trainers=7,
    max_state_bytes=4096,
    max_messages_per_s=1000,
    slab_bytes=2**40,
    remote_cache="/var/copies",
    remote_cache_bytes=2**41,
    segment_bytes=4096,
    max_ahead=2,
    max_ahead_bytes=2**33,
    index_directory="/state/index",
    state_directory="/state",
    durability="process",
    term=2**30,
    keys="/keys",
    program=b"program",
    log_level=30,
    starts=(5, 6),
    start=2,
    python_path=("/a", "/b"),
)


def test_it_travels_as_plain_data_and_comes_out_equal():
    wire = msgpack.packb(RUN.to_plain(), use_bin_type=True)
    assert RunConfig.from_plain(msgpack.unpackb(wire, strict_map_key=False)) == RUN


def test_every_field_travels():
    default = RunConfig((FEED,), "d", ("b",))
    same = {f.name for f in dataclasses.fields(RUN) if f.name != "feeds"} & {
        name for name, value in default.to_plain().items() if value == RUN.to_plain()[name]
    }
    assert same == set()  # so that the test above would see one that is left out


def test_a_share_of_the_partitions_is_divided_among_the_workers_of_its_server():
    part = dataclasses.replace(FEED, share=(1, 3))
    run = dataclasses.replace(RUN, feeds=(part,), workers=2)
    wire = msgpack.packb(run.to_plain(), use_bin_type=True)
    assert RunConfig.from_plain(msgpack.unpackb(wire, strict_map_key=False)) == run
    assert run.share == (1, 3) and list(part.owned) == [1, 4, 7, 10]
    assert [list(run.partitions_of(part, worker)) for worker in range(2)] == [[1, 7], [4, 10]]
    assert run.owners_of(part) == 2
    assert run.owners_of(dataclasses.replace(part, partitions=5)) == 2
    assert run.owners_of(dataclasses.replace(part, partitions=4)) == 1
