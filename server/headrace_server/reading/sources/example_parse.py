"""Records to columns: whole groups of records by layout, and the rest one by one.

    records ─► of one length: layouts ─► of the same features: templates ─► walk each
                   match: 0.2 µs             match: 1 µs                      20 µs

Records that match a layout or template are taken as arrays; the others go on.  A layout or template
that is missing is learned from one of the records that need it.

Each length needs a layout of its own.  Where a chunk has more than a few lengths, templates come
first, but for some chunks after one most of whose records match none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from headrace_proto.errors import near
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.columns import Column
from headrace_server.reading.reader import Faults

from .example_columns import NO_NUMBERS, Fault, Filler, WantedFeature
from .example_layouts import RecordLayout, Template, learn_layout, learn_template
from .example_wire import Malformed, Run, names_in, walk

#: Smaller groups of one length are left to templates: matching and gathering costs 50 µs per group.
_MIN_GROUP = 16
#: Number of lengths in a chunk up to which a layout for each is quicker than a template for all:
#: where layouts are all that is needed, and where templates match some of the records anyway.
_FEW_LENGTHS, _FEW_BESIDE_OTHERS = 6, 1
#: Number of chunks of many lengths that are read by layouts after one that matched no templates.
_LAYOUTS_FIRST = 16
#: Maximum layouts remembered per length, and lengths.  With varints one length has several layouts.
_PER_LENGTH = 8
_LENGTHS = 1024
#: Maximum templates remembered, and least number of rows for one: 100 µs against 20 µs per row.
_TEMPLATES = 4
_MIN_WALK = 8
#: Maximum number of features that a fault lists.
_LISTED = 20
#: Mean size, in bytes, up to which ``_fetch`` reads whole records.
_SMALL_RECORD = 1024

Form = RecordLayout | Template
#: Returns the form of the record between two bytes; None where no other has it.
Learn = Callable[[np.ndarray, int, int], Form | None]


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
        self._templates: list[Form] = []
        self._layouts_first = 0  # number of chunks until templates may come first again
        self._layouts: dict[int, list[Form]] = {}

    def parse(
        self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> tuple[dict[str, Column], Faults]:
        """Return columns of the records that lie in ``data`` (uint8) at these bytes, and faults.

        Faults are those of unusable records, by row; their values in the columns are arbitrary.
        """
        fillers = [Filler(want, data, starts.size) for want in self._wants]
        faults: Faults = {}
        rest = np.arange(starts.size)
        if data.size >= 8:
            _fetch(data, starts, lengths)
            rest = self._matched(data, starts, starts + lengths, fillers)
        for row in rest.tolist():
            start = int(starts[row])
            record = data.data[start : start + int(lengths[row])]
            try:
                runs = self._walked(record)
                for filler, values in zip(fillers, runs, strict=True):
                    if values is not None:
                        filler.add_one(row, start, values)
            except Malformed as error:
                text = f"is no tf.train.Example or SequenceExample: {error} of the record"
                faults[row] = ("corrupt_record", text)
            except Fault as error:
                reason, text = error.args
                if reason == "missing_feature":
                    text += _listing(
                        tuple(names_in(record)), tuple(want.name for want in self._wants)
                    )
                faults[row] = (reason, text)

        names = (want.name for want in self._wants)
        return {n: f.finish(faults) for n, f in zip(names, fillers, strict=True)}, faults

    def _walked(
        self, record: memoryview, opaque: list[tuple[int, int]] | None = None
    ) -> list[Sequence[Run] | None]:
        """Return the values of a record by slot, None for defaults.  Malformed, or Fault."""
        found = walk(record, self._wanted, self._listed, opaque)
        return [want.runs_of(values) for want, values in zip(self._wants, found, strict=True)]

    def _matched(
        self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray, fillers: list[Filler]
    ) -> np.ndarray:
        """Add the records of known layouts and templates; return the rows of the others."""

        def rest_of(rows: np.ndarray, known: list[Form], learn: Learn, most: int) -> np.ndarray:
            """Add the rows of known forms, or of those learned from one of them."""
            odd: list[int] = []
            tried = 0
            while tried < most and len(odd) < _MIN_WALK <= rows.size:
                if tried == len(known):
                    form = learn(data, int(starts[rows[0]]), int(stops[rows[0]]))
                    if form is None:
                        odd.append(int(rows[0]))
                        rows = rows[1:]
                        continue
                    known.append(form)
                every = rows.size == starts.size
                at, ends = (starts, stops) if every else (starts[rows], stops[rows])
                good, spans = known[tried].match(data, at, ends)
                tried += 1
                whole = good.all()
                taken, rows = (rows, rows[:0]) if whole else (rows[good], rows[~good])
                for slot, begins, sizes in spans:
                    if not whole:
                        begins, sizes = begins[good], sizes[good] if sizes.ndim > 1 else sizes
                    fillers[slot].add(taken, begins, sizes)
            return np.concatenate([np.array(odd, np.int64), rows]) if odd else rows

        lengths, rows = stops - starts, np.arange(starts.size)
        groups, rest = _by_length(lengths, rows)
        few = _FEW_BESIDE_OTHERS if any(map(len, rest)) else _FEW_LENGTHS
        if len(groups) > few and self._layouts_first:
            self._layouts_first -= 1
        elif len(groups) > few:
            left = rest_of(rows, self._templates, self._template, _TEMPLATES)
            self._layouts_first = 0 if 2 * left.size < rows.size else _LAYOUTS_FIRST
            groups, rest = _by_length(lengths, np.sort(left))
        if len(self._layouts) > _LENGTHS:
            self._layouts.clear()
        for length, rows in groups:
            known = self._layouts.setdefault(length, [])
            rest.append(rest_of(rows, known, self._layout, _PER_LENGTH))
        rows = np.sort(np.concatenate([NO_NUMBERS, *rest]))
        return rest_of(rows, self._templates, self._template, _TEMPLATES) if rows.size else rows

    def _layout(self, data: np.ndarray, start: int, stop: int) -> RecordLayout | None:
        """Return the layout of one record; None where no other could share it."""
        opaque: list[tuple[int, int]] = []
        record = data[start:stop]
        try:
            runs = self._walked(record.data, opaque)
        except (Malformed, Fault):
            return None
        if record.size < 8:  # bytes are compared by eights
            return None
        return learn_layout(record, self._kinds, runs, opaque)

    def _template(self, data: np.ndarray, start: int, stop: int) -> Template | None:
        """Return the template of one record; None without one that has every wanted feature."""
        learned = learn_template(data, (start, stop), self._wanted, self._kinds)
        if learned is None:
            return None
        slots = learned.slots
        wants = enumerate(self._wants)
        complete = all(slot in slots or want.default is not None for slot, want in wants)
        return learned if complete else None


@lru_cache(maxsize=16)  # many records may lack the same
def _listing(names: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    """List the features of a record that lacks a wanted one, for the text of its fault."""
    lacks = next((name for name in wanted if name not in names), "")
    listed = ", ".join(map(repr, names[:_LISTED])) + (", …" if names[_LISTED:] else "")
    return f"; the record has {listed or 'no feature'}{near(lacks, names)}"


def _fetch(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
    """Bring small records into the processor's cache, if they lie side by side.

    Reading them in their order takes a tenth of the time that comparisons at single places in each
    would wait for memory.
    """
    if starts.size:
        low, high = int(starts.min()), int((starts + lengths).max())
        if high - low < _SMALL_RECORD * starts.size:
            data[low:high].max()


def _by_length(
    lengths: np.ndarray, rows: np.ndarray
) -> tuple[list[tuple[int, np.ndarray]], list[np.ndarray]]:
    """Return groups of rows of the same length, and the rows in groups that are too small."""
    lengths = lengths[rows]
    if (lengths == lengths[:1]).all():
        return [(int(length), rows) for length in lengths[:1]], []
    short = lengths.max() < 1 << 16  # sorted by their digits, in a third of the time
    order = np.argsort(lengths.astype(np.uint16) if short else lengths, kind="stable")
    ordered, rows = lengths[order], rows[order]
    edges = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    bounds = np.concatenate([[0], edges, [lengths.size]])
    begins, sizes = bounds[:-1], bounds[1:] - bounds[:-1]
    large = sizes >= _MIN_GROUP
    groups = [
        (int(ordered[begin]), rows[begin : begin + size])
        for begin, size in zip(begins[large].tolist(), sizes[large].tolist(), strict=True)
    ]
    return groups, [rows[np.repeat(~large, sizes)]]
