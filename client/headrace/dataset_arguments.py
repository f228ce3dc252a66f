"""Check the arguments of ``feed.as_dataset``, before TensorFlow is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .feed import Feed


def checked(feed: Feed, facts: Sequence[str], tokens: bool) -> list[str]:
    """Return the facts that elements of a dataset hold.

    ValueError where there can be no dataset.
    """
    if not isinstance(facts, Iterable):
        raise TypeError(f"facts={facts!r:.80} is not a list of names")
    if not isinstance(tokens, bool):
        raise TypeError(f"tokens={tokens!r:.80} is not True or False")
    wanted = [facts] if isinstance(facts, str) else list(facts)
    _ = feed.schema
    if wanted and feed._of_segments:
        raise ValueError(f"facts={facts!r:.80}: a batch of segments tells all that is known of it")
    if feed._saving is not None and feed._saving.lanes is not None:
        raise ValueError(
            "as_dataset(): the states of this feed stay with the trainer, and TensorFlow asks for "
            "batches before the ones before them are saved; declare the feed with "
            "state_placement='server', or iterate over the feed"
        )
    for name in wanted:
        if name not in feed.facts:
            known = ", ".join(feed.facts) or "none"
            raise ValueError(
                f"facts: {name!r:.80} is not a fact of the rows of this feed; it has {known}"
            )
        if name in feed.schema:
            raise ValueError(f"facts: {name!r} is a column of the feed too")
    if tokens and "token" in feed.schema:
        raise ValueError("tokens=True: the feed has a column 'token' too; select other columns")
    if feed._framework.name != "tf":
        raise ValueError(
            f'as_dataset() needs framework="tf"; this feed has {feed._framework.name!r}'
        )
    for name, field in feed.schema.items():
        if field.ragged and field.dtype.startswith("float8"):
            raise ValueError(
                f"as_dataset(): column {name!r} is {field}, and datasets of TensorFlow hold no "
                "ragged tensors of float8; iterate over the feed, or pad with dynamic_pad=True"
            )
    return wanted
