"""A partition remembers its reads; whole servers that die show that it resumes exactly."""

from __future__ import annotations

import pytest

from headrace_server.partition.stored_examples import StoredExamples
from headrace_server.shaping.plan import Read
from tests.unit.changes import Model

CURSOR = {"position": 0, "index": 0}


def test_a_read_is_remembered_while_it_has_rows_that_are_not_done():
    record, model = StoredExamples(), Model()
    record.read(Read(0, 0, 0, 5), 0, [], CURSOR)
    record.read(Read(1, 0, 0, 5), 2, [], CURSOR)
    with pytest.raises(KeyError):
        record.reread(0)
    model.apply(record.refused(1, 0))
    assert record.reread(1)[0] == Read(1, 0, 0, 5)
    again = StoredExamples()  # of the next life, which reads one row at first
    again.resume(model.saved)
    _, marks = again.read(Read(1, 0, 0, 1), 1, [], CURSOR)
    assert marks is not None and marks.all()
    with pytest.raises(KeyError):
        again.reread(1)
