"""The laws by which what trainers saw is judged.

content     every batch and segment is that of the reference, with its facts
once        every row of an epoch is trained once, none is missing
order       segments come in order, each with the state that was saved last; a lane keeps its
            example to the end; an epoch with borders ends before the next one begins
stream      one trainer gets exactly the batches of the reference, partitions in turn
ranks       get rounds of one partition, epoch and bucket, and equally many
resumed     what comes after a snapshot is what the original would have given
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests import reference
from tests.combinations.declarations import MARK
from tests.combinations.runs import Draw, Place, Run
from tests.combinations.training import Taken

#: A segment, or a step of packed lanes: partition, index of insertion, number in its example.
Cell = tuple[int, int, int]
#: A row: partition, epoch where batches end with it, and its number, which copies share.  Of
#: packed rows it is a step: the number of its example, and its own.
Row = tuple[int, int, Any]

#: Shapes that leave rows in their order, and that which packs them alike for each size of batches.
_IN_ORDER = ("batch", "rejection_sample", "stratified_sample", "pack")


class Case:
    """The batches that the reference expects of a feed."""

    def __init__(self, draw: Draw, partitions: int) -> None:
        feed, run = draw.feed, draw.run
        self.feed, self.partitions, self._world = feed, partitions, run.world
        _, self._steer, self._value = run.steers or (0, "", None)
        self.since: dict[int, int] | None = None  # of a feed that was steered: see Watch
        #: Number of trainers or ranks whose batches may be incomplete at the end.
        self._most = max(run.world, run.after, run.trainers if feed.lanes else 1)
        declared = feed.declared()
        self._rows: list[list[Row]] = []
        for p in range(partitions if run.steers and not feed.segmented else 0):
            parts, (kind, given) = reference.rows_of(declared, p, partitions)
            found = [(row.epoch, int(row.example["n"])) for rows in parts for row in rows]
            if kind == "pack":
                whole = {**given, "allow_smaller_final_batch": True, "balance": None}
                in_order = replace(declared, calls=[*declared.calls[:-1], (kind, whole)])
                packed = reference.batches(in_order, p, partitions)
                found = [(one["@epoch"], step) for one in packed for step in _packed_steps(one)]
            self._rows.append([(p, epoch if feed.borders else 0, n) for epoch, n in found])
        #: Whether a change of a sampler is sought: with it the reference gives all batches.
        self._sampled = self._steer == "set_target_probs" or (
            self._steer == "set_batch_size" and feed.calls[-1][0] == reference.SAMPLERS[1]
        )
        self.batches: list[list[dict[str, Any]]] = [[] for _ in range(partitions)]
        self.cells: dict[Cell, dict[str, Any]] = {}
        self._lane_of: dict[int, list[int]] = {}
        for p in range(partitions):
            self._expect(p)

    def _expect(self, p: int, at: float = math.inf) -> int:
        """Expect of a partition what it gives if its sampler is changed after so many rows.

        Return how many rows come to the sampler.
        """
        declared, change = self.feed.declared(), reference.Change(at, {})
        samplers = [given for name, given in declared.calls if name in reference.SAMPLERS]
        for given in samplers[-1:] if self._sampled else ():
            probs = "probs" if "probs" in given else "target_probs"
            change.given[probs if self._steer == "set_target_probs" else "batch_size"] = self._value
            given["change"] = change
        self.batches[p] = reference.batches(declared, p, self.partitions)
        rows, change.rows = change.rows, 0
        if self.feed.segmented:
            self.cells = {cell: values for cell, values in self.cells.items() if cell[0] != p}
            if "lane" in self.feed.shape:
                self._lane_of[p] = reference.lane_numbers(declared, p, self.partitions)
                change.rows = 0
            for example in reference.segments(declared, p, self.partitions):
                for cell in example:
                    self.cells[p, cell["@insertion_index"], cell["@sequence"]] = cell
        return rows

    def _seek(self, since: dict[int, int], taken: Sequence[Taken]) -> Iterable[str]:
        """Expect the change of a sampler at the row of each partition that explains its batches.

        Trainers are told the first batch that may be affected, not the row.
        """
        for p in range(self.partitions) if -1 in since else since:
            own = [one for one in taken if one.values["@partition"] == p]
            came = {name for one in own for name in self._names(one)}
            self._expect(p)
            declared, rows, found = self.batches[p], 0, [(len(own) + 1, False, 0, 0, 0)]
            sure = 0 if self.feed.segmented or -1 in since else since[p]
            while len(found) - 2 < rows and min(found)[:4] != (0, False, 0, 0):
                rows = self._expect(p, at := len(found) - 1)
                wrong = (i for i, one in enumerate(own) if self._content(one))
                early = any(map(difference, declared[:sure], self.batches[p]))
                missing = {name for name in self._all - came if name[0] == p}
                lost = len(missing) if self.feed.segmented or self._lost(missing) else 0
                if "lane" in self.feed.shape and not self.feed.small:  # a lane may lack examples
                    lost = abs(len(self.batches[p]) - len(own))
                unlike = len(own) - next(wrong, len(own))
                found.append((unlike, early, lost, len(missing), at))
            *_, early, _, _, at = min(found)
            self._expect(p, at)
            if early:
                yield f"partition {p} is changed before batch {sure}"

    def broken(
        self,
        place: Place,
        run: Run,
        taken: Sequence[Taken],
        others: Sequence[Taken] | None = None,
    ) -> list[str]:
        """Return the laws that a training from the feed's beginning to its end breaks.

        ``others``: batches that other trainers had before those of the run.
        """
        alone = others is None
        return list(self._broken(place, run, taken, others or [], alone))

    def _broken(
        self,
        place: Place,
        run: Run,
        own: Sequence[Taken],
        others: Sequence[Taken],
        alone: bool,
    ) -> Iterable[str]:
        taken = [*others, *own]
        if self._sampled and self.since is not None:
            yield from self._seek(self.since, taken)
        for i, one in enumerate(taken):
            if fault := self._content(one, run if i >= len(others) else None):
                yield f"content of batch {i}, {_where(one)}: {fault}"
                return
        yield from self._once(place, run, taken)
        if self.feed.segmented:
            yield from self._in_order(run, taken, alone)
        if self.feed.borders:
            yield from self._borders(run, taken)
        if run.lone and not (run.leaves and self.feed.lanes) and alone:
            yield from self._stream(place, run, taken)
        if run.world:
            yield from self._ranks(run, own)

    # content

    def _content(self, one: Taken, run: Run | None = None) -> str:
        return self._segment(one, run) if self.feed.segmented else self._batch(one)

    def _batch(self, one: Taken) -> str:
        p, number = one.values["@partition"], one.values["@number"]
        if self.since is not None and not self._sampled:
            bucket, rows = one.values.get("@bucket", -1), len(one.values["n"])
            other = number >= self.since.get(p, number + 1)
            sizes = {self._size(bucket, other), self._size(bucket, other or -1 in self.since)}
            less = self.feed.small or "max_padded_elements" in self.feed.shape
            exact = rows in sizes or (less and rows < max(sizes))
            return "" if exact else f"it has {rows} rows, not {sizes}"
        if not 0 <= p < self.partitions or number >= len(self.batches[p]):
            return "there is no such batch"
        return difference(self.batches[p][number], one.values)

    def _size(self, bucket: int, after: bool) -> int:
        """Return the rows of a batch, before or after another size was set."""
        resized = after and self._steer == "set_batch_size"
        size = self._value if resized else self.feed.shape["batch_size"]
        return int(size[bucket // self._apart] if isinstance(size, list) else size)

    def _segment(self, one: Taken, run: Run | None) -> str:
        values, since = one.values, self.since or {}
        valid = np.array(values["@valid"], bool)
        other = values["@number"] >= since.get(values["@partition"], values["@number"] + 1)
        size = self._size(-1, other)
        # a batch that came back is made again, in another size
        less = self.feed.small or (since and not other)
        if run and (len(valid) > size or (len(valid) < size and (run.world or not less))):
            return f"it has {len(valid)} rows, not {size}"
        if run and not valid.all() and not run.world:
            return "it has empty rows"
        epochs = set()
        for row, cells in enumerate(cells_of(one)):
            got = {
                name: value[row]
                for name, value in values.items()
                if name not in ("@partition", "@number", "@epoch", "@valid", "@lane")
            }
            got.pop(f"state:{MARK}", None)
            if not cells:
                # initial states of the rows that states at a trainer begin with are no one's
                shape = self.feed.shape
                values_of = shape.get("map_segments") or shape
                for name, blank in (values_of.get("padding_values") or {}).items():
                    got[f"sequences:{name}"] = got[f"sequences:{name}"] - np.float32(blank)
                full = [n for n, v in got.items() if n[:5] != "state" and _is_full(v)]
                if full:
                    return f"empty row {row} has {full}"
                continue
            blanks = self.feed.shape.get("padding_values") or {}
            steps = _steps(got) if "@segment_ids" in got else [got]
            if "@segment_ids" in got and (fault := _fault_of_packed(got, len(cells), blanks)):
                return f"row {row}: {fault}"
            for cell, step in zip(cells, steps, strict=True):
                if cell not in self.cells:
                    return f"there is no segment {cell}"
                left_out = {f"state:{MARK}", *(self.cells[cell].keys() - step.keys())}
                left_out -= {n for n in left_out if n[:5] != "state"}  # which a row has once
                want = {n: v for n, v in self.cells[cell].items() if n not in left_out}
                epochs.add(want.pop("@epoch"))
                if fault := difference(want, _without_padding(step, want)):
                    return f"row {row}: {fault}"
        if epochs and values["@epoch"] not in epochs:
            return f"its epoch is {values['@epoch']}, of its rows {epochs}"
        if self.feed.borders and len(epochs) > 1:
            return f"it has rows of epochs {epochs}"
        return ""

    # once

    def _once(self, place: Place, run: Run, taken: Sequence[Taken]) -> Iterable[str]:
        if self.since is not None and not self.feed.segmented and not self._sampled:
            yield from self._rows_once(taken)
            return
        sure = Counter(name for one in taken if one.state == "done" for name in self._names(one))
        maybe = {name for one in taken if one.state == "saved" for name in self._names(one)}
        twice = [name for name, count in sure.items() if count > 1]
        if twice and not self._rewinds(run):
            yield f"committed twice: {sorted(twice)[:5]}"
        missing = self._all - sure.keys() - maybe
        if self.since is not None and self._steer == "drain":
            missing = set()
        if "lane" in self.feed.shape and not self.feed.small:
            missing = set()  # all that come after the last example of any lane
        if self.feed.segmented and missing and not self.feed.small:
            bound = self.feed.shape["batch_size"] * self._most
            lost = Counter((p, self._epoch(p, i)) for p, i in {name[:2] for name in missing})
            if all(count < bound for count in lost.values()):
                missing = set()
        if missing and (self.feed.segmented or self._lost(missing)):
            yield f"{len(missing)} of {len(self._all)} are lost: {sorted(missing)[:5]}"

    def _lost(self, missing: set[Any]) -> bool:
        """Return whether more of these batches are missing than those of incomplete rounds."""
        rest = Counter((p, *self._round_of(p, number)) for p, number in missing)
        return any(count >= self._most for count in rest.values())

    def _rows_once(self, taken: Sequence[Taken]) -> Iterable[str]:
        """Judge a feed that was steered by rows, since other ones are together in a batch."""
        want, sure, maybe = Counter[Row](), Counter[Row](), Counter[Row]()
        for rows in self._rows:
            want.update(rows)
        for one in taken:
            {"done": sure, "saved": maybe}.get(one.state, Counter[Row]()).update(self._rows_of(one))
        if more := sure - want:
            yield f"rows come more often than they should: {[*more][:5]}"
        lost = Counter(row[:2] for row in (want - sure - maybe).elements())
        most = 0 if self.feed.small and self._most == 1 else self._most * self._rows_together()
        if self._steer != "drain" and any(count > most for count in lost.values()):
            yield f"rows of (partition, epoch) are lost: {dict(lost)}"

    def _rows_of(self, one: Taken) -> list[Row]:
        p, epoch = one.values["@partition"], one.values["@epoch"] if self.feed.borders else 0
        packed = self.feed.calls[-1][0] == "pack"
        rows = _packed_steps(one.values) if packed else map(int, one.values["n"])
        return [(p, epoch, row) for row in rows]

    @property
    def _apart(self) -> int:
        """Number of sources of which each has batches of its own."""
        first, given = self.feed.calls[0]
        return len(given["sources"]) if first == "mix" and given["by"] == "batch" else 1

    def _rows_together(self) -> int:
        """Return the rows of a batch of each bucket, of each source that has its own batches."""
        shape, both = self.feed.shape, (False, True)
        buckets = (
            shape.get("num_buckets", 1 + len(shape.get("bucket_boundaries", ()))) * self._apart
        )
        rows = sum(max(self._size(b, after) for after in both) for b in range(buckets))
        return rows * int(shape.get("length", 1))  # steps of packed ones

    @property
    def _all(self) -> set[tuple[int, ...]]:
        """The names of all segments, or else of all batches."""
        if self.feed.segmented:
            return set(self.cells)
        return {(p, n) for p, batches in enumerate(self.batches) for n in range(len(batches))}

    def _names(self, one: Taken) -> list[tuple[int, ...]]:
        if self.feed.segmented:
            return [cell for cells in cells_of(one) for cell in cells]
        return [(one.values["@partition"], one.values["@number"])]

    def _epoch(self, partition: int, index: int) -> int:
        return self.cells[partition, index, 0]["@epoch"] if self.feed.borders else 0

    def _round_of(self, partition: int, number: int) -> tuple[int, int]:
        """Return what the batches of a round have in common."""
        batch = self.batches[partition][number]
        return batch["@epoch"] if self.feed.borders else 0, batch.get("@bucket", -1)

    def _rewinds(self, run: Run) -> bool:
        """Return whether segments may be trained again: states died with a trainer."""
        return bool(run.dies) and self.feed.states == "trainer"

    # order

    def _in_order(self, run: Run, taken: Sequence[Taken], alone: bool) -> Iterable[str]:
        counted: dict[tuple[int, int], int] = defaultdict(int)
        marks: dict[Cell, list[int]] = defaultdict(list)
        lanes: dict[tuple[int, int, int], Cell | None] = {}
        unsure = {name for one in taken if one.state == "saved" for name in self._names(one)}
        dropped = set() if self.feed.small else self._unfinished(taken)
        moved = run.dies or run.leaves or not alone or any(one.later for one in taken)
        for one in taken:
            every = cells_of(one)
            for row, at, cell in [
                (r, i, c) for r, of in enumerate(every) for i, c in enumerate(of)
            ]:
                p, index, number = cell
                fresh = one.state == "taken" or self._rewinds(run) or cell in unsure
                within = every[row][at - 1] if at else None
                came = number if within == (p, index, number - 1) else counted[p, index]
                if number > came or (number < came and not fresh):
                    yield f"segment {cell} comes after {came} segments"
                    return
                if one.state != "taken":
                    counted[p, index] = number + 1
                if one.marks is not None and at == 0:
                    before = int(one.values[f"state:{MARK}"][row])
                    known = marks[p, index, number - 1] if number else [0]
                    if before not in (known if self._rewinds(run) else known[-1:]):
                        yield f"segment {cell} has not the state that was saved last"
                        return
                if one.marks is not None:
                    marks[cell].append(int(one.marks[row]))
                if not self.feed.lanes:
                    continue
                lane = one.values["@lane"][row]
                declared = (
                    self._lane_of[p][index + 2**63 - (p << 51)] if p in self._lane_of else None
                )
                size = self.feed.shape["batch_size"]
                rank = one.who if (run.world if alone or one.later else self._world) else 0
                if declared not in (None, rank * size + lane % size):
                    yield f"segment {cell} of {one.who} is in lane {lane}, not {declared}"
                    return
                if not 0 <= lane < one.lanes:
                    yield f"lane {lane} is not one of {one.lanes}"
                    return
                own = one.who, one.connection, int(lane)
                before_it = lanes.get(own) if within is None else within
                if within is not None and self.cells[within]["@last"]:
                    before_it = None
                if before_it in dropped and (number == 0 or moved):
                    before_it = None
                if number and (before_it is None and moved):
                    pass
                elif (before_it is None) != (number == 0) or before_it not in (
                    None,
                    (p, index, number - 1),
                ):
                    yield f"lane {own} has segment {cell} after {before_it}"
                    return
                if one.state != "taken":
                    lanes[own] = None if self.cells[cell]["@last"] else cell

    def _unfinished(self, taken: Sequence[Taken]) -> set[Cell | None]:
        """Return the last segment that came of each example that was dropped unfinished."""
        came = {cell for one in taken for cells in cells_of(one) for cell in cells}
        return {
            (p, index, number)
            for p, index, number in came
            if (p, index, number + 1) in self.cells.keys() - came
        }

    def _borders(self, run: Run, taken: Sequence[Taken]) -> Iterable[str]:
        if run.dies or run.leaves:  # a batch that was returned comes later
            return
        at: dict[tuple[int, int], int] = defaultdict(int)
        for one in taken:
            who = -1 if self.feed.segmented else one.who
            epoch = one.values["@epoch"]
            if self.feed.segmented and not any(cells_of(one)):
                continue
            if epoch < at[who, one.connection]:
                yield f"epoch {epoch} goes on after {at[who, one.connection]}"
                return
            at[who, one.connection] = epoch

    # streams

    def _stream(self, place: Place, run: Run, taken: Sequence[Taken]) -> Iterable[str]:
        ahead = run.prefetch != 0 and self.feed.states == "server"
        if self.since is not None and not self._sampled:
            if self.feed.calls[-1][0] in _IN_ORDER and not run.any_order:
                yield from self._rows_in_order(taken)
            return
        if run.any_order or (self.feed.segmented and (ahead or run.hold > 0 or place.events)):
            return
        order = []
        counts: Counter[tuple[int, int]] = Counter()
        for p, wanted in enumerate(self.batches):
            own = [one.values for one in taken if one.values["@partition"] == p]
            for number, (want, got) in enumerate(zip(wanted, own, strict=False)):
                same = {**want, "@number": got["@number"]} if self.feed.segmented else want
                if fault := difference(same, _without_mark(got)):
                    yield f"stream of partition {p}, batch {number}: {fault}"
                    return
            if len(own) != len(wanted):
                yield f"partition {p} has {len(own)} batches, not {len(wanted)}"
                return
        for one in taken:
            p = one.values["@partition"]
            epoch = one.values["@epoch"] if self.feed.borders else 0
            order.append((epoch, counts[p, epoch], p))
            counts[p, epoch] += 1
        if not self.feed.lanes and order != sorted(order):
            yield f"partitions do not take turns: {[(n, p) for _, n, p in order]}"

    def _rows_in_order(self, taken: Sequence[Taken]) -> Iterable[str]:
        if self.feed.shape.get("balance") or self._apart > 1 or self._steer == "set_weights":
            return
        if self._steer == "drain" and self.feed.calls[-1][0] == "pack":
            return  # rows are closed as they are
        came = defaultdict[tuple[int, ...], list[Row]](list)
        for row in (row for one in taken for row in self._rows_of(one)):
            came[row[:2]].append(row)
        for (p, epoch), rows in came.items():
            want = [row for row in self._rows[p] if row[1] == epoch]
            if rows != want[: len(rows)]:
                at = next(i for i, row in enumerate(rows) if row not in want[i : i + 1])
                yield f"row {at} of partition {p}, epoch {epoch}, is number {rows[at][2]}"
                return

    def _ranks(self, run: Run, taken: Sequence[Taken]) -> Iterable[str]:
        steps = [
            [one.values for one in taken if one.who == rank and one.state != "taken"]
            for rank in range(run.world)
        ]
        apart = self._apart > 1
        if len({len(of_rank) for of_rank in steps}) != 1:
            yield f"ranks have {[len(of_rank) for of_rank in steps]} batches"
        for number, row in enumerate(zip(*steps, strict=False)):
            common = {
                (one["@partition"], one.get("@bucket", -1), *({*one["@source"]} if apart else ()))
                for one in row
            }
            if len(common) != 1:
                near = [
                    [(one["@partition"], one["@number"], one["@epoch"]) for one in of_rank]
                    for of_rank in (of[max(0, number - 3) : number + 3] for of in steps)
                ]
                yield f"step {number} has batches of (partition, bucket) {common}: {near}"
                return
            epochs = {one["@epoch"] for one in row}
            if self.feed.borders and not self.feed.segmented and len(epochs) != 1:
                yield f"step {number} has batches of epochs {epochs}"
                return


def resumed(draw: Draw, original: Sequence[Taken], again: Sequence[Taken]) -> list[str]:
    """Return the difference between two trainings that go on from a snapshot."""
    if not (draw.run.lone or draw.run.world) or draw.run.prefetch != 0:
        return []
    for who in range(draw.run.members):
        first, other = (
            [one.values for one in some if one.who == who] for some in (original, again)
        )
        for number, (want, got) in enumerate(zip(first, other, strict=False)):
            same = {n: v for n, v in want.items() if n != f"state:{MARK}"}
            if draw.feed.segmented:  # they count anew
                same["@number"] = got["@number"]
            if fault := difference(same, _without_mark(got), partition=True):
                return [f"resumed, trainer {who}, batch {number} after the snapshot: {fault}"]
        if len(first) != len(other):
            return [f"resumed: trainer {who} gets {len(other)} batches, not {len(first)}"]
    return []


def cells_of(one: Taken) -> list[list[Cell]]:
    """Return the segment of each row, or all steps of a packed one; none of a rank's empty row."""
    values = one.values
    p = values["@partition"]
    if "@segment_ids" in values:
        columns = values["@segment_ids"], values["@positions"], values["@insertion_index"]
        return [
            [(p, int(indices[i - 1]), int(at)) for i, at in zip(ids, positions, strict=True) if i]
            for ids, positions, indices in zip(*columns, strict=True)
        ]
    rows = zip(values["@valid"], values["@insertion_index"], values["@sequence"], strict=True)
    return [[(p, int(index), int(number))] if valid else [] for valid, index, number in rows]


def _packed_steps(batch: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the steps of a packed batch: of each the number of its example, and its own."""
    columns = (batch[name].tolist() for name in ("n", "segment_ids", "positions"))
    rows = zip(*columns, strict=True)
    return [(n[i - 1], at) for n, ids, steps in rows for i, at in zip(ids, steps, strict=True) if i]


def _steps(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a packed row as segments of one step; the first has the states."""
    steps = []
    for i, number in enumerate(row["@segment_ids"]):
        if not number:
            continue
        step: dict[str, Any] = {}
        for name, value in row.items():
            if name[:9] == "sequences":
                step[name] = value[i : i + 1]
            elif name[:5] == "state":
                step |= {} if i else {name: value}
            elif name not in _OF_ROWS:
                step[name] = value[number - 1]
        at, count = int(row["@positions"][i]), int(step["@total_length"])
        step["@key"] = b"%05d_of_%05d:%s" % (at, count, step["@key"])
        step |= {"@sequence": at, "@sequence_count": count, "@length": 1}
        step |= {"@left_length": 0, "@right_length": 0}
        step |= {"@first": row["@resets"][i], "@last": at + 1 == count}
        steps.append(step)
    return steps


#: Columns of a packed row that have no value for each example.
_OF_ROWS = ("@segment_ids", "@positions", "@resets", "@length", "@first", "@last")


def _fault_of_packed(row: dict[str, Any], steps: int, blanks: dict[str, Any]) -> str:
    """Return what is wrong with the marks or the padding of a packed row; "" where nothing is."""
    ids, at = row["@segment_ids"], row["@positions"]
    begins = [i for i in range(steps) if i == 0 or ids[i] > ids[i - 1]]
    count = int(ids[steps - 1])
    ends = at[steps - 1] + 1 == row["@total_length"][count - 1]
    marks = (
        ids[0] == 1 and len(begins) == count and all(np.diff(ids[:steps]) >= 0),
        all(at[i] == at[i - 1] + 1 for i in range(1, steps) if i not in begins),
        all(row["@resets"][i] == (i < steps and at[i] == 0) for i in range(len(ids))),
        all(at[i] == 0 for i in begins[1:]),
        row["@length"] == steps,
        row["@first"] == (at[0] == 0),
        row["@last"] == ends,
    )
    if not all(marks):
        return f"its marks are wrong: {marks}"
    for name, value in row.items():
        rest = value[steps:] if name[:9] == "sequences" or name in _OF_ROWS[:3] else []
        if name not in _OF_ROWS and name[:9] != "sequences" and name[:5] != "state":
            rest = value[count:]
        if any(
            _is_full(one - blanks.get(name[10:], 0) if name[10:] in blanks else one) for one in rest
        ):
            return f"{name} has {rest} where nothing is"
    return ""


def _without_padding(row: dict[str, Any], want: dict[str, Any]) -> dict[str, Any]:
    """Return a row with sequences that vary as long as they should be; a batch pads them."""
    names = [f"sequences:{name}{mask}" for name in reference.VARYING for mask in ("", "_mask")]
    return row | {n: row[n][: len(want[n])] for n in names if n in row and n in want}


def _where(one: Taken) -> str:
    who = f"{one.values['@number']} of partition {one.values['@partition']}"
    return f"{who} at trainer {one.who}"


def _without_mark(values: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in values.items() if n not in (f"state:{MARK}", "@valid")}


def _is_full(value: Any) -> bool:
    return any(np.asarray(value, object).reshape(-1).tolist())


def difference(want: dict[str, Any], got: dict[str, Any], partition: bool = False) -> str:
    """Return how two batches differ; "" where they do not."""
    want = {n: v for n, v in want.items() if n not in (f"state:{MARK}", "@valid")}
    ignored = set() if partition else {"@partition"}
    if got.keys() - ignored != want.keys():
        extra, missing = got.keys() - want.keys() - ignored, want.keys() - got.keys()
        return f"{sorted(extra)} too many, {sorted(missing)} missing"
    for name, value in want.items():
        own = got[name]
        if isinstance(value, list):
            same = len(value) == len(own) and all(map(_same, value, own))
        else:
            same = _same(value, own)
            same &= not isinstance(value, np.ndarray) or value.dtype == own.dtype
        if not same:
            return f"{name} is {own}, not {value}"
    return ""


def _same(a: Any, b: Any) -> bool:
    """Return whether two values are equal; rates may differ in the last digit."""
    if isinstance(a, np.float32) and isinstance(b, np.float32):
        return bool(np.isclose(a, b, rtol=1e-6))
    return bool(np.array_equal(a, b))
