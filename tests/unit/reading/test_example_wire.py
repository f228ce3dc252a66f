"""Messages to values: walked records and those read by their form agree, and follow the rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.columns import row_of
from headrace_server.reading.sources.tfrecord.parser import ExampleParser
from tests.unit.readers import plain
from tests.unit.tfrecord_writer import (
    example,
    feature,
    features,
    field,
    sequence_example,
    varint,
)

LABEL = Feature("scalar", "int64")


def parse(payloads: list[bytes], wanted: dict[str, Feature], parser=None):
    """Columns and faults of records that lie apart in one buffer."""
    parser = parser or ExampleParser(wanted)
    gap = b"\xff" * 13
    sizes = np.array([len(p) for p in payloads], np.int64)
    starts = np.cumsum(sizes + len(gap)) - sizes
    data = np.frombuffer(b"".join(gap + p for p in payloads) + gap, np.uint8)
    return parser.parse(data, starts, sizes)


def row_at(columns, i: int):
    return {name: plain(row_of(column, i)) for name, column in columns.items()}


def values(payloads: list[bytes], wanted: dict[str, Feature]):
    columns, faults = parse(payloads, wanted)
    assert not faults
    return [row_at(columns, i) for i in range(len(payloads))]


INTS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3)
FLOATS = st.lists(st.floats(width=32, allow_nan=False), max_size=5)
TEXTS = st.lists(st.binary(max_size=5), min_size=2, max_size=2)
SMALL = st.one_of(st.integers(0, 300), st.integers(-(2**63), 2**63 - 1))


@st.composite
def messages(draw):
    """A record with all kinds of features, in any order, written in any legal way, and its rows."""
    row = {
        "n": draw(SMALL),
        "abc": draw(INTS),
        "xs": draw(FLOATS),
        "x": draw(st.floats(width=32, allow_nan=False)),
        "pair": draw(TEXTS),
        "id": draw(st.binary(max_size=12)),
        "tokens": draw(st.lists(SMALL, max_size=4)),
    }
    packed = draw(st.booleans())
    entries = [
        ("n", feature("int", [row["n"]], packed)),
        ("abc", feature("int", row["abc"], draw(st.booleans()))),
        ("xs", feature("float", row["xs"], draw(st.booleans()))),
        ("x", feature("float", [row["x"]], packed)),
        ("pair", feature("bytes", row["pair"])),
        ("id", feature("bytes", [row["id"]])),
        ("tokens", feature("int", row["tokens"], draw(st.booleans()))),
    ]
    if draw(st.booleans()):
        entries.append(("other", feature("bytes", [draw(st.binary(max_size=9))])))
    payload = example(draw(st.permutations(entries)))
    if draw(st.booleans()):
        payload += field(9, b"later") + varint(10 << 3) + b"\x05"  # fields of a later version
    return payload, row


WANTED = {
    "n": LABEL,
    "abc": Feature("fixed", "int64", (3,)),
    "xs": Feature("sequence", "float32"),
    "x": Feature("scalar", "float32"),
    "pair": Feature("fixed", "bytes", (2,)),
    "id": Feature("scalar", "bytes"),
    "tokens": Feature("sequence", "int64"),
}


@given(st.lists(messages(), min_size=1, max_size=4), st.integers(1, 30))
def test_any_legal_message_gives_its_values_alone_and_in_groups(records, times):
    repeated = records * times
    assert values([payload for payload, _ in repeated], WANTED) == [row for _, row in repeated]


@pytest.mark.parametrize("alike", [True, False])
def test_numbers_are_given_in_the_declared_type(alike):
    pad = [b"" if alike else b"p" * k for k in range(40)]
    payloads = [
        example(
            {
                "f": feature("float", [0.5, k]),
                "i": feature("int", [k, 1]),
                "b": feature("int", [k % 2]),
                "s": feature("float", [k] * (3 if alike else k % 4)),
                "p": feature("bytes", [pad[k]]),
            }
        )
        for k in range(40)
    ]
    wanted = {
        "f": Feature("fixed", "float16", (2,)),
        "i": Feature("fixed", "uint8", (2,)),
        "b": Feature("scalar", "bool"),
        "s": Feature("sequence", "float64"),
    }
    columns, faults = parse(payloads, wanted)
    assert not faults
    got = {name: column.dtype.name for name, column in columns.items()}
    assert got == {"f": "float16", "i": "uint8", "b": "bool", "s": "float64"}
    assert columns["i"][:, 0].tolist() == list(range(40))
    assert columns["b"].tolist() == [bool(k % 2) for k in range(40)]
    assert columns["f"][7].tolist() == [0.5, 7]
    assert columns["s"].row(7).tolist() == [7.0] * 3


def test_a_missing_feature_takes_its_default_row_by_row():
    full = {
        "n": feature("int", [5]),
        "x": feature("float", [1, 2]),
        "id": feature("bytes", [b"given"]),
        "s": feature("float", [9]),
        "t": feature("bytes", [b"a", b"b"]),
    }
    wanted = {
        "n": Feature("scalar", "uint64", (), 2**64 - 1, True),
        "x": Feature("fixed", "float32", (2,), [3, 4], True),
        "id": Feature("scalar", "bytes", (), "none", True),
        "s": Feature("sequence", "float32", (), [], True),
        "t": Feature("sequence", "bytes", (), [b"d"], True),
    }
    given_row = {"n": 5, "x": [1, 2], "id": b"given", "s": [9], "t": [b"a", b"b"]}
    bare_row = {"n": 2**64 - 1, "x": [3, 4], "id": b"none", "s": [], "t": [b"d"]}
    for times in (1, 40):
        payloads = [example(full), example({}), example({"n": b"", "other": full["n"]})] * times
        assert values(payloads, wanted) == [given_row, bare_row, bare_row] * times


@given(st.integers(0, 39))
def test_one_bad_record_among_many_is_the_only_one(at):
    payloads = [example({"x": feature("int", [k])}) for k in range(40)]
    for broken in (feature("float", [1]), feature("int", [200]), feature("int", [1, 2]), b""):
        mixed = [*payloads[:at], example({"x": broken}), *payloads[at + 1 :]]
        columns, faults = parse(mixed, {"x": Feature("scalar", "int8")})
        assert list(faults) == [at]
        others = np.delete(columns["x"], at)
        assert others.tolist() == [k for k in range(40) if k != at]


def test_later_entries_win_and_pieces_are_joined():
    twice = [("x", feature("int", [1])), ("x", feature("int", [2]))]
    split = [("x", feature("int", [1]) + feature("int", [2], False))]
    other = [("x", feature("float", [1]) + feature("int", [3]))]
    pieces = field(1, features(twice[:1])) + field(1, features(twice[1:]))
    wanted = {"x": Feature("sequence", "int64")}
    assert values([example(twice)] * 20, wanted)[0] == {"x": [2]}
    assert values([example(split)] * 20, wanted)[0] == {"x": [1, 2]}
    assert values([example(other)] * 20, wanted)[0] == {"x": [3]}
    assert values([pieces] * 20, wanted)[0] == {"x": [2]}


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_sequence_examples_give_steps_and_context(steps, packed, mixed):
    wanted = {
        "frames": Feature("sequence", "float32", (3,)),
        "tokens": Feature("sequence", "int64"),
        "words": Feature("sequence", "bytes"),
        "kept": Feature("sequence", "float32"),
        "n": LABEL,
    }
    payloads, rows = [], []
    for t in steps * 5:
        frames = [[i, i + 0.5, -i] for i in range(t)]
        tokens = [300 * i for i in range(t)]
        words = [b"w" * i for i in range(t)]
        way = [packed] * t if not mixed else [i % 3 == 0 for i in range(t)]
        lists = {
            "frames": [feature("float", f, p) for f, p in zip(frames, way, strict=True)],
            "tokens": [feature("int", [v], p) for v, p in zip(tokens, way, strict=True)],
            "words": [feature("bytes", [w]) for w in words],
        }
        context = {"n": feature("int", [t]), "kept": feature("float", [t, t])}
        payloads.append(sequence_example(context, lists))
        rows.append({"frames": frames, "tokens": tokens, "words": words, "kept": [t, t], "n": t})
    assert values(payloads, wanted) == rows


@given(st.binary(max_size=60))
def test_any_bytes_are_values_or_a_fault_and_never_another_error(raw):
    wanted = {"": Feature("sequence", "int64", (), [], True)}
    columns, faults = parse([raw] * 20, wanted)
    assert len(faults) in (0, 20)
    assert len(columns[""]) == 20


@pytest.mark.parametrize("lengths", ["same", "different", "steps"])
def test_a_changed_byte_is_read_alike_alone_and_among_others(lengths):
    """A form must never take a record for what the walker does not see in it."""
    wanted = {
        "n": LABEL,
        "s": Feature("sequence", "float32", (2,)),
        "t": Feature("sequence", "int64"),
        "id": Feature("scalar", "bytes", (), b"-", True),
    }

    def record(k: int) -> bytes:
        entries = {
            "n": feature("int", [200 + k]),
            "s": feature("float", [0.5] * 4),
            "t": feature("int", [3, 300 + k, 70_000]),
            "id": feature("bytes", [b"x" * (k if lengths == "different" else 9)]),
            "other": feature("int", [1]),
        }
        if lengths == "steps":
            del entries["s"]
            steps = [feature("float", [k, 0.5])] * (k % 4)
            return sequence_example(entries, {"s": steps})
        return example(entries)

    sound = [record(k) for k in range(40)]
    parser = ExampleParser(wanted)
    parse(sound, wanted, parser=parser)
    walker = ExampleParser(wanted)
    seen = set()
    for at in range(len(sound[7])):
        for change in (0x01, 0x08, 0x80, 0xFF):
            broken = bytearray(sound[7])
            broken[at] ^= change
            alone, alone_faults = parse([bytes(broken)], wanted, parser=walker)
            among, faults = parse([*sound, bytes(broken)], wanted, parser=parser)
            assert list(faults.items()) == [(40, fault) for fault in alone_faults.values()]
            seen.add(bool(faults))
            if not faults:
                np.testing.assert_equal(row_at(among, 40), row_at(alone, 0))
    assert seen == {True, False}


def test_a_length_of_many_bytes_is_never_a_place_outside_of_the_buffer():
    def record(length: bytes) -> bytes:
        numbers = field(3, b"\x0a" + length + b"\x07")
        return example([("x", numbers), ("y", feature("int", [1]))])

    sound = record(b"\x81" + b"\x80" * 8 + b"\x00")
    huge = record(b"\x80" * 8 + b"\x80\x01")
    columns, faults = parse([sound] * 20 + [huge], {"x": LABEL, "y": LABEL})
    assert columns["x"][:20].tolist() == [7] * 20
    assert [(row, reason) for row, (reason, _) in faults.items()] == [(20, "corrupt_record")]


def test_records_of_more_forms_than_are_remembered_give_their_values():
    wanted = {"x": LABEL}
    parser = ExampleParser(wanted)
    for first in (0, 40, 0):
        kinds = [f"other{k}" for k in range(first, first + 40) for _ in range(10)]
        payloads = [
            example({kind: feature("int", [1]), "x": feature("int", [at])})
            for at, kind in enumerate(kinds)
        ]
        columns, faults = parse(payloads, wanted, parser)
        assert not faults and columns["x"].tolist() == list(range(400))
