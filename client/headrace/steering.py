"""Requests of a trainer that concern its feed as a whole: a part of ``Feed``.

    feed.drain(), set_target_probs() ─┐
    feed.stats()                      ├─► Link.ask ─► every owner ─► answers, joined
                                      ┘

Each takes effect, or counts, for all trainers of the feed.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_proto.errors import from_code

from .requests import CountReady, DrainInput, SetTargetProbs
from .waits import Link

__all__ = ["Steering"]


class Steering:
    """The requests that a ``Feed`` inherits."""

    _link: Link

    def drain(self, cancel: bool = False) -> None:
        """Close the feed's input for all trainers: what was read is still handed out.

        With ``cancel`` what is not yet a batch is dropped.
        """
        self._link.check_usable()
        self._link.ask(DrainInput(cancel))

    def set_target_probs(self, probs: Sequence[float]) -> dict[int, int]:
        """Change the proportions of classes that a stratified feed draws, for all trainers.

        Returns for each partition the number of the first batch that the new ones reach; batches
        before it are made or being made.  ValueError when the feed can not draw them.
        """
        self._link.check_usable()
        wanted = tuple(float(p) for p in probs)
        answer = self._link.ask(SetTargetProbs(wanted))
        if answer.code:
            raise ValueError(f"set_target_probs({list(wanted)}): {answer.text}")
        return dict(answer.value)

    def stats(self) -> dict[str, int]:
        """Count what is ready, incomplete and in flight, over all partitions and workers.

        Of segments, as the ``barrier`` of TensorFlow's state saver: ``ready`` and ``incomplete``
        segments (those that wait for a state), and ``in_flight`` examples, which ``capacity``
        bounds.  Of other feeds: batches that are ``ready`` and nobody has, batches ``in_flight`` in
        trainers' hands, and ``incomplete`` rows that were read and are in no batch yet.

        Batches that came ahead (``prefetch``) are in their trainer's hands.
        """
        self._link.check_usable()
        answer = self._link.ask(CountReady())
        if answer.code:
            raise from_code(answer.code, answer.text)
        return dict(answer.value)
