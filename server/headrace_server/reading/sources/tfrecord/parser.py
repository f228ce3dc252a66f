"""Records to columns: whole groups of records by their form, and the rest one by one.

records ─► forms: 0.1 µs for each header ─► walk each: 20 µs
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from headrace_proto.errors import listed, near

from ....pipeline.declaration import Feature
from ...chunk import Faults
from ...columns import Column, Rows
from .forms import Form, Unusual
from .values import Fault, Filler, WantedFeature
from .walk import Malformed, Span, names_in, walk

#: Maximum number of forms that are compared with the records of a chunk.
_MOST_FORMS = 16
#: Least number of records for a form: to learn one costs as much as to walk some.
_LEAST_RECORDS = 8
#: Average bytes of records that are all read before they are compared.
_SMALL = 1024


class ExampleParser:
    """Parses chunks of records; remembers forms from one chunk to the next."""

    def __init__(self, features: Mapping[str, Feature]) -> None:
        self._wants: tuple[WantedFeature, ...] = tuple(
            map(WantedFeature, features, features.values())
        )
        self._wanted = {want.name.encode(): i for i, want in enumerate(self._wants)}
        self._listed = {
            want.name.encode(): i for i, want in enumerate(self._wants) if want.sequence
        }
        self._forms: list[Form] = []

    def parse(
        self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> tuple[dict[str, Column], Faults]:
        """Return columns of the records that lie in ``data`` (uint8) at these bytes, and faults.

        Faults are those of unusable records, by row; their values in the columns are arbitrary.
        """
        fillers = [Filler(want, data, starts.size) for want in self._wants]
        faults: Faults = {}
        for row in self._matched(data, starts, starts + lengths, fillers).tolist():
            start = int(starts[row])
            record = data.data[start : start + int(lengths[row])]
            try:
                found = self._walked(record)
                for filler, values in zip(fillers, found, strict=True):
                    if values is not None:
                        filler.add_one(row, start, values)
            except Malformed as error:
                text = f"is no tf.train.Example or SequenceExample: in the record, {error}"
                faults[row] = ("corrupt_record", text)
            except Fault as error:
                reason, text = error.args
                if reason == "missing_feature":
                    names = names_in(record)
                    lacks = next((w.name for w in self._wants if w.name not in names), "")
                    text += f"; the record has {listed(names) or 'no feature'}{near(lacks, names)}"
                faults[row] = (reason, text)

        both = zip(self._wants, fillers, strict=True)
        return {want.name: filler.finish(faults) for want, filler in both}, faults

    def _walked(self, record: memoryview) -> list[Sequence[Span] | None]:
        """Return the values of a record by slot, None for defaults.  Malformed, or Fault."""
        found = walk(record, self._wanted, self._listed)
        return [want.spans_of(values) for want, values in zip(self._wants, found, strict=True)]

    def _matched(
        self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray, fillers: list[Filler]
    ) -> np.ndarray:
        """Add the records that have a form; return the rows of the others."""
        rows, odd = np.arange(starts.size), list[int]()
        _fetch(data, starts, stops)
        matched = Counter[Form]()
        known = iter(self._forms)
        while len(odd) < _LEAST_RECORDS <= rows.size and len(matched) < _MOST_FORMS:
            form = next(known, None) or self._learned(data[starts[rows[0]] : stops[rows[0]]])
            if form is None:
                odd.append(int(rows[0]))
                rows = rows[1:]
                continue
            good, spans = form.match(data, starts[rows], stops[rows])
            chosen: Rows = slice(None) if good.all() else good
            taken, rows = rows[chosen], rows[~good]
            matched[form] = taken.size
            for slot, begins, sizes in spans if taken.size else ():
                fillers[slot].add(taken, begins[chosen], sizes[chosen], form.slots[slot])
        # Those that serve most records come first.  Room is made where there is none for another.
        least = 1 if len(matched) == _MOST_FORMS else 0
        self._forms = [form for form, n in matched.most_common() if n >= least] + [*known]
        return np.concatenate([np.array(odd, np.int64), rows])

    def _learned(self, record: np.ndarray) -> Form | None:
        """Return the form of a record; None where it has none, or a fault."""
        try:
            found = self._walked(record.data)
            form = Form(record, self._wants)
        except (Malformed, Fault, Unusual):
            return None
        itself, _ = form.match(record, np.array([0]), np.array([record.size]))
        known = form.slots.keys() == {i for i, values in enumerate(found) if values is not None}
        return form if known and itself.all() else None


def _fetch(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> None:
    """Bring small records that lie side by side into the processor's cache.

    To read them in their order takes a fraction of the time for which comparisons at single places
    of each would wait for memory.
    """
    if starts.size:
        low, high = int(starts.min()), int(stops.max())
        if high - low < _SMALL * starts.size:
            data[low:high].max()
