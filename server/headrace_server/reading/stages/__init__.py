"""The stages of a pipeline at work: between reader and shape, in the declared order.

chunk ─► begin of all ─► map ─► filter ─► rejection_sample ─► … ─► chunk

Each kind is a module here, named as the method that declares it, and a class that subclasses
``Stage``.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from headrace_proto.errors import DataError
from headrace_proto.schema import RESERVED, Field

from ...pipeline.declaration import Stage as Declared
from ...pipeline.declaration import is_theirs
from ...pipeline.examples import names_fault
from ...shaping.plan import Stages
from ..chunk import LOGS_NOTHING, BadRecords, Chunk
from ..row_functions import theirs, user_code
from ..stage import Fields, Stage


class RowStages:
    """The stages of one pipeline, for chunks of ``fields``.  ImportError where a user function
    is not found."""

    def __init__(self, stages: Sequence[Declared], fields: Fields) -> None:
        #: Rows dropped on purpose, by reason.
        self.counts = Counter[str]()
        #: Time spent, by the name of the step.
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._source = fields
        self.steps: list[Stage] = []
        #: Names of the stages that are classes of the user's.
        self._theirs: set[str] = set()
        #: The stages that change rows, in their order.
        self._changing: list[Stage] = []
        for declared in stages:
            step: Stage = declared.made()
            step.name, step.counts, step.number = declared.name, self.counts, len(self._changing)
            self.steps.append(step)
            if type(step).apply is not Stage.apply:
                self._changing.append(step)
            if is_theirs(declared.kind):
                self._theirs.add(step.name)
                with user_code(step.name, BadRecords()):
                    step.open()
            else:
                step.open()
        for name in fields:
            if name.startswith(RESERVED):
                raise DataError(
                    f"the source has a column {name!r}: names that start with {RESERVED!r} are for "
                    "what headrace adds to rows; rename it, or declare features without it"
                )
        self.fields  # noqa: B018 - DataError for a column that is missing

    def check_names(self) -> None:
        """DataError where a batch can not hold the columns by their names."""
        known = self.fields
        if known and (fault := names_fault(known)):
            raise DataError(
                f"the source has {fault}; choose others by select(names), or declare the features "
                "that are wanted"
            )

    @property
    def fields(self) -> Fields | None:
        """The schema after all stages; None until it is known."""
        known: Fields | None = self._source
        for step in self.steps:
            known = step.fields_after(known)
        return known

    @property
    def fact_fields(self) -> dict[str, Field]:
        """Return the facts of rows that the stages add."""
        known: Fields | None = self._source
        facts: dict[str, Field] = {}
        for step in self.steps:
            facts.update(step.fact_fields(known))
            known = step.fields_after(known)
        return facts

    def state(self) -> Stages:
        """Return the stages' memory of all rows so far, as plain data; None if they keep none."""
        states = [step.state() for step in self.steps]
        return states if any(state is not None for state in states) else None

    def restore(self, states: Stages) -> None:
        """Restore a result of ``state``."""
        for step, state in zip(self.steps, states or [], strict=False):
            if state is not None:
                step.restore(state)

    def apply(self, chunk: Chunk, bad: BadRecords, epoch: int = 0) -> Chunk:
        """Return the chunk after all stages: the remaining rows, in their order."""
        for step in self.steps:
            step.epoch = epoch
            chunk = step.begin(chunk)
        fields: Fields | None = self._source
        for step in self._changing:
            if not len(chunk):
                break
            assert fields is not None  # the earlier step has returned rows, so its fields are known
            began = time.monotonic()
            step.fields_after(fields)
            if step.name in self._theirs:
                with user_code(step.name, bad):
                    chunk = step.apply(chunk, bad)
                    fields = step.fields_after(fields) or {}
                    chunk = theirs(step.name, chunk, fields, bad)
            else:
                chunk = step.apply(chunk, bad)
                fields = step.fields_after(fields)
            self.seconds[step.name] += time.monotonic() - began
        if len(chunk) or (chunk.columns and not self._changing):
            return chunk
        return chunk.with_columns(Chunk.empty(self.fields or {}).columns)

    def probe(self, chunk: Chunk, bad: BadRecords) -> Chunk:
        """Return a chunk after all stages that is not used otherwise; it shows their schema.

        Rows that break a rule are ignored here; they are reported when they are read for use.
        """
        before, states = dict(self.counts), self.state()
        after = self.apply(chunk, replace(bad, skip=True, counts={}, logged=LOGS_NOTHING))
        self.counts.clear()
        self.seconds.clear()
        self.counts.update(before)
        self.restore(states)
        return after
