"""The words by which the processes of a server speak of a feed that is taken back."""

from __future__ import annotations

from headrace_proto.errors import FeedInUse

#: Takes the place of a snapshot's name: the state before the first batch.
BEGINNING = "beginning"

#: An owner's report to the other owners: batches of an earlier server are done …
USED = "used"
#: … and a trainer has committed since the feed was taken back.
TOUCHED = "touched"


def in_use(feed: str, trainers: str) -> FeedInUse:
    """Return the error for a feed that is not started from its beginning."""
    return FeedInUse(
        f"feed {feed!r} can not be started from its beginning: {trainers}.  Close those trainers, "
        f"or undo their work by headrace restart {feed} --force, "
        f"Server.restart({feed!r}, force=True)"
    )
