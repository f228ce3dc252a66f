"""The ``Feed`` in a trainer's hands: an iterator of batches, and the requests to their server."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from headrace_proto.errors import HeadraceError
from headrace_proto.gone import absent
from headrace_proto.messages import Delivery
from headrace_proto.schema import Field, rows_open, schema_from_wire
from headrace_proto.segment_layout import SegmentLayout

from .batch import Batch, KnownSlots
from .blocks import BatchGone, Blocks, taken_again
from .checkpoints import Checkpoints
from .committing import TakenBatches, tokens_of
from .epochs import Claim, Epochs, NoneYet
from .framework import Framework
from .link import Link
from .ragged import RaggedBatch, columns_of, facts_of
from .saving import Saving
from .segments import BY_STATES, SegmentBatch
from .session import Received, Session
from .steering import Steering

#: Maximum wait of a trainer that leaves because of an exception.
_HASTE_S = 5.0
#: Errors of a batch that no second try can use.
_USELESS = (BatchGone, HeadraceError)


class Feed(Steering, Checkpoints):
    """A feed in a trainer's hands: an iterator of batches.

    Asking for the next batch commits the one in hand.  Leaving the ``with`` block commits it too;
    after an exception it goes back instead, and its rows go out again.  With
    ``connect(commit="explicit")`` only ``commit`` commits, and leaving gives uncommitted batches
    back.

    A batch of segments with states is committed by the save of its last state and by nothing else.
    Leaving gives unsaved ones back.
    """

    def __init__(self, link: Link, framework: Framework) -> None:
        self._framework = framework
        self._pid = os.getpid()
        self._begin(link)

    def _begin(self, link: Link) -> None:
        self._link = link
        self._blocks = Blocks(link.say)
        self._commits = TakenBatches(link.session.explicit)  # of a feed without states
        self._itself = weakref.ref(self)
        self._durable = False  # whether there are snapshots of this feed
        self._recovers = False  # whether another process would go on with this feed
        self._epochs: Epochs | None = None
        self._claim: Claim = Session.take
        self._saving: Saving | None = None  # of a feed with states
        self._segments: SegmentLayout | None = None  # of a feed of segments without states
        self._schema: dict[str, Field] | None = None
        self._layout: dict[str, Field] = {}  # the schema, and the facts of rows beside it
        self._slots = KnownSlots()
        self._batch: type[Batch] = Batch
        self._finalizer = weakref.finalize(self, _abandon, link, self._pid)

    # Properties

    def __repr__(self) -> str:
        """Return its name, the server's address and its state, without asking the server."""
        link = self._link
        state = "open" if link.connected else "open, the server is away"
        state = "ended" if link.ended else state
        failure = link.failure
        state = state if failure is None else f"failed ({type(failure).__name__})"
        state = "closed" if link.left else state
        return f"<headrace.Feed {self.name!r} at {link.address}: {state}>"

    def __getattr__(self, name: str) -> Any:
        raise absent("Feed", name)

    def __reduce__(self) -> str:
        raise TypeError(
            f"{self!r} can not be copied or pickled: its connection is of this process; connect in "
            "the process that uses it (in a torch DataLoader: headrace.torch.FeedDataset does)"
        )

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
                if (failure := self._link.failure) is not None:
                    raise failure
                self._claim = self._within_epochs(Session.take)
                return {}
            known = self._link.properties
            layout = schema_from_wire(welcome.schema)
            self._layout = rows_open(layout) if known.get("resized") is True else layout
            self._durable = known.get("durable") is True
            self._recovers = self._durable or known.get("recovers") is True
            if known.get("shape") == "sequences":
                segments = SegmentLayout(self._layout, known)
                if segments.states:
                    self._saving = Saving(self._link, segments, self._framework)
                else:
                    self._segments = segments
            if self._saving is None and self._commits.explicit:
                self._link.explain = self._commits.explain
            saving = self._saving
            self._claim = self._within_epochs(Session.take if saving is None else saving.claim)
            self._schema = columns_of(self._layout)
            if any(field.ragged for field in self._schema.values()):
                self._batch = RaggedBatch
        return self._schema

    def _leave_rows_open(self) -> None:
        _ = self.schema
        self._link.properties["resized"] = True
        if self._saving is not None:
            self._saving.layout.open_rows()
        self._layout = rows_open(self._layout)
        self._schema = columns_of(self._layout)

    @property
    def facts(self) -> Mapping[str, Field]:
        """Facts of each row of a batch, beside its columns: ``length``, ``label`` …"""
        _ = self.schema
        return facts_of(self._layout)

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
    def lanes(self) -> int:
        """Number of lanes of this trainer: ``batch.lane`` has the numbers from 0 to below it.

        It is ``batch_size``, and with ranks, which have lanes in every partition,
        ``batch_size`` × partitions.  A model that keeps a memory by lane has one of this many rows.
        AttributeError where the feed has no lanes.
        """
        _ = self.schema
        layout = self._segments if self._saving is None else self._saving.layout
        welcome = self._link.session.welcome
        if layout is None or not layout.lanes or welcome is None:
            raise AttributeError(
                f"feed.lanes: feed {self.name!r} has no lanes, in which a row of every batch stays "
                "with its sequence: it is not declared with order='lanes'"
            )
        return layout.batch_size * (welcome.partitions if self._link.session.rank >= 0 else 1)

    @property
    def local(self) -> bool:
        """Whether batches come through shared memory."""
        return self._link.local

    # Batches

    def __next__(self, claim: Claim | None = None, none_yet: NoneYet | None = None) -> Any:
        """Return the next ``Batch``, or ``SegmentBatch`` where the feed is one of segments.

        Where states stay with the trainer it waits until the batch before is saved.
        """
        self._link.check_usable()
        if self._saving is None:
            self._commits.on_next()
            self._say_commits()
            _ = self.schema
        while True:
            try:
                return self._next(claim or self._claim, none_yet)
            except BatchGone:
                continue
            except KeyboardInterrupt:
                self._give_up_lost()
                raise

    def _next(self, claim: Claim, none_yet: NoneYet | None) -> Any:
        link, saving = self._link, self._saving
        received = link.take(claim, none_yet)
        if received is None:
            raise StopIteration
        if self._schema is None:
            # known from the first batch on where the feed had none when it was joined
            _ = self.schema
            saving = self._saving
        delivery = received.delivery
        block: Any = None
        try:
            block = self._blocks.block(received)
            batch = saving.begin(received, block) if saving else self._plain(received, block)
            self._place(batch, delivery)
            if saving is None:
                self._commits.take(batch, block if self._durable else None)
            return batch
        except BaseException as error:
            if saving is None:
                link.give_back(delivery.token)
            elif saving.lanes is None or block is None or isinstance(error, _USELESS):
                saving.reject(delivery.partition, delivery.token)
            else:  # such as Ctrl-C: later batches go on from this one
                saving.untake(taken_again(received, block))
            raise

    def _plain(self, received: Received, block: Any) -> Batch | SegmentBatch:
        """Return a batch that is not committed by states."""
        delivery, layout = received.delivery, self._segments
        if layout is None:
            slots = self._slots.of(delivery, self._layout)
            return self._batch(delivery, slots, block, self._framework, self._itself)
        return SegmentBatch(delivery, layout, block, self._framework, feed=self._itself)

    def _place(self, batch: Batch | SegmentBatch, delivery: Delivery) -> None:
        """Note which segments a taken batch has; BatchGone where its rows go out again."""
        if (
            self._recovers
            and isinstance(batch, SegmentBatch)
            and not self._link.place(delivery, batch.identity())
        ):
            raise BatchGone

    def as_dataset(self, facts: Sequence[str] = (), tokens: bool = False) -> Any:
        """Return the rest of the feed as a ``tf.data.Dataset`` with the right ``element_spec``.

        A batch is committed when TensorFlow pulls the next one; a ``prefetch`` or a parallel
        ``map`` of yours pulls it before the batch is trained.  With ``connect(commit="explicit")``
        it is committed by ``commit`` of its token, or by ``headrace.keras.CommitTrained``.  The
        next loop gets batches that TensorFlow has not pulled.  ``facts`` adds ``length``,
        ``label``, ``rate`` or ``origin``, where the feed has them, and ``tokens`` the ``token`` of
        each batch (int64).

        A batch of segments is a dict of the attributes of ``SegmentBatch``, with the ``token`` for
        ``save_states``, which commits it where it has states.
        """
        self._link.check_usable()
        from .dataset_arguments import checked

        wanted = checked(self, facts, tokens)
        from .tf_dataset import dataset

        return dataset(self, wanted, tokens)

    def save_states(self, token: Any, values: Mapping[str, Any]) -> Any:
        """Save states of the batch with this ``token``: all of ``values``, or none of them.

        For loops that have the arrays of a batch and not the batch, as over ``as_dataset``.  In a
        ``tf.function`` it returns an operation, as ``SegmentBatch.save_state`` does.  Of values by
        replica, as ``strategy.run`` returns them, it saves those of this process.
        """
        self._link.check_usable()
        _ = self.schema
        if self._saving is None:
            raise ValueError(f"save_states: the feed {self.name!r} has no states")
        return self._saving.save_token(token, values)

    def flush_states(self) -> None:
        """Send the states that stay with this trainer to the server, as the last saves left them.

        The trainer that continues these sequences begins with them.  Leaving the feed does it too.
        Where states are at the server it does nothing.
        """
        self._link.check_usable()
        if self._saving is not None:
            self._saving.flush()

    def commit(self, batches: Any = None) -> None:
        """Commit a batch, its token, or a list of them, and wait until all commits are answered.

        It commits no other batches, not even earlier ones, and a second commit changes nothing.
        ``StaleLease``: a batch went to another trainer.  ``ValueError``: this trainer took no batch
        with that token.

        Without an argument it commits the batch in hand and sends states that stay with this
        trainer: for several trainers that meet at a barrier before one of them takes a snapshot.
        With ``connect(commit="explicit")`` the batches must be given.
        """
        self._link.check_usable()
        _ = self.schema
        if self._saving is not None:
            if batches is not None:
                raise ValueError(f"commit(…): {BY_STATES}")
        elif batches is not None:
            self._commits.commit(tokens_of("batches", batches, self))
            self._say_commits()
        elif self._commits.explicit:
            raise ValueError(
                'commit(): a feed that was connected with commit="explicit" does not know which of '
                "its batches are trained; name them: feed.commit(batch), or a list"
            )
        else:
            self._commits.in_hand()
            self._say_commits()
        self._link.settle()
        if self._saving is not None:
            self._saving.flush()
        elif batches is not None:
            self._raise_refusals()

    def trackable(self) -> Any:
        """Return an object for ``tf.train.Checkpoint``, as in ``Checkpoint(model=model, feed=…)``.

        Saving the checkpoint takes a snapshot, and restoring it goes on from there.
        """
        from .tf import FeedState

        return FeedState(self)

    def close(self) -> None:
        """Leave the feed.  The batch in hand is committed unless an exception is being handled.

        A commit that gets no answer is an error, unless an earlier call raised that error.
        """
        if self._link.left or os.getpid() != self._pid:
            return
        self._leave(commit=sys.exc_info()[0] is None)

    def __enter__(self) -> Feed:
        self._link.check_usable()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._link.left and os.getpid() == self._pid:
            self._leave(commit=kind is None)

    # Inside

    @property
    def _of_segments(self) -> bool:
        """Whether batches are of segments, each a ``SegmentBatch``."""
        return self._saving is not None or self._segments is not None

    def _say_commits(self) -> None:
        """Commit settled batches, also those that Ctrl-C has kept from the session before."""
        due = self._commits.due
        for token in [*due]:
            self._link.commit(token)
            due.pop(token, None)

    def _give_up_lost(self) -> None:
        """Give back batches that Ctrl-C took from the session and kept from the trainer."""
        saving, commits = self._saving, self._commits
        if type(commits) is TakenBatches:  # else TensorFlow's threads may be taking some
            held = [] if saving is None else saving.held
            for partition, token in self._link.lost({*commits.tokens, *commits.due, *held}):
                if saving is None:
                    self._link.give_back(token)
                else:
                    saving.reject(partition, token)

    def _say_given_back(self, tokens: list[int]) -> None:
        for token in tokens:
            self._link.give_back(token)

    def _commit_oldest(self, number: int) -> None:
        """Commit the oldest batches of TensorFlow's iteration without waiting for the answer."""
        self._link.check_usable()
        self._commits.oldest(number)
        self._say_commits()
        self._link.say()

    def _leave(self, commit: bool) -> None:
        link, saving = self._link, self._saving
        link.left = True
        try:
            if saving is None and commit and not self._commits.explicit:
                self._commits.in_hand()
                self._say_commits()
            elif saving is None:
                self._say_given_back(self._commits.give_back())
            if commit and not link.failure_raised:
                link.settle()
                if saving is not None:
                    saving.flush()
            elif saving is not None and saving.lanes is not None:
                with contextlib.suppress(Exception):  # else it would hide the error in flight
                    link.settle(_HASTE_S)
                    saving.flush(_HASTE_S)
        finally:
            if saving is not None:
                saving.give_back()
            self._finalizer.detach()
            link.close()
        if commit:
            self._raise_refusals()

    def _raise_refusals(self) -> None:
        """Raise the errors of commits that were not raised yet, all in one."""
        if refused := self._link.session.refused:
            error = refused.popleft()
            while refused:
                error.add_note(f"and: {refused.popleft()}")
            raise error


def _abandon(link: Link, pid: int) -> None:
    """Leave a feed whose object was dropped without close, in the process that connected."""
    if os.getpid() == pid:
        link.close()
