"""Drafts of shapes, for tests."""

from headrace_server.reading.columns import row_count
from headrace_server.shaping.plan import Draft


def size_of(draft: Draft) -> int:
    return sum(row_count(part.rows) for part in draft.parts)


def described(shape):
    """Yield all drafts of buckets, each with its bucket and what it adds to the padding counts."""
    while True:
        before = {bucket: tuple(counts) for bucket, counts in shape.padding.items()}
        if (draft := shape.next_draft()) is None:
            return
        meta = {"bucket": draft.bucket}
        if counts := shape.padding.get(draft.bucket):
            padded, real = before.get(draft.bucket, (0, 0))
            meta |= {"padded": counts[0] - padded, "real": counts[1] - real}
        yield draft, meta
