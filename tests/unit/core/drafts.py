"""Sizes of drafts, for tests."""

from headrace_server.core.plan import Draft
from headrace_server.reading.columns import row_count


def size_of(draft: Draft) -> int:
    return sum(row_count(part.rows) for part in draft.parts)
