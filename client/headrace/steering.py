"""Requests of a trainer that concern its feed as a whole: a part of ``Feed``.

    feed.drain(), set_target_probs() ─┐
    feed.set_batch_size()             ├─► Link.ask ─► every owner ─► answers, joined
    feed.stats(), feed.progress       ┘

Each takes effect, or counts, for all trainers of the feed.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from headrace_proto.errors import from_code, kind_of

from .epochs import EpochLoops
from .feed_progress import FeedProgress, progress_of
from .requests import CountReady, DrainInput, ReadProgress, SetBatchSizes, SetTargetProbs

#: Maximum number of sizes, so that they fit the header of a message.
_MOST_SIZES = 4096


class Steering(EpochLoops):
    """The requests that a ``Feed`` inherits."""

    @abstractmethod
    def _leave_rows_open(self) -> None:
        """Let the schema allow any number of rows."""

    def drain(self, cancel: bool = False) -> None:
        """Close the feed's input for all trainers: rows already read are still handed out.

        With ``cancel`` rows that are in no batch yet are dropped.
        """
        self._link.check_usable()
        if not isinstance(cancel, bool):
            raise TypeError(f"cancel={cancel!r:.80} is not True or False")
        self._link.ask(DrainInput(cancel))

    def set_target_probs(self, probs: Sequence[float]) -> dict[int, int]:
        """Change the proportions of classes that a stratified feed draws, for all trainers.

        Returns, for each partition, the number of the first batch that the new ones can affect.
        ValueError when the feed can not draw them.
        """
        self._link.check_usable()
        try:
            if isinstance(probs, (str, bytes, Mapping, Set)):
                raise TypeError
            wanted = tuple(map(float, probs))
        except (TypeError, ValueError):
            raise TypeError(f"probs={probs!r:.80} is not a list of numbers") from None
        return self._change(SetTargetProbs(wanted), str([*wanted]))

    def set_batch_size(self, batch_size: int | Sequence[int]) -> dict[int, int]:
        """Change how many rows batches have, for all trainers: one size, or one for each bucket.

        Returns, for each partition, the number of the first batch of the new size.  ValueError
        where the feed can not have such batches: lanes and ranks of segments have a fixed number of
        rows.

        ``schema`` and later datasets of ``as_dataset`` leave the number of rows open.
        """
        self._link.check_usable()
        sizes = _sizes_of(batch_size)
        since = self._change(SetBatchSizes(sizes), repr(batch_size))
        self._leave_rows_open()
        return since

    def _change(self, change: SetBatchSizes | SetTargetProbs, given: str) -> dict[int, int]:
        answer = self._link.ask(change)
        if answer.code:
            raise ValueError(f"{change.call}({given:.80}): {answer.text}")
        return dict(answer.value)

    def stats(self) -> dict[str, int]:
        """Count ready, incomplete and in-flight batches or segments, over all workers.

        A feed of segments counts as the ``barrier`` of TensorFlow's state saver: ``ready`` and
        ``incomplete`` segments (those that wait for a state), and ``in_flight`` examples, which
        ``capacity`` bounds.  Other feeds count ``ready`` batches that no trainer has, batches
        ``in_flight`` in trainers' hands, and ``incomplete`` rows that are read and in no batch yet.
        Prefetched batches are in their trainer's hands.

        It works from any host, without HTTP.
        """
        self._link.check_usable()
        answer = self._link.ask(CountReady())
        if answer.code:
            raise from_code(answer.code, answer.text)
        return dict(answer.value)

    @property
    def progress(self) -> FeedProgress:
        """The commits of all trainers since the feed began, over restarts and on all servers.

        ``rows`` and ``batches``; ``epoch`` (from 0) of the first uncommitted rows, and ``epochs``,
        None for ever; ``fraction`` of all batches, from 0 to 1, None where the feed has no length.
        It prints as a line.  Each access asks the servers and waits for their answers, as ``stats``
        does: do not use it in every step.  It counts all commits that this trainer has sent; the
        batch in hand is not committed yet.
        """
        self._link.check_usable()
        self._link.settle()
        answer = self._link.ask(ReadProgress())
        if answer.code:
            raise from_code(answer.code, answer.text)
        return progress_of(answer.value, self._link.announced, self._link.session.world_size)


def _sizes_of(batch_size: Any) -> tuple[int, ...]:
    """Return the sizes as integers; TypeError or ValueError where no feed can have them."""
    several = isinstance(batch_size, (Sequence, np.ndarray)) and not isinstance(
        batch_size, (str, bytes)
    )
    if isinstance(batch_size, np.ndarray) and batch_size.ndim != 1:
        several = False
    given = [*batch_size] if several else [batch_size]
    if len(given) > _MOST_SIZES:
        raise ValueError(
            f"batch_size has {len(given)} sizes; the most is {_MOST_SIZES}: give one for all"
        )
    if not given:
        raise ValueError(f"batch_size={batch_size!r} is empty: give one size, or one a bucket")
    sizes = []
    for i, size in enumerate(given):
        name = f"batch_size[{i}]" if several else "batch_size"
        sizes.append(_size_of(name, size))
        if sizes[-1] >= 2**63:
            raise ValueError(f"{name}={sizes[-1]:.4g} is too large: the most is 1048576")
    return tuple(sizes)


def _size_of(name: str, value: Any) -> int:
    """Return the size as an integer; TypeError or ValueError where no batch can have it."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        rows = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name}={value!r:.80} is {kind_of(value)}; it is an int, or a list of ints"
        ) from None
    if rows < 1:
        raise ValueError(f"{name}={rows} is too small: the least is 1")
    return rows
