"""Records to columns: whole groups of records by layout, and the rest one by one.

    records ─► of one length: layouts ─► of the same features: templates ─► walk each
                   match: 0.2 µs             match: 1 µs                      20 µs

What matches on the way is taken as arrays, what does not goes on.  A layout or template that is
missing is learned from one of the records that need it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.columns import Column

from .example_columns import Filler, filler_of
from .example_layouts import Layout, learn_layout
from .example_templates import Template, learn_template
from .example_wants import DEFAULT, Fault, Want, wants_of
from .example_wire import Malformed, walk

__all__ = ["ExampleParser"]

#: Fewer rows of one length are left to templates: matching and gathering costs 50 µs per group.
_MIN_GROUP = 16
#: Layouts remembered per length, and in all.  Varints give the same length several layouts.
_PER_LENGTH = 8
_LAYOUTS = 1024
#: Templates remembered, and the number of rows that is worth one: 100 µs against 20 µs for each.
_TEMPLATES = 4
_MIN_WALK = 8

Faults = dict[int, tuple[str, str]]


class ExampleParser:
    """Parses chunks of records; remembers layouts from one chunk to the next."""

    def __init__(self, features: Mapping[str, Feature], feature_lists: bool) -> None:
        """``feature_lists`` False: a second field of the message is not looked at (Example)."""
        self.wants: tuple[Want, ...] = wants_of(features)
        self._wanted = {want.name.encode(): i for i, want in enumerate(self.wants)}
        self._listed = {
            want.name.encode(): i
            for i, want in enumerate(self.wants)
            if want.sequence and feature_lists
        }
        self._kinds = {i: want.kind for i, want in enumerate(self.wants)}
        self._templates: list[Template] = []
        self._layouts: dict[int, list[Layout]] = {}
        self._count = 0

    def parse(
        self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> tuple[dict[str, Column], Faults]:
        """Columns of the records that lie in ``data`` (uint8) at these bytes, and by row what is
        wrong with those that can not be used; their places in the columns hold anything."""
        faults: Faults = {}
        fillers = [filler_of(want, data, starts.size) for want in self.wants]
        rest = self._parse_groups(data, starts, lengths, fillers, faults)
        rest = self._parse_templates(data, starts, lengths, rest, fillers, faults)
        view = data.data
        for row in rest:
            start = int(starts[row])
            self._parse_one(view[start : start + int(lengths[row])], row, start, fillers, faults)

        def fault(row: int, reason: str, text: str) -> None:
            faults.setdefault(row, (reason, text))

        names = (want.name for want in self.wants)
        columns = {n: f.finish(fault) for n, f in zip(names, fillers, strict=True)}
        return columns, faults

    def _parse_templates(
        self,
        data: np.ndarray,
        starts: np.ndarray,
        lengths: np.ndarray,
        rest: list[int],
        fillers: list[Filler],
        faults: Faults,
    ) -> list[int]:
        """Adds those of the rows that have a template; gives the others."""
        rows = np.array(rest, np.int64)
        odd: list[int] = []
        tried = 0
        while tried < _TEMPLATES and len(odd) < _MIN_WALK <= rows.size and data.size >= 8:
            if tried == len(self._templates):
                start, length = int(starts[rows[0]]), int(lengths[rows[0]])
                record = data.data[start : start + length]
                learned = learn_template(record, self._wanted, self._kinds)
                if learned is None or not self._completes(learned):
                    odd.append(int(rows[0]))
                    rows = rows[1:]
                    continue
                self._templates.append(learned)
            template = self._templates[tried]
            tried += 1
            at = starts[rows]
            good, spans = template.match(data, at, at + lengths[rows])
            taken, at = rows[good], at[good]
            rows = rows[~good]
            if not taken.size:
                continue
            for slot, filler in enumerate(fillers):
                if slot in spans:
                    begins, sizes = (array[good] for array in spans[slot])
                    refused = filler.add_spans(taken, begins, sizes)
                else:
                    refused = filler.add(DEFAULT, taken, at)
                if refused is not None:
                    self._add_refused(data, slot, filler, starts, lengths, taken[refused], faults)
        odd += rows.tolist()
        return odd

    def _completes(self, template: Template) -> bool:
        """Whether every want is in the template, or has a default."""
        absent = set(self._kinds) - template.slots
        return all(self.wants[slot].default is not None for slot in absent)

    def _parse_one(
        self, record: memoryview, row: int, start: int, fillers: list[Filler], faults: Faults
    ) -> None:
        try:
            found = walk(record, self._wanted, self._listed)
            plans = [want.plan(f) for want, f in zip(self.wants, found, strict=True)]
            for filler, plan in zip(fillers, plans, strict=True):
                filler.add_one(plan, row, start)
        except Malformed as error:
            faults[row] = ("corrupt_record", _malformed(error))
        except Fault as error:
            faults[row] = (error.reason, error.text)

    def _parse_groups(
        self,
        data: np.ndarray,
        starts: np.ndarray,
        lengths: np.ndarray,
        fillers: list[Filler],
        faults: Faults,
    ) -> list[int]:
        """Adds what is alike; gives the rows that are not."""
        n = starts.size
        if n < _MIN_GROUP or data.size < 8:
            return list(range(n))
        data_words = np.ndarray((data.size - 7,), "<u8", data, 0, (1,))
        if int(lengths.min()) == int(lengths.max()):
            groups = [(int(lengths[0]), np.arange(n))]
            rest: list[int] = []
        else:
            groups, rest = _by_length(lengths)
        for length, group in groups:
            rows = group
            known = self._layouts.setdefault(length, [])
            for attempt in range(_PER_LENGTH):
                if rows.size < _MIN_GROUP or length < 8:
                    break
                if attempt < len(known):
                    layout = known[attempt]
                else:
                    learned = self._learn(data, int(starts[rows[0]]), length)
                    if learned is None:
                        rest.append(int(rows[0]))
                        rows = rows[1:]
                        continue
                    layout = self._remember(known, learned)
                at = starts if rows.size == n else starts[rows]
                same = layout.matches(data_words, at)
                if same.all():
                    taken, rows = rows, rows[:0]
                else:
                    taken, rows = rows[same], rows[~same]
                    at = at[same]
                for slot, (filler, plan) in enumerate(zip(fillers, layout.plans, strict=True)):
                    refused = filler.add(plan, taken, at) if taken.size else None
                    if refused is not None:
                        some = taken[refused]
                        self._add_refused(data, slot, filler, starts, lengths, some, faults)
            rest += rows.tolist()
        return rest

    def _add_refused(
        self,
        data: np.ndarray,
        slot: int,
        filler: Filler,
        starts: np.ndarray,
        lengths: np.ndarray,
        rows: np.ndarray,
        faults: Faults,
    ) -> None:
        """Adds to one column, one by one, the rows that it did not take as arrays."""
        for row in rows.tolist():
            start = int(starts[row])
            record = data.data[start : start + int(lengths[row])]
            try:
                found = walk(record, self._wanted, self._listed)[slot]
                filler.add_one(self.wants[slot].plan(found), row, start)
            except Malformed as error:
                faults[row] = ("corrupt_record", _malformed(error))
            except Fault as error:
                faults[row] = (error.reason, error.text)

    def _remember(self, known: list[Layout], layout: Layout) -> Layout:
        if self._count >= _LAYOUTS:
            for layouts in self._layouts.values():
                layouts.clear()
            self._layouts = {}
            self._count = 0
        known.append(layout)
        self._count += 1
        return layout

    def _learn(self, data: np.ndarray, start: int, length: int) -> Layout | None:
        """The layout of one record; None where it has none that could hold for others."""
        record = data[start : start + length]
        opaque: list[tuple[int, int]] = []
        try:
            found = walk(record.data, self._wanted, self._listed, opaque)
            plans = tuple(want.plan(f) for want, f in zip(self.wants, found, strict=True))
        except (Malformed, Fault):
            return None
        return learn_layout(record, found, plans, opaque)


def _malformed(error: Malformed) -> str:
    return f"is no tf.train.Example or SequenceExample: {error} of the record"


def _by_length(lengths: np.ndarray) -> tuple[list[tuple[int, np.ndarray]], list[int]]:
    """Groups of rows of the same length, and the rows whose group is too small."""
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    edges = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    begins = np.concatenate([[0], edges])
    ends = np.append(edges, lengths.size)
    large = ends - begins >= _MIN_GROUP
    groups = [
        (int(ordered[a]), order[a:b])
        for a, b in zip(begins[large].tolist(), ends[large].tolist(), strict=True)
    ]
    rest = order[np.repeat(~large, ends - begins)]
    return groups, rest.tolist()
