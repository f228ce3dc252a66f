"""Records to columns: whole groups of records by layout, and the rest one by one.

    records ─► of one length: layouts ─► of the same features: templates ─► walk each
                   match: 0.2 µs             match: 1 µs                      20 µs

Records that match a layout or template are taken as arrays; the others go on.  A layout or template
that is missing is learned from one of the records that need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.columns import Column
from headrace_server.reading.reader import Faults

from .example_columns import Fault, Filler, WantedFeature
from .example_layouts import RecordLayout, Template, learn_layout, learn_template
from .example_wire import Malformed, Run, walk

#: Smaller groups of one length are left to templates: matching and gathering costs 50 µs per group.
_MIN_GROUP = 16
#: Maximum layouts remembered per length, and lengths.  With varints one length has several layouts.
_PER_LENGTH = 8
_LENGTHS = 1024
#: Maximum templates remembered, and least number of rows for one: 100 µs against 20 µs per row.
_TEMPLATES = 4
_MIN_WALK = 8
#: Mean size, in bytes, up to which ``_fetch`` reads whole records.
_SMALL_RECORD = 1024
_NONE = np.empty(0, np.int64)


class ExampleParser:
    """Parses chunks of records; remembers layouts from one chunk to the next."""

    def __init__(self, features: Mapping[str, Feature], feature_lists: bool) -> None:
        """``feature_lists`` False: ignore the second field of the message (Example)."""
        self._wants: tuple[WantedFeature, ...] = tuple(
            map(WantedFeature, features, features.values())
        )
        self._wanted = {want.name.encode(): i for i, want in enumerate(self._wants)}
        self._listed = {
            want.name.encode(): i
            for i, want in enumerate(self._wants)
            if want.sequence and feature_lists
        }
        self._kinds = [want.kind for want in self._wants]
        self._templates: list[Template] = []
        self._layouts: dict[int, list[RecordLayout]] = {}

    def parse(
        self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> tuple[dict[str, Column], Faults]:
        """Return columns of the records that lie in ``data`` (uint8) at these bytes, and the faults
        of unusable
        records by row; their values in the columns are arbitrary."""
        fillers = [Filler(want, data, starts.size) for want in self._wants]
        faults: Faults = {}
        rest = np.arange(starts.size)
        if data.size >= 8:
            _fetch(data, starts, lengths)
            rest = self._add_groups(data, starts, lengths, fillers)
            rest = self._add_templated(data, starts, lengths, rest, fillers)
        for row in rest.tolist():
            start = int(starts[row])
            try:
                runs = self._walked(data.data[start : start + int(lengths[row])])
                for filler, values in zip(fillers, runs, strict=True):
                    if values is not None:
                        filler.add_one(row, start, values)
            except Malformed as error:
                text = f"is no tf.train.Example or SequenceExample: {error} of the record"
                faults[row] = ("corrupt_record", text)
            except Fault as error:
                faults[row] = error.args

        names = (want.name for want in self._wants)
        return {n: f.finish(faults) for n, f in zip(names, fillers, strict=True)}, faults

    def _walked(
        self, record: memoryview, opaque: list[tuple[int, int]] | None = None
    ) -> list[Sequence[Run] | None]:
        """Return the values of a record by slot, None for defaults.  Malformed, or Fault."""
        found = walk(record, self._wanted, self._listed, opaque)
        return [want.runs_of(values) for want, values in zip(self._wants, found, strict=True)]

    def _add_groups(
        self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, fillers: list[Filler]
    ) -> np.ndarray:
        """Add the records with known layouts; return the rows of the others."""
        data_words = np.ndarray((data.size - 7,), "<u8", data, 0, (1,))
        groups, rest = _by_length(lengths)
        if len(self._layouts) > _LENGTHS:
            self._layouts.clear()
        for length, rows in groups:
            known = self._layouts.setdefault(length, [])
            for attempt in range(_PER_LENGTH):
                if rows.size < _MIN_GROUP or length < 8:
                    break
                layout = known[attempt] if attempt < len(known) else None
                if layout is None:
                    start = int(starts[rows[0]])
                    layout = self._learn(data[start : start + length], known)
                if layout is None:
                    rest.append(rows[:1])
                    rows = rows[1:]
                    continue
                at = starts if rows.size == starts.size else starts[rows]
                same = layout.matches(data_words, at)
                if same.all():
                    taken, rows = rows, rows[:0]
                else:
                    taken, rows, at = rows[same], rows[~same], at[same]
                for filler, spans in zip(fillers, layout.spans, strict=True):
                    if spans is not None:
                        filler.add(taken, at[:, None] + spans[0], spans[1])
            rest.append(rows)
        return np.sort(np.concatenate([_NONE, *rest]))

    def _add_templated(
        self,
        data: np.ndarray,
        starts: np.ndarray,
        lengths: np.ndarray,
        rows: np.ndarray,
        fillers: list[Filler],
    ) -> np.ndarray:
        """Add the rows that have a template; return the others."""
        stops = starts + lengths
        odd: list[int] = []
        tried = 0
        while tried < _TEMPLATES and len(odd) < _MIN_WALK <= rows.size:
            if tried == len(self._templates):
                bounds = int(starts[rows[0]]), int(stops[rows[0]])
                learned = learn_template(data, bounds, self._wanted, self._kinds)
                if learned is None or not self._completes(learned):
                    odd.append(int(rows[0]))
                    rows = rows[1:]
                    continue
                self._templates.append(learned)
            good, spans = self._templates[tried].match(data, starts[rows], stops[rows])
            tried += 1
            for slot, (begins, sizes) in spans.items():
                fillers[slot].add(rows[good], begins[good][:, None], sizes[good][:, None])
            rows = rows[~good]
        return np.concatenate([_NONE, odd, rows]).astype(np.int64)

    def _completes(self, template: Template) -> bool:
        """Return whether every wanted feature is in the template or has a default."""
        return all(
            want.default is not None or slot in template.slots
            for slot, want in enumerate(self._wants)
        )

    def _learn(self, record: np.ndarray, known: list[RecordLayout]) -> RecordLayout | None:
        """Learn the layout of one record; return None where no other could share it."""
        opaque: list[tuple[int, int]] = []
        try:
            runs = self._walked(record.data, opaque)
        except (Malformed, Fault):
            return None
        layout = learn_layout(record, self._kinds, runs, opaque)
        if layout is not None:
            known.append(layout)
        return layout


def _fetch(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
    """Bring small records into the processor's cache, if they lie side by side.

    Reading them in their order takes a tenth of the time that comparisons at single places in each
    would wait for memory.
    """
    if starts.size:
        low, high = int(starts.min()), int((starts + lengths).max())
        if high - low < _SMALL_RECORD * starts.size:
            data[low:high].max()


def _by_length(lengths: np.ndarray) -> tuple[list[tuple[int, np.ndarray]], list[np.ndarray]]:
    """Return groups of rows of the same length, and the rows in groups that are too small."""
    if (lengths == lengths[:1]).all():
        return [(int(length), np.arange(lengths.size)) for length in lengths[:1]], []
    short = lengths.max() < 1 << 16  # sorted by their digits, in a third of the time
    order = np.argsort(lengths.astype(np.uint16) if short else lengths, kind="stable")
    ordered = lengths[order]
    edges = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    bounds = np.concatenate([[0], edges, [lengths.size]])
    begins, sizes = bounds[:-1], bounds[1:] - bounds[:-1]
    large = sizes >= _MIN_GROUP
    groups = [
        (int(ordered[begin]), order[begin : begin + size])
        for begin, size in zip(begins[large].tolist(), sizes[large].tolist(), strict=True)
    ]
    return groups, [order[np.repeat(~large, sizes)]]
