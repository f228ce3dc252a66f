"""Sizes of drafts, for tests."""

from headrace_server.reading.columns import row_count
from headrace_server.shaping.plan import Draft


def size_of(draft: Draft) -> int:
    return sum(row_count(part.rows) for part in draft.parts)
