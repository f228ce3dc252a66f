"""Row stages do to whole chunks what plain Python would do to each row."""

import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.columns import Ragged, Strings
from headrace_server.reading.stages import RowStages
from tests.unit.readers import chunk_of, examples, stages_of

FIELDS = {"x": Field("int64"), "v": Field("float32", (None,)), "t": Field("bytes")}


def numbered(count):
    return chunk_of([{"x": i, "v": [0.5] * i, "t": b"t%d" % i} for i in range(count)], FIELDS)


def stages(declare):
    return stages_of(declare, FIELDS)


def write_into_v(example):
    example["v"][:] = 7
    return example


def write_into_x(columns):
    columns["x"][:] = 7
    return columns


def write_into_ragged(columns):
    columns["v"].raw[:] = 7
    return columns


@pytest.mark.parametrize(
    ("fn", "vectorized"), [(write_into_v, False), (write_into_x, True), (write_into_ragged, True)]
)
def test_a_function_gets_read_only_arrays(fn, vectorized):
    chunk = numbered(3)
    with pytest.raises(DataError, match=r"read-only.*copy an array before"):
        stages(lambda p: p.map(fn, vectorized=vectorized)).apply(chunk, BadRecords())
    assert examples(chunk) == examples(numbered(3))


# What a map gives: the schema


def ramp(e):
    return {"n": e["x"], "r": np.zeros((int(e["x"]), 2)), "w": [e["t"]] * 2, "v": e["v"]}


def ramps(c):
    return {
        "n": c["x"],
        "r": [np.zeros((int(x), 2)) for x in c["x"]],
        "w": [[t, t] for t in c["t"]],
        "v": c["v"],
    }


@pytest.mark.parametrize(("fn", "vectorized"), [(ramp, False), (ramps, True)])
def test_a_schema_is_learnt_from_the_first_rows(fn, vectorized):
    run = stages(lambda p: p.map(fn, vectorized=vectorized))
    assert run.fields is None
    out = run.apply(numbered(3), BadRecords())
    assert run.fields == {
        "n": Field("int64"),
        "r": Field("float64", (None, 2)),
        "w": Field("bytes", (2,)),
        "v": Field("float32", (None,)),
    }
    assert isinstance(out.columns["w"], Strings)
    assert isinstance(out.columns["r"], Ragged)
    assert [row["r"] for row in examples(out)] == [[], [[0, 0]], [[0, 0], [0, 0]]]


def halves(example):
    return {"y": example["x"] if example["x"] < 3 else example["x"] / 2}


def fails_on_odd(example):
    if example["x"] % 2:
        raise KeyError("odd")
    return {"x": example["x"]}


# What breaks a rule


def gives_none(example):
    example["y"] = 1


def gives_other_names(example):
    return {"x": 1} if example["x"] < 2 else {"z": 1}


def gives_objects(example):
    return {"x": object()}


def gives_bad_name(example):
    return {7: 1}


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (
            lambda p: p.map(fails_on_odd),
            r"record 1: map function .*:fails_on_odd raised KeyError: 'odd' \(.*:\d+\)$",
        ),
        (lambda p: p.filter(fails_on_odd), "record 0: filter function .*gave {'x':.*True or False"),
        (lambda p: p.map(gives_none), "record 0: .*gave None, a NoneType; a map gives a dict"),
        (lambda p: p.map(gives_other_names), r"record 2: .*columns \['z'\]; .* are \['x'\]"),
        (lambda p: p.map(gives_objects), "record 0: .*column 'x': <object.*holds neither strings"),
        (lambda p: p.map(gives_bad_name), "gave a column named 7"),
        (
            lambda p: p.map(halves, schema={"q": hs.scalar("int64")}),
            r"gave the columns \['y'\]; the others of this run are \['q'\]",
        ),
    ],
)
def test_a_fault_names_row_function_and_rule(declare, text):
    with pytest.raises(DataError, match=text):
        stages(declare).apply(numbered(4), BadRecords())


def raises_all(columns):
    raise ZeroDivisionError("no")


def one_row_less(columns):
    return {"x": columns["x"][1:]}


def dates(columns):
    return {"x": columns["x"].astype("datetime64[D]")}


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (
            lambda p: p.map(raises_all, vectorized=True),
            "record 0 and the 3 after it: map function .*raises_all raised ZeroDivisionError: no",
        ),
        (lambda p: p.map(one_row_less, vectorized=True), "length 3; .* as it gets, here 4"),
        (lambda p: p.map(dates, vectorized=True), "gave no column: .*<M8"),
    ],
)
def test_a_vectorized_function_answers_for_all_its_rows(declare, text):
    with pytest.raises(DataError, match=text):
        stages(declare).apply(numbered(4), BadRecords())
    bad = BadRecords(skip=True)
    assert len(stages(declare).apply(numbered(4), bad)) == 0
    assert sum(bad.counts.values()) == 4


@pytest.mark.parametrize(
    ("declare", "left", "counts"),
    [
        (lambda p: p.map(fails_on_odd), [100, 102], {"map_failed": 2}),
        (lambda p: p.map(gives_other_names), [100, 101], {"map_failed": 2}),
        (
            lambda p: p.map(halves, schema={"y": hs.scalar("int64")}),
            [100, 101, 102],
            {"wrong_type": 1},
        ),
        (lambda p: p.map(mixed_ranks), [100, 101], {"wrong_type": 2}),
        (lambda p: p.filter(fails_above_two), [100, 102], {"filter_failed": 1}),
    ],
)
def test_with_skip_only_the_bad_rows_are_dropped_and_counted(declare, left, counts):
    bad = BadRecords(skip=True)
    run = stages(declare)
    out = run.apply(numbered(4), bad)
    assert out.ordinals.tolist() == left
    assert out.origin.record.tolist() == [i - 100 for i in left]
    assert all(len(column) == len(left) for column in out.columns.values())
    assert bad.counts == counts


def mixed_ranks(example):
    return {"y": 1 if example["x"] < 2 else [1]}


def fails_above_two(example):
    if example["x"] > 2:
        raise ValueError("too large")
    return np.array(example["x"] % 2 == 0)


def test_a_missing_column_is_an_error_before_the_first_chunk():
    with pytest.raises(DataError, match="select: there is no column 'z', only x, v, t"):
        stages(lambda p: p.select(["z"]))
    run = stages(lambda p: p.map(halves).select(["z"]))
    with pytest.raises(DataError, match="there is no column 'z', only y"):
        run.apply(numbered(2), BadRecords())


def test_a_missing_function_is_an_error_before_the_first_chunk():
    with pytest.raises(ImportError, match=r"there is no 'nothing' in .*test_stages"):
        stages(lambda p: p.map(f"{__name__}:nothing"))
    with pytest.raises(ImportError, match="FIELDS is a dict, not a function"):
        stages(lambda p: p.map(f"{__name__}:FIELDS"))


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a", ""], "the source has a column named ''; names are strings of 1 to 256"),
        (["\udcff"], "the source has a column named .*, which is not a text that UTF-8 can hold"),
        ([f"c{i}" for i in range(1025)], "the source has 1025 columns; 1 to 1024 can be"),
    ],
)
def test_columns_that_no_trainer_could_be_sent_are_refused(names: list[str], text: str) -> None:
    with pytest.raises(DataError, match=f"{text}.*declare the features"):
        RowStages((), dict.fromkeys(names, Field("int64"))).check_names()
