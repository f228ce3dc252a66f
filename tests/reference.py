"""The reference of tests/combinations: lists and loops give the batches of any declared feed.

    Declared: examples, calls ─► stages of a partition, row by row ─► shape ─► batches, in order

It shares no code with the server, not even the hash that draws by chance, and it is as slow as it
is plain.  It knows the declarations of tests/combinations/declarations.py, which are correct ones:
an argument that it does not know is an error.

A batch is a dict: its columns, ``@number``, ``@epoch``, and the attributes of a trainer's batch
(``@label``, ``@bucket`` …).  The columns of segments are ``sequences:x``, ``context:n`` and
``state:s``.  A trainer saves ``saved(state, sequence)`` for each segment.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np

Example = dict[str, Any]
Batch = dict[str, Any]
#: A call of the builder: its name and its arguments.
Call = tuple[str, dict[str, Any]]

_WORD = 2**64 - 1
#: Streams of chance: the uses of one seed.
_SHUFFLE, _WINDOW, _ACCEPT, _COPIES, _CLASSES, _KEYS, _MAPS, _PHASES = 1, 2, 4, 5, 6, 7, 8, 9
_MIXES, _PASSES, _BLOCKS, _BLOCK_ROWS, _ROUNDS, _BATCHES = 10, 11, 12, 13, 14, 15
ORDER = ("mix", "skip", "take", "concat", "shuffle", "repeat")
_SEGMENTS = ("batch_sequences_with_states", "sequence_queueing_state_saver")
#: By class, in proportions that a trainer can change.
SAMPLERS = ("stratified_sample", "stratified_sample_unknown_dist")
BUCKETS = ("bucket", "bucket_by_sequence_length")
#: Results of functions of segments whose size varies.
VARYING = ("pairs", "names")


@dataclass(frozen=True)
class Declared:
    """A feed: its examples, whether they are only read forward, and the calls after the source.

    A mix has no examples: its first call is "mix", with a Declared for each of its ``sources``.
    ``blocks`` has the block of each example, where blocks are shuffled.
    """

    examples: Sequence[Example]
    calls: Sequence[Call]
    forward: bool = False
    blocks: Sequence[int] = ()


@dataclass
class Change:
    """Arguments ``given`` of a sampler by class, in place of those declared after ``at`` rows."""

    at: float
    given: dict[str, Any]
    rows: int = 0  # that came; the end of an epoch with borders, and of the input, counts as one


@dataclass(frozen=True)
class Row:
    """A row between source and batch.  ``ordinal`` keys its chance, ``origin`` is its example's."""

    ordinal: int
    example: Example
    origin: int
    epoch: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


def batches(declared: Declared, partition: int, partitions: int) -> list[Batch]:
    """Return the batches of one partition, in order, as its only trainer takes them."""
    parts, (kind, given) = rows_of(declared, partition, partitions)
    shaped = _shape(kind, given, partition)
    made = [batch for rows in parts for batch in shaped(rows)]
    for number, batch in enumerate(made):
        batch["@number"] = number
    return made


def segments(declared: Declared, partition: int, partitions: int) -> list[list[Batch]]:
    """Return the segments of each example of a partition, in the order of insertion.

    Each has its own values only: who trains it, and beside which others, is a matter of the run.
    Of packed lanes each step is one.
    """
    parts, (_, given) = rows_of(declared, partition, partitions)
    given = {**given, "num_unroll": 1} if given.get("pack") else given
    going = _admission(given, partition)
    admitted = [going(row) for rows in parts for row in rows]
    return [[_segment(one, given) for _ in one.begins] for one in admitted]


def rows_of(declared: Declared, partition: int, partitions: int) -> tuple[list[list[Row]], Call]:
    """Return a partition's rows after all stages, and the shape; by epoch if batches end there."""
    order, stages, (kind, given) = _split(declared.calls)
    repeat = order.get("repeat", {"n": 1})
    group = _group(stages, kind, given)
    if order.get("mix", {}).get("by") == "batch":
        given = {**given, "sources": len(order["mix"]["sources"])}
    numbered = enumerate(stages, start=int("mix" in order))  # a mix is the first stage
    steps = [_STAGES[name](number, options) for number, (name, options) in numbered]
    parts: list[list[Row]] = []
    for epoch in range(repeat["n"]):
        if "mix" in order:
            rows = _mixed(order["mix"], epoch, partition, partitions)
        else:
            own = _share(declared, epoch, partition, partitions)
            rows = [Row(i, dict(example), i, epoch) for i, example in own]
        found: list[Row] = []
        for start in range(0, len(rows), group or len(rows) or 1):
            read = rows[start : start + (group or len(rows))]
            for step in steps:
                read = step(read) if read else read
            found += read
        parts.append(found)
    if repeat.get("across_batches", True):
        parts = [[row for part in parts for row in part]]
    if any(name == "with_origin" for name, _ in declared.calls):
        parts = [
            [replace(row, facts={**row.facts, "origin": row.origin}) for row in rows]
            for rows in parts
        ]
    return parts, (kind, given)


def saved(state: Any, sequence: Any) -> Any:
    """Return the state that a trainer saves after segment ``sequence`` of an example."""
    return state + sequence + 1


def _split(calls: Iterable[Call]) -> tuple[dict[str, Any], list[Call], Call]:
    """Return the calls of the order, the stages one by one, and the shape."""
    order: dict[str, Any] = {}
    stages: list[Call] = []
    shape: Call | None = None
    for name, options in calls:
        given = dict(options)
        assert shape is None, "the shape is last"
        if name in ORDER:
            order[name] = given
            continue
        if given.pop("enqueue_many", False):
            stages.append(("unbatch", {}))
        keep = given.pop("keep_input", True)
        if keep is not True:
            stages.append(("keep", {"keep": keep}))
        if name in ("rejection_sample", "stratified_sample") and "batch_size" in given:
            own = ("accept_prob", "labels", "target_probs", "init_probs", "seed", "change")
            stages.append((name, {n: v for n, v in given.items() if n in own}))
            shape = "batch", {n: v for n, v in given.items() if n not in own}
        elif name in _STAGES:
            stages.append((name, given))
        elif name != "with_origin":
            shape = name, given
    assert shape is not None
    return order, stages, shape


# Chance


def _key(seed: int, stream: int, epoch: int) -> tuple[int, int]:
    text = f"{seed:x}.{stream:x}.{epoch:x}".encode()
    words = hashlib.blake2b(text, digest_size=16, person=b"key").digest()
    return int.from_bytes(words[:8], "little"), int.from_bytes(words[8:], "little")


def _finalised(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _WORD
    return x ^ x >> 31


def _bits(seed: int, stream: int, epoch: int, counter: int) -> int:
    before, between = _key(seed, stream, epoch)
    x = ((counter & _WORD) * 0x9E3779B97F4A7C15 + before) & _WORD
    return _finalised(_finalised(x) ^ between)


def _uniform(seed: int, stream: int, epoch: int, counter: int) -> float:
    return (_bits(seed, stream, epoch, counter) >> 11) * 2.0**-53


def _derive(seed: int, *numbers: int) -> int:
    text = ".".join(f"{number:x}" for number in (seed, *numbers)).encode()
    words = hashlib.blake2b(text, digest_size=16, person=b"derive").digest()
    return int.from_bytes(words[:8], "little")


def _permuted(items: list[Any], seed: int, epoch: int) -> list[Any]:
    assert len(items) <= 1024, "a longer permutation is computed otherwise"
    drawn = [_bits(seed, _SHUFFLE, epoch, i) for i in range(len(items))]
    return [items[i] for i in sorted(range(len(items)), key=drawn.__getitem__)]


def _copies(row: Row, count: int, use: int) -> list[Row]:
    """Return copies of a row: the first keeps its ordinal, others have a hash of it."""
    rows = [row] * min(count, 1)
    for i in range(1, count):
        mixed = _bits(use, _COPIES, 2, row.ordinal + _bits(use, _COPIES, 1, i))
        rows.append(replace(row, ordinal=mixed - 2**64 if mixed >> 63 else mixed))
    return rows


# The source and its order


def _cut(items: Sequence[Any], calls: Iterable[Call], other: str = "other") -> list[Any]:
    """Return the examples after ``skip``, ``take`` and ``concat``, in the order of the calls."""
    rest = list(items)
    for name, given in calls:
        if name == "skip":
            rest = rest[given["n"] :]
        elif name == "take":
            rest = rest[: given["n"]]
        elif name == "concat":
            rest = [*rest, *given[other]]
    return rest


def _share(declared: Declared, epoch: int, partition: int, partitions: int) -> list[Any]:
    """Return a partition's part of the source in an epoch, in order."""
    source = list(enumerate(_cut(declared.examples, declared.calls)))
    shuffle = dict(declared.calls).get("shuffle")
    seed, window = (shuffle or {}).get("seed", 0), (shuffle or {}).get("window")
    if shuffle and not shuffle.get("reshuffle", True):
        epoch = 0
    if shuffle and shuffle.get("blocks"):
        blocks = _cut(declared.blocks, declared.calls, "blocks")
        return _in_blocks(source, blocks, shuffle, epoch, partition, partitions)
    if declared.forward:  # one stream, of which each partition reads every row and keeps its own
        found = []
        size = window or len(source) or 1
        for start in range(0, len(source), size):
            own = [one for one in source[start : start + size] if one[0] % partitions == partition]
            if shuffle and len(own) > 1:
                own = _permuted(own, _derive(seed, _WINDOW, own[0][0]), epoch)
            found += own
        return found
    first, stop = (k * len(source) // partitions for k in (partition, partition + 1))
    if shuffle is None:
        return source[first:stop]
    if window is None:
        return _permuted(source, seed, epoch)[first:stop]
    found = []
    for start in range(first, stop, window):
        own = source[start : min(start + window, stop)]
        found += _permuted(own, _derive(seed, _WINDOW, start), epoch)
    return found


def _in_blocks(
    source: list[Any],
    block_of: list[int],
    shuffle: Any,
    epoch: int,
    partition: int,
    partitions: int,
) -> list[Any]:
    """Return a partition's part where the rows of some blocks at a time are mixed."""
    seed, blocks = shuffle["seed"], dict[int, list[Any]]()
    for one, block in zip(source, block_of, strict=True):
        blocks.setdefault(block, []).append(one)
    chosen = _permuted([*blocks.values()], _derive(seed, _BLOCKS), 0)
    first, stop = (k * len(chosen) // partitions for k in (partition, partition + 1))
    ordered = _permuted(chosen[first:stop], _derive(seed, _BLOCKS, partition), epoch)
    mixed = min(shuffle["blocks"], len(ordered))
    rounds, found = range(len(ordered) - mixed + 1), list[Any]()
    for number in rounds:
        together: list[Any] = []
        for place in range(number, number + mixed):
            rows = ordered[place]
            rows = _permuted(rows, _derive(seed, _BLOCK_ROWS, rows[0][0]), epoch)
            its_rounds = [one for one in rounds if one <= place < one + mixed]
            low = len(rows) * its_rounds.index(number) // len(its_rounds)
            high = len(rows) * (its_rounds.index(number) + 1) // len(its_rounds)
            together += rows[low:high]
        found += _permuted(together, _derive(seed, _ROUNDS, partition, number), epoch)
    return found


def _mixed(given: dict[str, Any], epoch: int, partition: int, partitions: int) -> list[Row]:
    """Return a partition's examples of a mix in an epoch, each drawn from a source that goes on."""
    sources, weights, rows = given["sources"], given["weights"], list[Row]()
    schedule = weights if isinstance(weights, list) else [(0, weights)]
    going = {
        name: _passes(k, source, epoch, partition, partitions)
        for k, (name, source) in enumerate(sources.items())
    }
    while True:
        number = len(rows) * partitions + partition
        times = {
            name: -math.log1p(-_uniform(given["seed"], _MIXES, epoch, number * len(sources) + k))
            for k, name in enumerate(sources)
        }
        since = max(i for i, (start, _) in enumerate(schedule) if start <= number)
        weighing = [{name: own[name] for name in going if own[name]} for _, own in schedule[since:]]
        own = next((own for own in weighing if own), None)
        if own is None:
            return rows
        name = min(own, key=lambda name: times[name] / own[name])
        row = next(going[name], None)
        if row is None and given["stop"] == "first":
            return rows
        if row is None:
            del going[name]
        else:
            rows.append(row)


def _passes(
    k: int, declared: Declared, epoch: int, partition: int, partitions: int
) -> Iterator[Row]:
    """Yield a partition's examples of source ``k`` of a mix, pass by pass."""
    order = dict(declared.calls)
    own_stages = [_STAGES[name](0, given) for name, given in declared.calls if name in _STAGES]
    for turn in range(order.get("repeat", {"n": 1})["n"]):
        pass_epoch = (epoch << 32) + turn
        for i, example in _share(declared, pass_epoch, partition, partitions):
            origin = ordinal = (k << 40) + i
            if turn:
                mixed = _bits(0, _PASSES, 1, ordinal + _bits(0, _PASSES, 0, turn))
                ordinal = mixed - 2**64 if mixed >> 63 else mixed
            rows = [Row(ordinal, dict(example), origin, epoch, {"source": np.int32(k)})]
            for step in own_stages:
                rows = step(rows)
            yield from rows


def _group(stages: list[Call], kind: str, given: dict[str, Any]) -> int:
    """Return the number of examples that are read at once, where that matters; else 0."""
    weighted = [options for name, options in stages if name == "weighted_resample"]
    sizes = given["batch_size"]
    size = max(sizes) if isinstance(sizes, list) else sizes
    groups = {options.get("group") or size for options in weighted}
    assert len(groups) < 2
    drawn = any(options.get("vectorized") and "seed" in options for _, options in stages)
    return max(groups, default=256 if drawn else 0)


# Stages: made for each partition, then called with the rows of each read


def _function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function


def _value(selector: Any, row: Row) -> Any:
    """Return the value of a column, of a function of the columns or of a constant for a row."""
    if isinstance(selector, str) and ":" in selector:
        one = {name: _column([value]) for name, value in row.example.items()}
        return _function(selector)(one)[0]
    return row.example[selector] if isinstance(selector, str) else selector


def _generator(seed: int | None, number: int, row: Row, segment: int = 0) -> tuple[Any, ...]:
    """Return the generator of a stage for a row, if it has a seed."""
    if seed is None:
        return ()
    key = np.array(_key(_derive(seed, _MAPS, number), _MAPS, row.epoch), np.uint64)
    counter = np.array([0, 0, row.ordinal & _WORD, segment], np.uint64)
    return (np.random.Generator(np.random.Philox(key=key, counter=counter)),)


def _mapped(number: int, given: dict[str, Any]) -> Callable[[list[Row]], list[Row]]:
    function = _function(given["fn"])

    def drawn(row: Row) -> tuple[Any, ...]:
        return _generator(given.get("seed"), number, row)

    def step(rows: list[Row]) -> list[Row]:
        if not given.get("vectorized"):
            return [replace(row, example=function(row.example, *drawn(row))) for row in rows]
        columns = {name: _column([row.example[name] for row in rows]) for name in rows[0].example}
        result = function(columns, *drawn(rows[0]))
        return [
            replace(row, example={name: column[i] for name, column in result.items()})
            for i, row in enumerate(rows)
        ]

    return step


def _flat_mapped(number: int, given: dict[str, Any]) -> Callable[[list[Row]], list[Row]]:
    function = _function(given["fn"])

    def step(rows: list[Row]) -> list[Row]:
        found = []
        for row in rows:
            outputs = list(function(row.example))
            copies = _copies(row, len(outputs), 2 + number)
            found += [replace(c, example=o) for c, o in zip(copies, outputs, strict=True)]
        return found

    return step


def _unbatched(number: int, given: dict[str, Any]) -> Callable[[list[Row]], list[Row]]:
    def step(rows: list[Row]) -> list[Row]:
        found = []
        for row in rows:
            count = len(next(iter(row.example.values())))
            for i, copy in enumerate(_copies(row, count, 2 + number)):
                found.append(replace(copy, example={n: v[i] for n, v in row.example.items()}))
        return found

    return step


def _filtered(number: int, given: dict[str, Any]) -> Callable[[list[Row]], list[Row]]:
    function = _function(given["fn"])
    return lambda rows: [row for row in rows if function(row.example)]


def _selected(number: int, given: dict[str, Any]) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [
        replace(row, example={name: row.example[name] for name in given["names"]}) for row in rows
    ]


def _kept(number: int, given: dict[str, Any]) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [row for row in rows if _value(given["keep"], row)]


def _accepts(seed: int, number: int, row: Row, probability: float) -> bool:
    sub_seed = _derive(seed, _ACCEPT, number)
    return _uniform(sub_seed, _ACCEPT, row.epoch, row.ordinal) < probability


def _rejected(number: int, given: dict[str, Any]) -> Callable[[list[Row]], list[Row]]:
    seed, prob = given.get("seed", 0), given["accept_prob"]
    return lambda rows: [
        row for row in rows if _accepts(seed, number, row, float(_value(prob, row)))
    ]


def _changed(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a sampler for its next row."""
    change = given.get("change")
    if change is None:
        return given
    change.rows += 1
    return {**given, **change.given} if change.rows > change.at else given


def _stratified(number: int, given: dict[str, Any]) -> Callable[[list[Row]], list[Row]]:
    init, counts = given.get("init_probs"), [10] * len(given["target_probs"])

    def step(rows: list[Row]) -> list[Row]:
        found = []
        for row in rows:
            target = [np.float32(p) for p in _changed(given)["target_probs"]]
            label = _value(given["labels"], row)
            if init is None:
                counts[int(label)] += 1
                shares = [np.float32(count / sum(counts)) for count in counts]
            else:
                shares = [np.float32(p) for p in init]
            ratios = [t / s for t, s in zip(target, shares, strict=True)]
            if _accepts(given.get("seed", 0), number, row, float(ratios[int(label)] / max(ratios))):
                found.append(replace(row, facts={**row.facts, "label": label}))
        return found

    return step


def _resampled(number: int, seed: int, row: Row, rate: float) -> list[Row]:
    """Return the copies of a row, a Poisson number of them."""
    assert rate < 10, "a larger rate takes several draws"
    drawn = _uniform(_derive(seed, _COPIES, number), _COPIES, row.epoch, row.ordinal)
    count, term = 0, math.exp(-rate)
    reached = term
    while drawn >= reached:
        count += 1
        term *= rate / count
        reached += term
    return _copies(row, count, 2 + number)


def _at_rate(number: int, given: dict[str, Any]) -> Callable[[list[Row]], list[Row]]:
    seed = given.get("seed") or 0
    return lambda rows: [
        copy
        for row in rows
        for copy in _resampled(number, seed, row, float(_value(given["rates"], row)))
    ]


def _weighted(number: int, given: dict[str, Any]) -> Callable[[list[Row]], list[Row]]:
    seed, decay = given.get("seed") or 0, given.get("mean_decay", 0.999)
    warmup = given.get("warmup", 10)
    groups, average = 0, 0.0

    def weight(row: Row) -> float:
        return float(_value(given["weights"], row))

    def step(rows: list[Row]) -> list[Row]:
        nonlocal groups, average
        weights = [weight(row) for row in rows]
        groups += 1
        own = sum(w / len(weights) for w in weights)
        if warmup is None:
            average = decay * average + (1 - decay) * own
            mean = average / (1 - decay**groups)
        else:
            less = min((groups - 1) / min(groups, warmup), decay)
            mean = average = less * average + (1 - less) * own
        found = []
        for row, w in zip(rows, weights, strict=True):
            rate = w / mean * given["overall_rate"]
            row = replace(row, facts={**row.facts, "rate": np.float32(rate)})
            found += _resampled(number, seed, row, rate)
        return found

    return step


_STAGES: dict[str, Callable[[int, dict[str, Any]], Callable[[list[Row]], list[Row]]]] = {
    "map": _mapped,
    "flat_map": _flat_mapped,
    "unbatch": _unbatched,
    "filter": _filtered,
    "select": _selected,
    "keep": _kept,
    "rejection_sample": _rejected,
    "stratified_sample": _stratified,
    "resample_at_rate": _at_rate,
    "weighted_resample": _weighted,
}


# Columns


def _column(values: list[Any]) -> Any:
    """Return a column: an array where all values have one shape, else a list of arrays."""
    if isinstance(values[0], bytes):
        column: np.ndarray = np.empty(len(values), object)
        column[:] = values
        return column
    return np.stack(values) if len({np.shape(value) for value in values}) == 1 else values


def _padded(
    values: list[np.ndarray], sizes: Sequence[int | None], multiple: int, blank: Any = 0
) -> np.ndarray:
    """Return rows padded with ``blank`` to the largest, each size rounded up to a multiple."""
    shape = []
    for i, largest in enumerate(np.max([value.shape for value in values], axis=0).tolist()):
        size = sizes[i] if i < len(sizes) else None
        shape.append(-(-largest // multiple) * multiple if size is None else size)
    out = np.full((len(values), *shape), blank, values[0].dtype)
    for row, value in zip(out, values, strict=True):
        row[tuple(slice(size) for size in value.shape)] = value
    return out


def _plain(rows: list[Row], given: dict[str, Any], least: int = 0) -> Batch:
    """Return a batch of rows; the first dimension of ragged columns has ``least`` at least."""
    pad_to = given.get("pad_to") or {}
    batch: Batch = {"@epoch": rows[0].epoch}
    for name in rows[0].example:
        values = [row.example[name] for row in rows]
        varies = name in ("x",)  # the one column whose shape varies
        if given.get("ragged") and varies:
            batch[name] = values
        elif varies and np.ndim(values[0]) and (given.get("dynamic_pad") or name in pad_to):
            floor = np.zeros((least, *values[0].shape[1:]), values[0].dtype)
            sized = [*values, floor] if least else values
            sizes = pad_to.get(name, ())
            sizes = (sizes,) if isinstance(sizes, int) else sizes
            rule = sizes, given.get("pad_to_multiple") or 1
            blank = (given.get("padding_values") or {}).get(name, 0)
            batch[name] = _padded(sized, *rule, blank)[: len(values)]
            if given.get("mask"):
                real = [np.ones(value.shape, bool) for value in sized[: len(values)]]
                real += [np.zeros(value.shape, bool) for value in sized[len(values) :]]
                batch[f"{name}_mask"] = _padded(real, *rule)[: len(values)]
        else:
            batch[name] = _column(values)
    for fact in rows[0].facts:
        batch[f"@{fact}"] = [row.facts[fact] for row in rows]
    return batch


# Shapes: called with the rows of each epoch, or with all rows where batches may cross borders


def _shape(
    kind: str, given: dict[str, Any], partition: int
) -> Callable[[list[Row]], Iterator[Batch]]:
    if kind == "batch" and "sources" not in given:
        return lambda rows: _batched(rows, given)
    if kind in ("batch", *BUCKETS):
        return _shuffled(lambda rows: _bucketed(rows, kind, given), given, partition)
    if kind == "stratified_sample_unknown_dist":
        return _by_class(given, partition)
    if kind == "pack":
        return lambda rows: _packed(rows, given)
    assert kind in _SEGMENTS, kind
    return _segmented({"pad": kind == _SEGMENTS[0], **given}, partition)


def _batched(rows: list[Row], given: dict[str, Any]) -> Iterator[Batch]:
    size, small = given["batch_size"], given.get("allow_smaller_final_batch", False)
    for part in _in_batches(rows, size, given, lambda row: _length(given["balance"], row)):
        if len(part) == size or small:
            yield _plain(part, given)


def _window(given: dict[str, Any]) -> int:
    """Return the number of batches that are formed together."""
    return int(given.get("balance_batches", 16)) if given.get("balance") is not None else 1


def _in_batches(
    rows: list[Any], size: int, given: dict[str, Any], cost: Callable[[Any], float]
) -> Iterator[list[Any]]:
    """Yield rows in batches, balanced where that is declared; the last may be smaller."""
    window = _window(given)
    for start in range(0, len(rows), size * window):
        part = rows[start : start + size * window]
        count = len(part) // size
        whole = part[: size * count]
        batches: list[list[int]] = [[] for _ in range(count)]
        sums = [0.0] * count
        costs = [float(cost(row)) if window > 1 else 0.0 for row in whole]
        by_cost = sorted(range(len(whole)), key=lambda i: -costs[i])
        for at in range(0, len(whole), count or 1):
            cheapest = sorted(range(count), key=sums.__getitem__)
            for batch, i in zip(cheapest, by_cost[at : at + count], strict=True):
                batches[batch].append(i)
                sums[batch] += costs[i]
        for batch in sorted(map(sorted, batches)):
            yield [whole[i] for i in batch]
        if part[size * count :]:
            yield part[size * count :]


def _length(selector: Any, row: Row) -> int:
    value = _value(selector, row)
    return len(value) if np.ndim(value) else int(value)


def _shuffled(
    shaped: Callable[[list[Row]], Iterator[Batch]], given: dict[str, Any], partition: int
) -> Callable[[list[Row]], Iterator[Batch]]:
    """Return batches with the buckets of some at a time in a drawn order, if that is declared."""
    if "shuffle_batches" not in given:
        return shaped
    most, seed, blocks = given["shuffle_batches"], given.get("shuffle_seed", 0), count()

    def ordered(rows: list[Row]) -> Iterator[Batch]:
        formed = shaped(rows)
        while block := [*islice(formed, most)]:
            number = next(blocks)
            key = partial(_bits, _derive(seed, partition), _BATCHES, number)
            buckets = [one["@bucket"] for one in block]
            for i in sorted(range(len(block)), key=key):
                at = next(k for k, one in enumerate(block) if one["@bucket"] == buckets[i])
                yield block.pop(at)

    return ordered


def _bucketed(rows: list[Row], kind: str, given: dict[str, Any]) -> Iterator[Batch]:
    edges = given.get("bucket_boundaries")
    count = given.get("num_buckets", 1) if edges is None else len(edges) + 1
    sizes, each = given["batch_size"], given.get("sources", 1)  # buckets of each source
    sizes = sizes if isinstance(sizes, list) else [sizes] * count
    sizes = [size for size in sizes for _ in range(each)]
    tops = [edge for edge in edges or [] for _ in range(each)]
    budget, multiple = given.get("max_padded_elements"), given.get("pad_to_multiple") or 1
    waiting: list[list[Row]] = [[] for _ in sizes]

    def steps(rows: list[Row], bucket: int) -> int:
        lengths = [max(1, row.facts["length"]) for row in rows]
        if given.get("ragged"):
            return sum(lengths)
        longest = max(lengths, default=1)
        if given.get("pad_to_boundary") and bucket < len(tops):
            longest = max(longest, tops[bucket])
        return -(-longest // multiple) * multiple * len(rows)

    def cost(row: Row) -> float:
        return _length(given["balance"], row)

    def formed(bucket: int, rows: list[Row]) -> Batch:
        least = tops[bucket] if given.get("pad_to_boundary") and bucket < len(tops) else 0
        return {**_plain(rows, given, least), "@bucket": bucket}

    def full(bucket: int) -> Iterator[Batch]:
        rows, waiting[bucket] = waiting[bucket], []
        for part in _in_batches(rows, sizes[bucket] or len(rows), given, cost):
            yield formed(bucket, part)

    for row in rows:
        if given.get("input_length") is not None:
            length = _length(given["input_length"], row)
            row = replace(row, facts={**row.facts, "length": np.int32(length)})
        b = bisect_right(edges, length) if edges else int(_value(given.get("which_bucket", 0), row))
        b = b * each + (int(row.facts["source"]) if each > 1 else 0)
        if budget is not None and waiting[b] and steps([*waiting[b], row], b) > budget:
            yield from full(b)
        waiting[b].append(row)
        if sizes[b] and len(waiting[b]) == sizes[b] * _window(given):
            yield from full(b)
    for b, held in enumerate(waiting):
        fits_no_more = (
            budget is not None
            and held
            and steps([*held, replace(held[0], facts={"length": 0})], b) > budget
        )
        small = given.get("allow_smaller_final_batch") or fits_no_more
        rows, waiting[b] = held, []
        for part in _in_batches(rows, sizes[b] or len(rows) or 1, given, cost):
            if small or len(part) == sizes[b]:
                yield formed(b, part)


#: An example in a packed row, its first step there, and the step after its last.
_Piece = tuple[Row, int, int]


def _packed(rows: list[Row], given: dict[str, Any]) -> Iterator[Batch]:
    length, size, strategy = given["length"], given["batch_size"], given.get("strategy", "best_fit")
    opened: list[list[_Piece]] = []
    full: list[list[_Piece]] = []

    def room(row: list[_Piece]) -> int:
        return length - sum(stop - start for _, start, stop in row)

    def put(row: list[_Piece], piece: _Piece) -> None:
        row.append(piece)
        if not room(row):
            opened.remove(row)
            full.append(row)

    for row in rows:
        steps, start = len(row.example["x"]), 0
        if strategy != "concat":
            steps = min(steps, length) if given.get("too_long") == "cut" else steps
            fits = [one for one in opened if room(one) >= steps]
            fits = sorted(fits, key=room) if strategy == "best_fit" else fits
            if not 0 < steps <= length:
                continue
            if not fits:
                if len(opened) == given.get("max_open", 64):
                    fullest = min(opened, key=room)
                    opened.remove(fullest)
                    full.append(fullest)
                fits = [[]]
                opened.append(fits[0])
            put(fits[0], (row, 0, steps))
        while strategy == "concat" and start < steps:
            if not opened:
                opened.append([])
            stop = min(steps, start + room(opened[0]))
            put(opened[0], (row, start, stop))
            start = stop
    full += opened

    def cost(row: list[_Piece]) -> float:
        shares = 0.0
        for one, start, stop in row:
            whole = len(one.example["x"]) if strategy == "concat" else stop - start
            shares += _length(given["balance"], one) * (stop - start) / whole
        return shares

    for part in _in_batches(full, size, given, cost):
        if len(part) == size or given.get("allow_smaller_final_batch"):
            yield _of_packed(part, given)


def _of_packed(rows: list[list[_Piece]], given: dict[str, Any]) -> Batch:
    length, blanks = given["length"], given.get("padding_values") or {}
    most, first = max(map(len, rows)), rows[0][0][0]
    batch: Batch = {"@epoch": first.epoch}
    for name in ("segment_ids", "positions"):
        batch[name] = np.zeros((len(rows), length), np.int32)
    for name, value in first.example.items():
        inner = (length, *value.shape[1:]) if name == "x" else (most, *np.shape(value))
        text = isinstance(value, bytes)
        dtype = object if text else np.asarray(value).dtype
        batch[name] = np.full((len(rows), *inner), blanks.get(name, b"" if text else 0), dtype)
        if given.get("mask"):
            batch[f"{name}_mask"] = np.zeros((len(rows), inner[0]), bool)
    for fact, value in first.facts.items():
        batch[f"@{fact}"] = [np.zeros(most, np.asarray(value).dtype) for _ in rows]
    for i, pieces in enumerate(rows):
        at = 0
        for number, (row, start, stop) in enumerate(pieces):
            steps = slice(at, at + stop - start)
            batch["segment_ids"][i, steps] = number + 1
            batch["positions"][i, steps] = np.arange(start, stop)
            for name, value in row.example.items():
                place, own = (steps, value[start:stop]) if name == "x" else (number, value)
                batch[name][i, place] = own
                if given.get("mask"):
                    batch[f"{name}_mask"][i, place] = True
            for fact, value in row.facts.items():
                batch[f"@{fact}"][i][number] = value
            at += stop - start
    return batch


def _by_class(given: dict[str, Any], partition: int) -> Callable[[list[Row]], Iterator[Batch]]:
    declared = _derive(_derive(given.get("seed", 0), _CLASSES, partition), _CLASSES, 0)
    number = 0

    def draw(now: dict[str, Any]) -> list[int]:
        probs, size = now["probs"], now["batch_size"]
        seed = declared if size == given["batch_size"] else _derive(declared, _CLASSES, size)
        counts = [0] * len(probs)
        edges = np.cumsum(probs)
        for i in range(number * size, (number + 1) * size):
            drawn = _uniform(seed, _CLASSES, 0, i) * edges[-1]
            counts[min(bisect_right(edges.tolist(), drawn), len(probs) - 1)] += 1
        return counts

    def formed(waiting: list[list[Row]], now: dict[str, Any]) -> Iterator[Batch]:
        nonlocal number
        while all(len(w) >= n for w, n in zip(waiting, draw(now), strict=True)):
            found = []
            for k, n in enumerate(draw(now)):
                found += waiting[k][:n]
                waiting[k] = waiting[k][n:]
            number += 1
            yield _plain(found, given)

    def shaped(rows: list[Row]) -> Iterator[Batch]:
        waiting: list[list[Row]] = [[] for _ in given["probs"]]
        for row in (*rows, None):
            now = _changed(given)
            waiting = [some if p else [] for some, p in zip(waiting, now["probs"], strict=True)]
            yield from formed(waiting, now)  # what a change makes
            label = 0 if row is None else int(_value(given["labels"], row))
            if row is None or not now["probs"][label]:
                continue
            most = max(given.get("queue_capacity", 16), draw(now)[label])
            held = sum(map(len, waiting))
            if len(waiting[label]) >= most and held >= given.get("max_examples_in_flight", 8192):
                continue
            waiting[label].append(replace(row, facts={**row.facts, "label": np.int32(label)}))
            yield from formed(waiting, now)

    return shaped


# Segments


def lane_numbers(declared: Declared, partition: int, partitions: int) -> list[int]:
    """Return the declared lane of each example of a partition, in the order of insertion."""
    parts, (_, given) = rows_of(declared, partition, partitions)
    return [int(_value(given["lane"], row)) for rows in parts for row in rows]


@dataclass(eq=False)
class _Going:
    """An example that is handed out segment by segment."""

    row: Row
    index: int  # of its insertion
    key: bytes
    begins: list[int]
    sizes: list[int]
    at: int = 0
    lane: int = -1
    number: int = -1  # of the lane that is declared

    @property
    def over(self) -> bool:
        return self.at == len(self.begins)


def _admission(given: dict[str, Any], partition: int) -> Callable[[Row], _Going]:
    inserted = -(2**63) + (partition << 51)

    def going(row: Row) -> _Going:
        nonlocal inserted
        inserted += 1
        begins, sizes = _geometry(row, given)
        number = int(_value(given["lane"], row)) if "lane" in given else -1
        return _Going(row, inserted - 1, _row_key(row, given), begins, sizes, number=number)

    return going


def _segmented(given: dict[str, Any], partition: int) -> Callable[[list[Row]], Iterator[Batch]]:
    size, small = given["batch_size"], given.get("allow_small_batch", given["pad"])
    unroll, pack = given["num_unroll"], given.get("pack")
    given = {**given, "num_unroll": 1} if pack else given  # segments are steps
    going = _admission(given, partition)

    def arrival(rows: list[Row]) -> Iterator[Batch]:
        left = [going(row) for row in rows]
        while len(left) >= size or (small and left):
            yield _segments(left[:size], given)
            left = [one for one in left if not one.over]

    def lanes(rows: list[Row]) -> Iterator[Batch]:
        fresh, lanes = [going(row) for row in rows], [None] * size
        while True:
            empty = [lane for lane in range(size) if lanes[lane] is None]
            if "lane" in given:
                admitted = fresh[: given.get("capacity", 1000) - (size - len(empty))]
                own = [next((x for x in admitted if x.number == lane), None) for lane in empty]
                for lane, one in zip(empty, own, strict=True) if small or all(own) else ():
                    if one is not None:
                        one.lane, lanes[lane] = lane, one
                        fresh.remove(one)
            elif len(fresh) >= len(empty) or small:
                for lane in empty[: len(fresh)]:
                    lanes[lane] = fresh.pop(0)
                    lanes[lane].lane = lane
            taken = [one for one in lanes if one is not None]
            if not taken or (len(taken) < size and not small):
                return
            if pack:
                yield _packed_lanes(lanes, fresh, given, unroll)
            else:
                yield _segments(taken, given)
            lanes = [None if one is None or one.over else one for one in lanes]

    return lanes if given.get("order") == "lanes" else arrival


def _row_key(row: Row, given: dict[str, Any]) -> bytes:
    column = given.get("input_key")
    named = row.ordinal if column is None else row.example[column]
    key: bytes = named if isinstance(named, bytes) else b"%d" % named
    if given.get("make_keys_unique"):
        seed = given.get("make_keys_unique_seed") or 0
        key += b"%d" % int(_uniform(seed, _KEYS, row.epoch, row.ordinal) * 10**8)
    return key


def _names(listed: Any) -> dict[str, str]:
    return dict(listed) if isinstance(listed, dict) else {name: name for name in listed}


def _steps(row: Row, given: dict[str, Any]) -> int:
    return len(row.example[next(iter(_names(given["input_sequences"]).values()))])


def _geometry(row: Row, given: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Return the first own step of each segment, and the number of its own steps."""
    unroll, steps = given["num_unroll"], _steps(row, given)
    stride = given.get("stride") or unroll
    begins, sizes = [0], [unroll]
    if given.get("phase"):
        drawn = _uniform(given.get("phase_seed") or 0, _PHASES, row.epoch, row.ordinal)
        sizes = [min(int(drawn * stride), stride - 1) + 1]
    while begins[-1] + sizes[-1] < steps:
        begins.append(
            begins[-1] + (sizes[0] if len(begins) == 1 and given.get("phase") else stride)
        )
        sizes.append(unroll)
    return begins, sizes


#: Columns with a value for each step of a packed row; the others have one for each example.
_OF_STEPS = (
    *("epoch", "key", "sequence", "sequence_count", "length", "left_length", "right_length"),
    *("first", "last"),
)


def _packed_lanes(
    lanes: list[Any], fresh: list[_Going], given: dict[str, Any], unroll: int
) -> Batch:
    """Return the batch of the next row of each lane, which then has the last example of it."""
    held = {lane: [one] for lane, one in enumerate(lanes) if one is not None}
    ends = {lane: len(one.begins) - one.at for lane, (one,) in held.items()}
    while fresh and min(ends.values()) < unroll:
        lane = min(ends, key=lambda lane: (ends[lane], lane))
        lanes[lane] = fresh.pop(0)
        lanes[lane].lane = lane
        held[lane].append(lanes[lane])
        ends[lane] += len(lanes[lane].begins)
    rows: list[list[list[Batch]]] = []
    for of_lane in held.values():
        room, row = unroll, list[list[Batch]]()
        for one in of_lane:
            steps = min(room, len(one.begins) - one.at)
            row.append([_segment(one, given) for _ in range(steps)])
            room -= steps
        rows.append(row)
    most, first = max(map(len, rows)), rows[0][0][0]
    batch: Batch = {"@epoch": first["@epoch"], "@lane": [*held]}
    batch["@length"] = [sum(map(len, row)) for row in rows]
    batch["@first"] = [row[0][0]["@first"] for row in rows]
    batch["@last"] = [row[-1][-1]["@last"] for row in rows]
    numbers = [[i for i, of in enumerate(row, start=1) for _ in of] for row in rows]
    steps = {"segment_ids": numbers}
    for name, of in (("positions", "@sequence"), ("resets", "@first")):
        steps[name] = [[step[of] for one in row for step in one] for row in rows]
    for name, values in steps.items():
        batch[f"@{name}"] = [one + [0] * (unroll - len(one)) for one in values]
    for name, value in first.items():
        group, _, own = name.partition(":")
        if group == "sequences":
            blank = (given.get("padding_values") or {}).get(own, 0)
            batch[name] = np.full((len(rows), unroll, *value.shape[1:]), blank, value.dtype)
            for out, row in zip(batch[name], rows, strict=True):
                every = [step[name] for one in row for step in one]
                out[: len(every)] = np.concatenate(every)
        elif group == "state":
            batch[name] = _column([row[0][0][name] for row in rows])
        elif group == "context" or name[1:] not in _OF_STEPS:
            dtype = object if isinstance(value, bytes) else np.asarray(value).dtype
            blank = b"" if isinstance(value, bytes) else 0
            batch[name] = np.full((len(rows), most, *np.shape(value)), blank, dtype)
            for out, row in zip(batch[name], rows, strict=True):
                for i, one in enumerate(row):
                    out[i] = one[0][name]
            batch[name] = batch[name] if group == "context" else [*batch[name]]
    batch["@key"] = [[one[0]["@key"][15:] for one in row] for row in rows]
    batch["@key"] = [row + [b""] * (most - len(row)) for row in batch["@key"]]
    return batch


def _segments(taken: list[_Going], given: dict[str, Any]) -> Batch:
    """Return the batch of the next segments of some examples."""
    batch: Batch = {"@epoch": taken[0].row.epoch}
    columns: dict[str, list[Any]] = {}
    for one in taken:
        lane = {"@lane": one.lane} if one.lane >= 0 else {}
        for name, value in {**_segment(one, given), **lane}.items():
            columns.setdefault(name, []).append(value)
    del columns["@epoch"]
    after = given.get("map_segments") or {}
    for name, values in columns.items():
        of = name.removeprefix("sequences:").removesuffix("_mask")
        if of not in VARYING:
            batch[name] = values if name[0] == "@" else _column(values)
            continue
        sizes, blank = after.get("pad_to", {}).get(of), after.get("padding_values", {}).get(of, 0)
        blank = False if name.endswith("_mask") else blank or values[0].dtype.type(0)
        rule = (sizes, *values[0].shape[1:]), after.get("pad_to_multiple", 1)
        batch[name] = _padded(values, *rule, b"" if values[0].dtype == object else blank)
    return batch


def _segment(one: _Going, given: dict[str, Any]) -> Batch:
    """Return the next segment of an example, which goes on."""
    unroll, left, right = given["num_unroll"], given.get("left", 0), given.get("right", 0)
    row, begin, own = one.row, one.begins[one.at], one.sizes[one.at]
    length = given.get("input_length")
    total = _steps(row, given) if length is None else _length(length, row)
    after = begin + own
    listed: Batch = {
        "@epoch": row.epoch,
        "@key": b"%05d_of_%05d:%s" % (one.at, len(one.begins), one.key),
        "@sequence": one.at,
        "@sequence_count": len(one.begins),
        "@length": min(max(total - begin, 0), own),
        "@total_length": total,
        "@left_length": max(min(begin, total) - max(begin - left, 0), 0) if left else 0,
        "@right_length": min(max(total - after, 0), right),
        "@insertion_index": one.index,
        "@first": one.at == 0,
        "@last": one.at + 1 == len(one.begins),
        **{f"@{name}": value for name, value in row.facts.items()},
    }
    for name, column in _names(given["input_sequences"]).items():
        steps = row.example[column]
        blank = (given.get("padding_values") or {}).get(name, 0)
        window = np.full((left + unroll + right, *steps.shape[1:]), blank, steps.dtype)
        real = np.zeros(left + unroll + right, bool)
        for place in range(left + unroll + right):
            step = begin + place - left
            if left + own <= place < left + unroll:
                continue  # a short first segment: padding, then the context after it
            if place >= left + unroll:
                step = after + place - left - unroll
            if 0 <= step < len(steps):
                window[place] = steps[step]
            real[place] = 0 <= step < total
        listed[f"sequences:{name}"] = window
        if given.get("mask"):
            listed[f"sequences:{name}_mask"] = real
    for name, column in _names(given["input_context"]).items():
        listed[f"context:{name}"] = row.example[column]
    if after := given.get("map_segments"):
        parts = [
            {n.removeprefix(prefix): listed[n] for n in listed if n.startswith(prefix)}
            for prefix in ("sequences:", "context:")
        ]
        for name in parts[0]:
            del listed[f"sequences:{name}"]
        drawn = _generator(after.get("seed"), -1, row, one.at)
        made = _function(after["fn"])(*parts, *drawn)
        if after.get("mask"):
            real = {n: np.ones(len(v), bool) for n, v in made.items() if n in VARYING}
            made |= {f"{name}_mask": value for name, value in real.items()}
        listed |= {f"sequences:{name}": value for name, value in made.items()}
    for name, value in given["initial_states"].items():
        state = row.example[value] if isinstance(value, str) else np.asarray(value)
        for sequence in range(one.at):
            state = saved(state, sequence)
        listed[f"state:{name}"] = state
    one.at += 1
    return listed
