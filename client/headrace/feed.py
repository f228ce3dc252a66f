"""What a trainer works with: the ``Feed``, an iterator of batches with what can be asked of it."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from headrace_proto.errors import from_code
from headrace_proto.schema import RESERVED, Field, schema_from_wire
from headrace_proto.token import Token

from .batch import Batch, Framework, slots_of
from .blocks import Blocks, MemoryGone
from .link import Link, opened
from .requests import DrainInput, SetTargetProbs, TakeSnapshot
from .saving import Saving
from .segment_layout import SegmentLayout

__all__ = ["Feed"]

#: Waits while an exception carries a trainer out.
_HASTE_S = 5.0


class Feed:
    """A feed in a trainer's hands: an iterator of batches.

    Asking for the next batch commits the one in hand.  Leaving the ``with`` block commits it too,
    unless an exception carries one out: then it goes back, and its rows go out again.

    A batch of segments is committed by the save of its last state and by nothing else.  Leaving
    gives back those that are not saved.
    """

    def __init__(self, link: Link, framework: Framework) -> None:
        self._framework = framework
        self._pid = os.getpid()
        self._begin(link)

    def _begin(self, link: Link) -> None:
        self._link = link
        self._blocks = Blocks(link.session, link.wake)
        self._in_hand: int | None = None
        self._durable = False  # whether a server that is started anew goes on with this feed
        self._saving: Saving | None = None  # of a feed of segments
        self._schema: dict[str, Field] | None = None
        self._layout: dict[str, Field] = {}  # the schema, and what is told of rows beside it
        self._finalizer = weakref.finalize(self, _abandon, link, self._pid)

    # What it is

    @property
    def name(self) -> str:
        """The feed's name on the server."""
        welcome = self._link.session.welcome
        return "" if welcome is None else welcome.feed

    @property
    def schema(self) -> Mapping[str, Field]:
        """Columns of a batch: dtype and shape, None for what varies."""
        if self._schema is None:
            welcome = self._link.session.welcome
            if welcome is None or not welcome.schema:
                if self._link.session.failure is not None:
                    raise self._link.session.failed()
                return {}
            self._layout = schema_from_wire(welcome.schema)
            properties = welcome.properties
            self._durable = isinstance(properties, dict) and properties.get("durable") is True
            if isinstance(properties, dict) and properties.get("shape") == "sequences":
                layout = SegmentLayout(self._layout, properties)
                self._saving = Saving(self._link, layout, self._framework)
            self._schema = {n: f for n, f in self._layout.items() if n[0] != RESERVED}
        return self._schema

    @property
    def facts(self) -> Mapping[str, Field]:
        """What batches tell of their rows beside the columns: ``length``, ``label``, ``rate``."""
        _ = self.schema
        return {n[1:]: f for n, f in self._layout.items() if n[0] == RESERVED}

    @property
    def states(self) -> Mapping[str, Field]:
        """States of a batch of segments: dtype and shape; empty where the feed has none."""
        _ = self.schema
        if self._saving is None:
            return {}
        rows = self._layout["@sequence"].shape[0]
        states = self._saving.layout.states
        return {name: Field(s.dtype, (rows, *s.dims)) for name, s in states.items()}

    @property
    def local(self) -> bool:
        """Whether batches come through shared memory."""
        return self._link.session.memory is not None

    # Batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next ``Batch``, or ``SegmentBatch`` where the feed is one of segments.

        Where states stay with the trainer it waits until the batch before is saved.
        """
        self._link.check_usable()
        if self._saving is None:
            self._commit_in_hand()
            _ = self.schema
        while True:
            try:
                return self._next()
            except MemoryGone:  # of a server that is gone: its rows go out again
                continue

    def _next(self) -> Any:
        link, saving = self._link, self._saving
        received = link.take() if saving is None else link.take(saving.claim)
        if received is None:
            raise StopIteration
        if self._schema is None:
            _ = self.schema  # learnt at the first batch where a feed had none when it was joined
            saving = self._saving
        delivery = received.delivery
        if saving is None:
            self._in_hand = delivery.token
        try:
            block = self._blocks.block(received)
            if saving is not None:
                segments = saving.begin(received, block)
                if self._durable:
                    self._link.place(delivery, segments.identity())
                return segments
            batch = Batch(delivery, slots_of(delivery, self._layout), block, self._framework)
            if self._durable:
                self._link.place(delivery, b"")
            return batch
        except BaseException:
            if saving is not None:
                saving.reject(delivery.partition, delivery.token)
            self._give_back_in_hand()
            raise

    def as_dataset(self, facts: Sequence[str] = ()) -> Any:
        """The rest of the feed as a ``tf.data.Dataset`` with the right ``element_spec``.

        A batch is committed when TensorFlow takes the next one from the feed.  ``facts`` are what
        its elements hold beside the columns: ``length``, ``label`` or ``rate``, where the feed
        tells them.

        Batches of segments come as a dict of what a ``SegmentBatch`` has, with the ``token`` for
        ``save_states``, which commits them.
        """
        self._link.check_usable()
        _ = self.schema
        if self._saving is not None:
            return self._segments(facts)
        wanted = [facts] if isinstance(facts, str) else list(facts)
        for name in wanted:
            if name not in self.facts:
                known = ", ".join(self.facts) or "none"
                raise ValueError(f"facts: the feed does not tell {name!r} of its rows; {known}")
            if name in self.schema:
                raise ValueError(f"facts: {name!r} is a column of the feed too")
        if self._framework.name != "tf":
            raise ValueError(
                f'as_dataset() needs framework="tf"; this feed has {self._framework.name!r}'
            )
        from .tf import dataset

        return dataset(self, wanted)

    def _segments(self, facts: Sequence[str]) -> Any:
        if facts:
            raise ValueError(f"facts={facts!r}: a batch of segments tells all that is known of it")
        if self._saving is not None and self._saving.lanes is not None:
            raise ValueError(
                "as_dataset(): the states of this feed stay with the trainer, and TensorFlow asks "
                "for batches before the ones before them are saved; declare the feed with "
                "state_placement='server', or iterate over the feed"
            )
        if self._framework.name != "tf":
            raise ValueError(
                f'as_dataset() needs framework="tf"; this feed has {self._framework.name!r}'
            )
        from .tf import segments

        return segments(self)

    def save_states(self, token: Any, values: Mapping[str, Any]) -> None:
        """Save states of the batch with this ``token``: all of ``values``, or none of them.

        For training that has no batch at hand but its arrays, as that on ``as_dataset``: in a graph
        by ``tf.py_function``.  Otherwise as ``SegmentBatch.save_state``.
        """
        self._link.check_usable()
        _ = self.schema
        if self._saving is None:
            raise ValueError(f"save_states: the feed {self.name!r} has no states")
        self._saving.save_token(token, values)

    def flush_states(self) -> None:
        """Hand the server the states that stay with this trainer, as the last saves left them.

        Whoever continues these sequences begins with them.  Leaving the feed does it too.  Nothing
        is done where no sequence goes on, or where states are with the server anyway.
        """
        self._link.check_usable()
        if self._saving is not None:
            self._saving.flush()

    def commit(self) -> None:
        """Commit what is in hand, and wait until all commits are answered.

        Several trainers call it before they meet and one of them takes a snapshot.  States that
        stay with this trainer are handed over.
        """
        self._link.check_usable()
        _ = self.schema
        if self._saving is None:
            self._commit_in_hand()
        self._link.settle()
        if self._saving is not None:
            self._saving.flush()

    def snapshot(self) -> dict[str, Any]:
        """Keep all of the feed's state as it is after this step; the token to go on from there.

        The batch in hand is committed first: call it after the step that used it.  The token is
        small and plain JSON data: keep it in the model's checkpoint, and give it to
        ``connect(resume=…)`` with that model.  What other trainers commit meanwhile may be in the
        snapshot or not; what they have in hand goes out again.
        """
        self.commit()
        answer = self._link.ask(TakeSnapshot())
        if answer.code:
            raise from_code(answer.code, answer.text)
        return dict(answer.token)

    def load_state_dict(self, state: Any) -> None:
        """Go on from a snapshot, as ``connect(resume=state)`` does.  What is in hand is let go."""
        token = Token.from_plain("state", state)
        self._link.check_usable()
        if token.feed != self.name:
            raise ValueError(f"state: a token of feed {token.feed!r}; this one is {self.name!r}")
        link = self._link
        self._leave(commit=False)
        self._begin(opened(link.again(token.snapshot)))

    #: The same under the names that torch and Lightning, and loops like those of Grain, call.
    state_dict = get_state = snapshot
    set_state = load_state_dict

    def trackable(self) -> Any:
        """An object for ``tf.train.Checkpoint``, such as ``Checkpoint(model=model, feed=…)``.

        Saving the checkpoint takes a snapshot, and restoring it goes on from there.
        """
        from .tf import FeedState

        return FeedState(self)

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
        if answer.fault:
            raise ValueError(f"set_target_probs({list(wanted)}): {answer.fault}")
        return dict(answer.since)

    def close(self) -> None:
        """Leave the feed.  The batch in hand is committed unless an exception is being handled."""
        if self._link.left or os.getpid() != self._pid:
            return
        self._leave(commit=sys.exc_info()[0] is None)

    def __enter__(self) -> Feed:
        self._link.check_usable()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._link.left and os.getpid() == self._pid:
            self._leave(commit=kind is None)

    # Inside

    def _commit_in_hand(self) -> None:
        if self._in_hand is not None:
            token, self._in_hand = self._in_hand, None
            self._link.commit(token)

    def _give_back_in_hand(self) -> None:
        if self._in_hand is not None:
            token, self._in_hand = self._in_hand, None
            self._link.give_back(token)

    def _leave(self, commit: bool) -> None:
        link, saving = self._link, self._saving
        link.left = True
        try:
            if saving is not None:
                saving.give_back()
            elif commit:
                self._commit_in_hand()
            else:
                self._give_back_in_hand()
            if link.session.failure is not None:
                return
            if commit:
                link.settle()
                if saving is not None:
                    saving.flush()
            elif saving is not None and saving.lanes is not None:
                # What was saved is handed over, but nothing of it may hide why this is left.
                with contextlib.suppress(Exception):
                    link.settle(_HASTE_S)
                    saving.flush(_HASTE_S)
        finally:
            self._finalizer.detach()
            link.close()
        if commit:
            self._raise_refusals()

    def _raise_refusals(self) -> None:
        """Raise what became of commits and was not told yet: all at once, for the last time."""
        refused = self._link.session.refused
        if refused:
            error = refused.popleft()
            while refused:
                error.add_note(f"and: {refused.popleft()}")
            raise error


def _abandon(link: Link, pid: int) -> None:
    """The feed was dropped without close: leave, in the process that connected."""
    if os.getpid() == pid:
        link.close()
