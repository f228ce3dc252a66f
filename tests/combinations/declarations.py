"""Declarations drawn at random: any stages before any shape.

A ``Feed`` is written as the server's builder is, with the arguments' names.  It is data, of which
the pipeline of the server, the declaration of the reference and the program of a failure are made.
"""

from __future__ import annotations

import atexit
import gzip
import io
import json
import math
import os
import random
import tarfile
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

import headrace_server as hs
from tests.combinations import functions
from tests.range_server import RangeServer
from tests.reference import Call, Declared
from tests.unit import tfrecord_writer

_HERE = functions.__name__
_NAMES = [name for name in functions.examples(1)[0] if name != "z"]
_MIX = [0.5, 0.3, 0.2]
#: The state with which a trainer marks each of its saves.
MARK = "mark"

#: Stages of each kind, by a name that tells them apart.
STAGES: Mapping[str, Call] = {
    "map": ("map", {"fn": f"{_HERE}:heavier"}),
    "map seed": ("map", {"fn": f"{_HERE}:shaken", "seed": 5}),
    "map vectorized": ("map", {"fn": f"{_HERE}:doubled", "vectorized": True}),
    "map vectorized seed": (
        "map",
        {"fn": f"{_HERE}:shaken_together", "vectorized": True, "seed": 5},
    ),
    "flat_map": ("flat_map", {"fn": f"{_HERE}:pieces"}),
    "unbatch": ("unbatch", {}),
    "filter": ("filter", {"fn": f"{_HERE}:is_light"}),
    "select": ("select", {"names": _NAMES}),
    "with_origin": ("with_origin", {}),
    "rejection_sample": ("rejection_sample", {"accept_prob": "p", "seed": 3}),
    "rejection_sample function": ("rejection_sample", {"accept_prob": f"{_HERE}:likely"}),
    "rejection_sample many": ("rejection_sample", {"accept_prob": "p", "enqueue_many": True}),
    "stratified_sample": ("stratified_sample", {"labels": "y", "target_probs": _MIX, "seed": 2}),
    "stratified_sample known": (
        "stratified_sample",
        {"labels": f"{_HERE}:thirds", "target_probs": _MIX, "init_probs": [0.4, 0.3, 0.3]},
    ),
    "stratified_sample many": (
        "stratified_sample",
        {"labels": "y", "target_probs": _MIX, "enqueue_many": True},
    ),
    "resample_at_rate": ("resample_at_rate", {"rates": "w", "seed": 4}),
    "weighted_resample": ("weighted_resample", {"weights": "w", "overall_rate": 1.5}),
    "weighted_resample without warmup": (
        "weighted_resample",
        {"weights": "w", "overall_rate": 0.8, "warmup": None},
    ),
}
#: Stages that need examples with several rows.
OF_MANY = [
    name for name, (call, given) in STAGES.items() if call == "unbatch" or "enqueue_many" in given
]
#: Stages that may make several rows of one.
_REPEATING = ("flat_map", "resample_at_rate", "weighted_resample")

#: Sources of examples with one row each.
KINDS = (
    *("examples", "function", "indexed"),
    *("jsonl", "jsonl.gz", "parquet", "arrow", "tfrecord", "tar"),
)
#: Those that are in files.
IN_FILES = KINDS[3:]
#: Those that are read forward; the others are read by number.
FORWARD = ("function", "jsonl.gz", "tar")
#: Rows of a row group, or record batch.
_GROUP = 7
#: Bytes of three to eight examples, by kind, where blocks of them are shuffled.
_BLOCK_BYTES = {
    "examples": 500,
    "indexed": 5 << 14,
    "jsonl": 1000,
    "tfrecord": 1500,
    "tar": 50_000,
    "parquet": 1,
    "arrow": 1,
}


@dataclass(frozen=True)
class Feed:
    """A declaration: so many examples from a source, and the calls after it."""

    count: int
    kind: str = "examples"
    batched: bool = False  # whether each example has several rows
    first: int = 0
    far: bool = False  # whether its files are read from an HTTP server, some answers of which fail
    calls: tuple[Call, ...] = ()

    def __getattr__(self, name: str) -> Callable[..., Feed]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda **given: replace(self, calls=(*self.calls, (name, given)))

    def __repr__(self) -> str:
        far = ", far=True" if self.far else ""
        source = f"Feed({self.count}, {self.kind!r}, {self.batched}, {self.first}{far})"
        calls = [
            f".{name}({', '.join(f'{n}={_text(v)}' for n, v in given.items())})"
            for name, given in self.calls
        ]
        return "\n    ".join([source, *calls])

    @property
    def shape(self) -> dict[str, Any]:
        """The arguments of the shape; ``map_segments`` has those of the call after it."""
        return self.calls[-1][1]

    @property
    def segmented(self) -> bool:
        return "initial_states" in self.shape

    @property
    def lanes(self) -> bool:
        return self.shape.get("order") == "lanes"

    @property
    def states(self) -> str:
        """Where states are: "server", "trainer", or "" where there are none."""
        return (
            self.shape.get("state_placement", "server") if self.shape.get("initial_states") else ""
        )

    @property
    def small(self) -> bool:
        """Whether the last batches may have fewer rows."""
        name = "allow_small_batch" if self.segmented else "allow_smaller_final_batch"
        pads = self.calls[-1][0] == "batch_sequences_with_states"
        return bool(self.shape.get(name, self.segmented and pads))

    @property
    def borders(self) -> bool:
        """Whether batches end with their epoch."""
        return not all(given.get("across_batches", True) for _, given in self.calls)

    @property
    def _examples(self) -> list[functions.Example]:
        return functions.examples(self.count, self.batched, self.first)

    def declared(self) -> Declared:
        """Return the declaration as the reference takes it."""

        def told(value: Any) -> Any:
            if isinstance(value, dict) and isinstance(next(iter(value.values()), None), Feed):
                return {name: source.declared() for name, source in value.items()}
            return value._examples if isinstance(value, Feed) else value

        calls = [(name, {n: told(v) for n, v in given.items()}) for name, given in self.calls]
        block_bytes = dict(self.calls).get("shuffle", {}).get("block_bytes")
        if block_bytes is None:
            return Declared(self._examples, calls, self.kind in FORWARD)
        for (_, given), (_, own) in zip(calls, self.calls, strict=True):
            if "other" in given:  # concat
                given["blocks"] = [-1 - block for block in own["other"].blocks(block_bytes)]
        return Declared(self._examples, calls, blocks=self.blocks(block_bytes))

    def blocks(self, block_bytes: int) -> list[int]:
        """Return the block of each example."""
        if self.kind == "indexed":
            return [i // (block_bytes >> 14) for i in range(self.count)]
        if self.kind == "examples":
            size = sum(map(_bytes_of, self._examples))
            blocks = _blocks_in(size, block_bytes)
            first = [block * self.count // blocks for block in range(blocks)]
            return [bisect_right(first, i) - 1 for i in range(self.count)]
        found: list[int] = []
        for file in map(Path, _files(self.kind, self.count, self.first, far=False)):
            starts = _starts(self.kind, file)
            blocks = _blocks_in(file.stat().st_size, block_bytes)
            own = [start * blocks // file.stat().st_size for start in starts]
            if self.kind in ("parquet", "arrow"):
                own = [start // _GROUP for start in starts]
            found += [1000 * len(found) + block for block in own]
        return found

    def pipeline(self) -> hs.Pipeline:
        """Return the declaration as the server takes it."""
        calls = list(self.calls)
        if calls and calls[0][0] == "mix":
            _, given = calls.pop(0)
            sources = {name: source.pipeline() for name, source in given["sources"].items()}
            pipeline = hs.mix(**{**given, "sources": sources})
        elif self.kind == "function":
            pipeline = hs.from_function(f"{_HERE}:stream", self.count, self.batched, self.first)
        elif self.kind == "indexed":
            pipeline = hs.from_indexed(f"{_HERE}:Examples", self.count, self.first)
        elif self.kind == "examples":
            pipeline = hs.from_examples(self._examples)
        else:
            read: Any = getattr(hs, f"read_{self.kind.partition('.')[0]}")
            features = functions.IN_TAR if self.kind == "tar" else functions.FEATURES
            pipeline = read(_files(self.kind, self.count, self.first, self.far), features)
        for name, given in calls:
            options = {n: v.pipeline() if isinstance(v, Feed) else v for n, v in given.items()}
            after = options.pop("map_segments", None)
            pipeline = getattr(pipeline, name)(**options)
            if after:
                schema = functions.SCHEMAS.get(after["fn"])
                pipeline = pipeline.map_segments(**after, schema=schema)
        return pipeline


def _blocks_in(size: int, block_bytes: int) -> int:
    return max(1, math.floor(size / block_bytes + 0.5))


def _bytes_of(example: functions.Example) -> int:
    values = (v.tolist() if np.ndim(v) and v.dtype == object else [v] for v in example.values())
    return sum(
        len(one) if isinstance(one, bytes) else one.nbytes for several in values for one in several
    )


def _starts(kind: str, file: Path) -> list[int]:
    """Return the byte in a file with which each of its examples begins, or its row."""
    if kind == "parquet":
        return [*range(pyarrow.parquet.read_metadata(file).num_rows)]
    if kind == "arrow":
        with pa.ipc.open_file(file) as reader:
            return [*range(reader.read_all().num_rows)]
    data = file.read_bytes()
    if kind == "jsonl":
        return [0, *(i + 1 for i in range(len(data) - 1) if data[i : i + 1] == b"\n")]
    if kind == "tar":
        with tarfile.open(file) as archive:
            return [one.offset for one in archive if one.name.endswith(".key")]
    starts, at = [], 0
    while at < len(data):
        starts.append(at)
        at += 16 + int.from_bytes(data[at : at + 8], "little")
    return starts


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {_text(one)}" for name, one in value.items()) + "}"
    return f"np.{type(value).__name__}({value})" if isinstance(value, np.generic) else repr(value)


#: Name the directory of files and its URL, to processes that this one starts.
_FILES, _URL = "COMBINATIONS_FILES", "COMBINATIONS_URL"


@cache
def _directory() -> Path:
    if _FILES not in os.environ:
        made = tempfile.TemporaryDirectory(prefix="combinations-")
        atexit.register(made.cleanup)
        os.environ[_FILES] = made.name
    return Path(os.environ[_FILES])


@cache
def _url() -> str:
    """Return the URL of the directory, whose server fails at times, as often as readers retry."""
    if _URL not in os.environ:
        server = RangeServer(_directory(), faults=0.03).__enter__()
        atexit.register(server.__exit__, None, None, None)
        os.environ[_URL] = server.url
    return os.environ[_URL]


@cache
def _files(kind: str, count: int, first: int, far: bool) -> list[str]:
    """Return two files of examples, or one that is read forward; they are written once."""
    examples = functions.examples(count, first=first)
    paths: list[str] = []
    cut = 0 if kind in FORWARD else count // 3
    for part, some in enumerate((examples[:cut], examples[cut:]) if cut else (examples,)):
        path = _directory() / f"{count}-{first}-{part}.{kind}"
        paths.append(f"{_url()}/{path.name}" if far else str(path))
        if path.exists():
            continue
        rows = [{n: np.asarray(v).tolist() for n, v in one.items()} for one in some]
        if kind in ("jsonl", "jsonl.gz"):
            lines = [json.dumps({**row, "key": row["key"].decode()}) + "\n" for row in rows]
            text = "".join(lines).encode()
            path.write_bytes(gzip.compress(text) if kind == "jsonl.gz" else text)
        elif kind == "tfrecord":
            path.write_bytes(b"".join(map(_record, rows)))
        elif kind == "tar":
            path.write_bytes(_archive(some))
        else:
            table = pa.Table.from_pylist(rows)
            if kind == "parquet":
                pyarrow.parquet.write_table(table, path, row_group_size=_GROUP)
            else:
                with pa.ipc.new_file(path, table.schema) as out:
                    out.write_table(table, max_chunksize=_GROUP)
    return paths


def _record(row: dict[str, Any]) -> bytes:
    """Return a row as a record of a TFRecord file."""

    def values(value: Any) -> bytes:
        several = value if isinstance(value, list) else [value]
        kinds = {bytes: "bytes", float: "float"}
        return tfrecord_writer.feature(kinds.get(type(several[0]), "int"), several)

    entries = {name: values(value) for name, value in row.items()}
    return tfrecord_writer.frame(tfrecord_writer.example(entries))


def _archive(examples: list[functions.Example]) -> bytes:
    """Return examples as a tar file: a member for each column."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for number, example in enumerate(examples):
            for name in functions.IN_TAR:
                column, _, ending = name.partition(".")
                value, data = example[column], io.BytesIO()
                if ending == "npy":
                    np.save(data, value)
                else:
                    data.write(value if column == "key" else b"%d" % value)
                member = tarfile.TarInfo(f"{number}.{name}")
                member.size = data.tell()
                data.seek(0)
                archive.addfile(member, data)
    return content.getvalue()


# Shapes


def _padding(chance: random.Random) -> dict[str, Any]:
    return {
        "allow_smaller_final_batch": chance.random() < 0.7,
        **chance.choice(
            [
                {"dynamic_pad": True},
                {"dynamic_pad": True, "pad_to": {"x": 7}},
                {"dynamic_pad": True, "pad_to_multiple": 4},
                {"dynamic_pad": True, "padding_values": {"x": -1.5}, "mask": True},
                {"dynamic_pad": True, "pad_to": {"x": 7}, "mask": True},
                {"ragged": True},
            ]
        ),
    }


def _balance(chance: random.Random) -> dict[str, Any]:
    if chance.random() < 0.6:
        return {}
    return {"balance": chance.choice(("x", "t")), "balance_batches": chance.choice((2, 3, 4))}


def _in_blocks(chance: random.Random) -> dict[str, Any]:
    if chance.random() < 0.6:
        return {}
    return {"shuffle_batches": chance.choice((2, 3, 7)), "shuffle_seed": chance.randrange(9)}


def _batch(chance: random.Random) -> Call:
    sizes = {"batch_size": chance.choice((1, 3, 4))}
    return "batch", {**sizes, **_padding(chance), **_balance(chance)}


def _bucket(chance: random.Random) -> Call:
    given = {
        "which_bucket": chance.choice(("y", f"{_HERE}:thirds")),
        "batch_size": chance.choice(([2, 3, 4], 3)),
        "num_buckets": 3,
        **_padding(chance),
        **_balance(chance),
    }
    if chance.random() < 0.5:
        given["keep_input"] = "c"
    given |= _in_blocks(chance)
    if chance.random() < 0.5:
        given["input_length"] = "x"
    return "bucket", given


def _by_length(chance: random.Random) -> Call:
    given = {
        "input_length": chance.choice(("x", "t")),
        "batch_size": chance.choice(([2, 3, 4], 3)),
        "bucket_boundaries": [3, 5],
        "allow_smaller_final_batch": chance.random() < 0.7,
    }
    given |= chance.choice(
        [
            {"dynamic_pad": True},
            {
                "dynamic_pad": True,
                "max_padded_elements": chance.choice((14, 20)),
                "pad_to_multiple": chance.choice((1, 4)),
                "input_length": "x",
            },
            {"dynamic_pad": True, "pad_to_boundary": True, "input_length": "x", "mask": True},
            {"dynamic_pad": True, "pad_to_multiple": 4, "input_length": "x"},
            {"ragged": True, "max_padded_elements": 14, "input_length": "x"},
        ]
    )
    given |= _in_blocks(chance)
    if "max_padded_elements" not in given:
        given |= _balance(chance)
    return "bucket_by_sequence_length", given


def _pack(chance: random.Random) -> Call:
    strategy = chance.choice(("best_fit", "first_fit", "concat"))
    given = {
        "length": chance.choice((5, 9)),
        "batch_size": chance.choice((1, 2, 3)),
        "columns": ["x"],
        "strategy": strategy,
        "max_open": chance.choice((1, 3, 64)),
        "allow_smaller_final_batch": chance.random() < 0.7,
    }
    if strategy != "concat":
        given["too_long"] = chance.choice(("cut", "drop"))
    given |= _balance(chance)
    if chance.random() < 0.5:
        given |= {"padding_values": {"x": -1.5, "n": -7, "key": b"none"}, "mask": True}
    return "pack", given


def _segments(chance: random.Random, order: str = "arrival", states: str = "server") -> Call:
    unroll = chance.choice((1, 2, 2, 3))
    given: dict[str, Any] = {
        "input_key": "key",
        "input_sequences": ["x"] if chance.random() < 0.7 else {"x": "x", "again": "x"},
        "input_context": chance.choice((["n", "y"], [], {"number": "n"}, ["h", "key", "c"])),
        "initial_states": {},
        "num_unroll": unroll,
        "batch_size": chance.choice((1, 2, 3, 4)),
        "make_keys_unique": True,
    }
    if chance.random() < 0.5:
        given["input_key"] = chance.choice((None, None, "n", "y"))
    if given["input_key"] is None:
        given["make_keys_unique"] = chance.random() < 0.5
    if states:
        some = chance.sample([("s", "h"), ("r", np.float32(1))], chance.randint(0, 2))
        given["initial_states"] = {**dict(some), MARK: np.int64(0)}
    if order == "lanes":
        given["order"] = order
        if chance.random() < 0.3:
            lanes = f"{_HERE}:lane_1", "c", "y", "y"  # by the number of lanes, for one trainer
            given["lane"] = lanes[given["batch_size"] - 1]
    if states == "trainer":
        given["state_placement"] = states
    if chance.random() < 0.3:
        given["allow_small_batch"] = False
    if chance.random() < 0.3:
        given["input_length"] = "t"
    if chance.random() < 0.3:
        given |= {
            "stride": chance.randint(1, unroll),
            "left": chance.randint(0, 2),
            "right": chance.randint(0, 2),
        }
    if chance.random() < 0.2:
        given |= {"phase": "random", "phase_seed": chance.randrange(9)}
    if chance.random() < 0.3:
        given |= {"padding_values": {next(iter(given["input_sequences"])): -1.5}, "mask": True}
    if chance.random() < 0.3:
        given["map_segments"] = chance.choice(
            [
                {"fn": f"{_HERE}:summed"},
                {"fn": f"{_HERE}:shaken_steps", "seed": 6},
                {"fn": f"{_HERE}:found"},
                {"fn": f"{_HERE}:found", "pad_to": {"pairs": 3, "names": 5}},
                {
                    "fn": f"{_HERE}:found",
                    "pad_to_multiple": 3,
                    "padding_values": {"pairs": -1.5},
                    "mask": True,
                },
            ]
        )
    return "batch_sequences_with_states", given


def _packed(chance: random.Random) -> Call:
    call, given = _segments(chance, "lanes", chance.choice(("server", "server", "trainer", "")))
    for name in (
        *("input_length", "stride", "left", "right", "phase", "phase_seed"),
        *("map_segments", "lane"),
    ):
        given.pop(name, None)
    if "s" in given["initial_states"]:
        given["initial_states"]["s"] = [np.float32(3), np.float32(-1)]
    return call, {**given, "num_unroll": chance.choice((1, 2, 3, 5, 8, 13)), "pack": True}


def _saver(chance: random.Random) -> Call:
    _, given = _segments(chance)
    given |= {
        "num_unroll": chance.choice((1, 2)),
        "input_length": "t",
        "allow_small_batch": chance.random() < 0.7,
    }
    if given["input_key"] is not None:
        given["input_key"] = "key"  # which is of one example
    for name in (
        *("make_keys_unique", "phase", "phase_seed", "stride", "left", "right"),
        *("padding_values", "mask"),
    ):
        given.pop(name, None)
    return "sequence_queueing_state_saver", given


SHAPES: Mapping[str, Callable[[random.Random], Call]] = {
    "batch": _batch,
    "bucket": _bucket,
    "by length": _by_length,
    "rejection_sample": lambda chance: (
        "rejection_sample",
        {"accept_prob": "p", "batch_size": 4, **_padding(chance)},
    ),
    "stratified_sample": lambda chance: (
        "stratified_sample",
        {"labels": "y", "target_probs": _MIX, "batch_size": 3, **_padding(chance)},
    ),
    "unknown_dist": lambda chance: (
        "stratified_sample_unknown_dist",
        {
            "labels": "y",
            "probs": chance.choice((_MIX, [0.9, 0.1, 0.0])),
            "batch_size": 4,
            "queue_capacity": chance.choice((1, 3, 16)),
            "max_examples_in_flight": chance.choice((4, 9, 8192)),
            "dynamic_pad": True,
        },
    ),
    "pack": _pack,
    "segments": _segments,
    "segments lanes": lambda chance: _segments(chance, "lanes"),
    "segments trainer": lambda chance: _segments(chance, "lanes", "trainer"),
    "segments stateless": lambda chance: _segments(chance, "lanes", ""),
    "segments packed": _packed,
    "state saver": _saver,
}


def drawn(chance: random.Random, stage: str, shape: str) -> Feed:
    """Draw a declaration with this stage before this shape."""
    stages = [stage]
    others = [
        name for name in STAGES if name not in OF_MANY and STAGES[name][0] != STAGES[stage][0]
    ]
    if chance.random() < 0.4:
        # rows of a batch come apart first
        stages.insert(1 if stage in OF_MANY else chance.choice((0, 1)), chance.choice(others))
    if chance.random() < 0.4:
        stages.insert(len(stages) if stage in OF_MANY else 0, "with_origin")
    calls = [STAGES[name] for name in stages]
    batched = any(name in OF_MANY for name in stages)
    mixed = chance.random() < 0.3
    if shape == "state saver" and (mixed or any(name in _REPEATING for name, _ in calls)):
        calls.append(("map", {"fn": f"{_HERE}:other_key", "seed": 1}))
    feed = (
        _mix(chance, batched, shape)
        if mixed
        else _source(chance, batched, chance.randrange(24, 40))
    )
    if chance.random() < 0.3:
        feed = feed.repeat(n=2, across_batches=chance.random() < 0.4)
    return replace(feed, calls=(*feed.calls, *calls, SHAPES[shape](chance)))


def _source(chance: random.Random, batched: bool, count: int, first: int = 0) -> Feed:
    """Draw a source and its order."""
    kind = chance.choice(KINDS[:2] if batched else KINDS)
    feed = Feed(count, kind, batched, first, kind in IN_FILES and chance.random() < 0.3)
    if kind == "tar":
        feed = feed.map(fn=f"{_HERE}:without_endings")
    if chance.random() < 0.2:
        feed = feed.map(fn=f"{_HERE}:heavier")
    if chance.random() < 0.3:
        feed = feed.skip(n=3).take(n=20)
    if kind not in FORWARD and chance.random() < 0.3 and "map" not in dict(feed.calls):
        feed = feed.concat(other=Feed(7, kind, batched, first + 100, feed.far))
    if kind in _BLOCK_BYTES and chance.random() < 0.35:
        return feed.shuffle(
            seed=chance.randrange(99),
            blocks=chance.choice((1, 2, 3, 16)),
            block_bytes=_BLOCK_BYTES[kind] * chance.choice((1, 2)),
            reshuffle=chance.random() < 0.8,
        )
    if chance.random() < 0.7:
        window = chance.choice((5, 9)) if feed.kind in FORWARD or chance.random() < 0.3 else None
        feed = feed.shuffle(
            seed=chance.randrange(99), window=window, reshuffle=chance.random() < 0.8
        )
    return feed


def _mix(chance: random.Random, batched: bool, shape: str) -> Feed:
    """Draw sources and how they are mixed."""
    apart = shape in ("batch", "bucket", "by length", "rejection_sample", "stratified_sample")
    sources = {}
    for k, name in enumerate(("web", "code", "books")[: chance.choice((1, 2, 2, 3))]):
        sources[name] = _source(chance, batched, chance.randrange(10, 25), 1000 * k)
        if chance.random() < 0.4:
            sources[name] = sources[name].repeat(n=2)
    some = [{name: chance.choice((0.5, 1.0, 3.0)) for name in sources} for _ in range(2)]
    if len(sources) > 1 and chance.random() < 0.5:
        some[0]["code"] = 0.0
    weights = [(0, some[0]), (chance.randrange(1, 30), some[1])]
    return Feed(0).mix(
        sources=sources,
        weights=chance.choice((weights, weights, some[1])),
        seed=chance.randrange(99),
        stop=chance.choice(("all", "all", "first")),
        by="batch" if apart and chance.random() < 0.4 else "example",
    )
