"""Records to columns: whole groups of records by layout, and the rest one by one.

    records ─► of one length: layouts ─► of the same features: templates ─► walk each
                   match: 0.2 µs             match: 1 µs                      20 µs

Records that match on the way are taken as arrays, the others go on.  A layout or template that is
missing is learned from one of the records that need it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.columns import Column

from .example_columns import filler_of
from .example_layouts import RecordLayout, learn_layout
from .example_templates import Template, learn_template
from .example_wants import DEFAULT, Fault, WantedFeature, want_of
from .example_wire import Malformed, walk

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
        self.wants: tuple[WantedFeature, ...] = tuple(map(want_of, features, features.values()))
        self.wanted = {want.name.encode(): i for i, want in enumerate(self.wants)}
        self.listed = {
            want.name.encode(): i
            for i, want in enumerate(self.wants)
            if want.sequence and feature_lists
        }
        self._kinds = {i: want.kind for i, want in enumerate(self.wants)}
        self._templates: list[Template] = []
        self._layouts: dict[int, list[RecordLayout]] = {}
        self._count = 0

    def parse(
        self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> tuple[dict[str, Column], Faults]:
        """Columns of the records that lie in ``data`` (uint8) at these bytes, and by row what is
        wrong with those that can not be used; their places in the columns hold anything."""
        records = _Records(self, data, starts, lengths)
        rest = self._add_templated(records, self._add_groups(records))
        for row in rest:
            records.add_one(row)
        return records.finish()

    def _add_groups(self, records: _Records) -> list[int]:
        """Add the records that are laid out alike; gives the rows of the others."""
        data, starts, lengths = records.data, records.starts, records.lengths
        n = starts.size
        if n < _MIN_GROUP or data.size < 8:
            return list(range(n))
        data_words = np.ndarray((data.size - 7,), "<u8", data, 0, (1,))
        groups, rest = _by_length(lengths)
        for length, rows in groups:
            known = self._layouts.setdefault(length, [])
            for attempt in range(_PER_LENGTH):
                if rows.size < _MIN_GROUP or length < 8:
                    break
                layout = known[attempt] if attempt < len(known) else None
                if layout is None:
                    layout = self._learn(data, int(starts[rows[0]]), known, length)
                if layout is None:
                    rest.append(int(rows[0]))
                    rows = rows[1:]
                    continue
                at = starts if rows.size == n else starts[rows]
                same = layout.matches(data_words, at)
                if same.all():
                    taken, rows = rows, rows[:0]
                else:
                    taken, rows = rows[same], rows[~same]
                    at = at[same]
                for slot, plan in enumerate(layout.plans if taken.size else ()):
                    refused = records.fillers[slot].add(plan, taken, at)
                    records.add_refused(slot, taken, refused)
            rest += rows.tolist()
        return rest

    def _add_templated(self, records: _Records, rest: list[int]) -> list[int]:
        """Add those of the rows that have a template; gives the others."""
        data, starts, stops = records.data, records.starts, records.starts + records.lengths
        rows = np.array(rest, np.int64)
        odd: list[int] = []
        tried = 0
        while tried < _TEMPLATES and len(odd) < _MIN_WALK <= rows.size and data.size >= 8:
            if tried == len(self._templates):
                bounds = int(starts[rows[0]]), int(stops[rows[0]])
                learned = learn_template(data, bounds, self.wanted, self._kinds)
                if learned is None or not self._completes(learned):
                    odd.append(int(rows[0]))
                    rows = rows[1:]
                    continue
                self._templates.append(learned)
            template = self._templates[tried]
            tried += 1
            at = starts[rows]
            good, spans = template.match(data, at, stops[rows])
            taken, at = rows[good], at[good]
            rows = rows[~good]
            for slot, filler in enumerate(records.fillers if taken.size else ()):
                if slot in spans:
                    begins, sizes = spans[slot]
                    refused = filler.add_spans(taken, begins[good], sizes[good])
                else:
                    refused = filler.add(DEFAULT, taken, at)
                records.add_refused(slot, taken, refused)
        return [*odd, *rows.tolist()]

    def _completes(self, template: Template) -> bool:
        """True if every want is in the template, or has a default."""
        absent = set(self._kinds) - template.slots
        return all(self.wants[slot].default_column is not None for slot in absent)

    def _learn(
        self, data: np.ndarray, start: int, known: list[RecordLayout], length: int
    ) -> RecordLayout | None:
        """The layout of one record, now known; None where none could hold for others."""
        record = data[start : start + length]
        opaque: list[tuple[int, int]] = []
        try:
            found = walk(record.data, self.wanted, self.listed, opaque)
            plans = tuple(want.plan(f) for want, f in zip(self.wants, found, strict=True))
        except (Malformed, Fault):
            return None
        layout = learn_layout(record, found, plans, opaque)
        if layout is not None:
            if self._count >= _LAYOUTS:
                self._layouts.clear()
                self._count = 0
            known.append(layout)
            self._count += 1
        return layout


class _Records:
    """The records of one chunk, the columns that are filled from them, and the faults found."""

    def __init__(
        self, parser: ExampleParser, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> None:
        self.data, self.starts, self.lengths = data, starts, lengths
        self.fillers = [filler_of(want, data, starts.size) for want in parser.wants]
        self._parser = parser
        self._faults: Faults = {}

    def add_one(self, row: int, only: int | None = None) -> None:
        """Add one record to all columns, or to one."""
        parser = self._parser
        start = int(self.starts[row])
        try:
            record = self.data.data[start : start + int(self.lengths[row])]
            found = walk(record, parser.wanted, parser.listed)
            slots = range(len(found)) if only is None else (only,)
            plans = [parser.wants[slot].plan(found[slot]) for slot in slots]
            for slot, plan in zip(slots, plans, strict=True):
                self.fillers[slot].add_one(plan, row, start)
        except Malformed as error:
            text = f"is no tf.train.Example or SequenceExample: {error} of the record"
            self._faults[row] = ("corrupt_record", text)
        except Fault as error:
            self._faults[row] = (error.reason, error.text)

    def add_refused(self, slot: int, rows: np.ndarray, refused: np.ndarray | None) -> None:
        """Add to one column, one by one, those of the rows that it did not take as arrays."""
        for row in () if refused is None else rows[refused].tolist():
            self.add_one(row, slot)

    def finish(self) -> tuple[dict[str, Column], Faults]:
        def fault(row: int, reason: str, text: str) -> None:
            self._faults.setdefault(row, (reason, text))

        names = (want.name for want in self._parser.wants)
        columns = {n: f.finish(fault) for n, f in zip(names, self.fillers, strict=True)}
        return columns, self._faults


def _by_length(lengths: np.ndarray) -> tuple[list[tuple[int, np.ndarray]], list[int]]:
    """Groups of rows of the same length, and the rows whose group is too small."""
    if (lengths == lengths[0]).all():
        return [(int(lengths[0]), np.arange(lengths.size))], []
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    edges = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    bounds = np.concatenate([[0], edges, [lengths.size]])
    begins, sizes = bounds[:-1], bounds[1:] - bounds[:-1]
    large = sizes >= _MIN_GROUP
    groups = [
        (int(ordered[begin]), order[begin : begin + size])
        for begin, size in zip(begins[large].tolist(), sizes[large].tolist(), strict=True)
    ]
    return groups, order[np.repeat(~large, sizes)].tolist()
