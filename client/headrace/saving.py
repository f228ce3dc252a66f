"""Batches of segments between their taking and the save of their last state.

    take ──► in hand ──► save_state … save_state ──► handed to the session ──► answered, or refused
                │                    │
                │ the feed is left   └ a mistake: told at once, nothing sent, the batch stays in hand
                ▼
            given back

Any thread may save, and several batches may be in hand.  A state of a batch is claimed before its
bytes are copied, so that of two saves one stands and the other is refused.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import numpy as np

from headrace_proto.dtypes import BYTES
from headrace_proto.errors import HeadraceError, StaleLease, StateError, from_code

from .batch import Framework
from .lanes import Lanes, parts_of
from .link import Link
from .segment_layout import SegmentLayout
from .segments import SegmentBatch
from .session import Received, Session
from .state_block import BlockMaker, Upload
from .values import NUMPY, State, host, presented, strings_in

__all__ = ["Saving"]

_KEYS_TOLD = 3


class Saving:
    """The batches in hand of one feed, and what becomes of their states."""

    def __init__(
        self,
        link: Link,
        layout: SegmentLayout,
        framework: Framework,
        check: Callable[[], None],
    ) -> None:
        self.layout = layout
        self.lanes = Lanes(framework) if layout.kept else None
        self._link = link
        self._framework = framework
        self._check = check
        self._maker = BlockMaker(layout.states)
        self._in_hand: dict[int, SegmentBatch] = {}
        self._flushing = threading.Lock()
        link.explain = self.explain

    # Taking

    @property
    def claim(self) -> Callable[[Session], Received | None]:
        """How the next batch is taken from the session."""
        return Session.take if self.lanes is None else self.lanes.claim

    def begin(self, received: Received, block: np.ndarray) -> SegmentBatch:
        """A batch that was taken is in the trainer's hands."""
        batch = SegmentBatch(
            received, self.layout, block, self._framework, self, time.monotonic()
        )
        if self.lanes is not None:
            batch._going = self.lanes.going(batch)
        self._in_hand[batch.token] = batch
        return batch

    def reject(self, received: Received) -> None:
        """A batch that was taken can not be used."""
        delivery = received.delivery
        if self.lanes is not None:
            self.lanes.release(delivery.partition, delivery.token)
        self._link.give_back(delivery.token)

    def give_back(self) -> None:
        """The trainer leaves: whatever is not saved goes to others."""
        while self._in_hand:
            token, _ = self._in_hand.popitem()
            self._link.give_back(token)

    # Saving

    def save_token(self, token: Any, values: Mapping[str, Any]) -> None:
        """Save states of the batch with this token."""
        self._check()
        batch = self._in_hand.get(int(token))
        if batch is None:
            held = sorted(self._in_hand)
            raise StateError(
                f"token={int(token)} is no batch in this trainer's hands that waits for states; "
                f"those are {held[:20]}"
            )
        self.save(batch, values)

    def save(self, batch: SegmentBatch, values: Mapping[str, Any]) -> None:
        """Save states of a batch: all of these, or none."""
        self._check()
        ready = [self._ready(batch, name, value) for name, value in values.items()]
        if self.lanes is not None and batch._opening != self._link.session.openings:
            self._lose(batch)
        with batch._lock:
            for state, _ in ready:
                self._check_first(batch, state.name)
            try:
                if self.lanes is None:
                    self._copy(batch, ready)
            except BaseException:
                batch._upload = None if not batch._saved else batch._upload
                raise
            batch._saved.update((state.name, value) for state, value in ready)
            if len(batch._saved) < len(self.layout.states):
                return
            self._hand_over(batch)

    def _ready(self, batch: SegmentBatch, name: str, value: Any) -> tuple[State, Any]:
        """A value that may be saved, as it will be; or what is wrong with it."""
        state = self.layout.states.get(name)
        if state is None:
            known = list(self.layout.states)
            raise KeyError(f"{name!r} is not a state of this feed; it has {known}")
        self._check_first(batch, name)
        own = self._framework
        face, value = presented(state, value, batch.rows, own)
        if self.lanes is None:
            return state, host(state, face, value)
        if state.dtype == BYTES:
            array = host(state, face, value)
            strings_in(state, array)
            return state, (own.kept(value) if face is own else own.strings(array))
        if face is own:
            return state, _kept(state, own, value)
        # Another framework's: what comes back is of the feed's.
        array = np.array(host(state, face, value), order="C")
        return state, own.numbers(array, state.dtype)
