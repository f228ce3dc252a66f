"""The ``Feed`` in a trainer's hands: an iterator of batches, and the requests to their servers.

feed.drain(), set_batch_size() …  ─► Link.ask ─► every owner ─► answers, joined
feed.snapshot() ─► commits, settled ─► every server copies its stores ─► token
feed.load_state_dict(token) ─► the feed is left, and connected again from there
len(feed), feed.progress ◄─ batches of each owner, of this rank, or the reason for no number

The fraction of a feed is that of its examples, so it is known where no length is: in a feed that
filters, and of segments.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_proto.checks import LARGEST
from headrace_proto.errors import from_code
from headrace_proto.layout import KnownSlots
from headrace_proto.limits import MAX_COUNT
from headrace_proto.messages import Answered, Resize, Retarget
from headrace_proto.schema import OFFSETS, RESERVED, Field, rows_open, schema_from_wire
from headrace_proto.segment_layout import SegmentLayout
from headrace_proto.token import Token

from .batches.batch import Batch, BatchInHand, RaggedBatch, columns_of
from .batches.saving import Saving
from .batches.segments import SegmentBatch
from .batches.taken import DatasetRun, TakenBatches
from .connection.batch_memory import BatchGone, Blocks
from .connection.link import Link, opened
from .framework import Framework
from .machine import requests
from .machine.trainer import Held, Trainer

if TYPE_CHECKING:
    from .feed_log import FeedLog

#: Largest number that ``len`` can return.
_LONGEST = 2**63 - 1

#: Maximum wait of a trainer that leaves because of an exception.
_HASTE_S = 5.0
#: Maximum number of sizes of ``set_batch_size``, so that they fit the header of a message.
_MOST_SIZES = 4096
#: Whether a loop takes the next batch now; and what is done while there is none.
Accepts = Callable[[Held], bool]
NoneYet = Callable[[], object]


class Feed:
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
        self._log: FeedLog | None = None
        self._begin(link)

    def _begin(self, link: Link) -> None:
        self._link = link
        self._finalizer = weakref.finalize(self, link.abandon)
        self._blocks = Blocks(link.wire.exchange)
        self._hands = TakenBatches(link)  # a Saving, of a feed with states
        self._itself = weakref.ref(self)
        self._epochs: Epochs | None = None
        self._lengths: dict[int, int | str] = {}  # by epoch
        self._segments: SegmentLayout | None = None  # of a feed of segments
        self._batch: type[BatchInHand] = Batch
        welcome, known = link.session.welcome, link.session.properties
        assert welcome is not None
        self._name = welcome.feed
        #: The schema, and the facts of rows beside it; empty where the feed has failed.
        self._layout = schema_from_wire(welcome.schema)
        if known.get("resized") is True:
            self._layout = rows_open(self._layout)
        self._schema = columns_of(self._layout)
        if known.get("across_batches") is False:
            self._epochs = Epochs(link.member.trainer, link.finished_before)
        if self._layout and known.get("shape") == "sequences":
            self._segments = segments = SegmentLayout(self._layout, known)
            segments.ranked = segments.lanes and link.member.hello.rank >= 0
            self._slots, self._batch = segments.slots, SegmentBatch
            if segments.states:
                self._hands = Saving(link, segments, self._framework)
        else:
            self._slots = KnownSlots(self._layout)
            if any(field.ragged for field in self._schema.values()):
                self._batch = RaggedBatch
        self._accepts = self._joined(None if self._epochs is None else self._epochs.enter)

    # Properties

    def __repr__(self) -> str:
        """Return its name, the server's address and its state, without asking the server."""
        link = self._link
        state = "open" if link.wire.connected else "open, the server is away"
        state = "ended" if link.ended else state
        failure = link.wire.failure
        state = state if failure is None else f"failed ({type(failure).__name__})"
        state = "closed" if link.waits.left else state
        return f"<headrace.Feed {self.name!r} at {link.address}: {state}>"

    def __reduce__(self) -> str:
        raise TypeError(
            f"{self!r} can not be copied or pickled: its connection is of this process; connect in "
            "the process that uses it (in a torch DataLoader: headrace.torch.FeedDataset does)"
        )

    @property
    def name(self) -> str:
        """The feed's name on the server."""
        return self._name

    @property
    def schema(self) -> Mapping[str, Field]:
        """Columns of a batch: dtype and shape, None for what varies."""
        if not self._schema and (failure := self._link.wire.failure) is not None:
            raise failure
        return self._schema

    @property
    def facts(self) -> Mapping[str, Field]:
        """Facts of each row of a batch, beside its columns: ``length``, ``label`` …"""
        return {
            name[1:]: field
            for name, field in self._layout.items()
            if name[0] == RESERVED and not name.startswith(OFFSETS)
        }

    @property
    def states(self) -> Mapping[str, Field]:
        """States of a batch of segments: dtype and shape; empty where the feed has none."""
        if self._segments is None:
            return {}
        rows, states = self._layout["@length"].shape[0], self._segments.states
        return {name: Field(s.dtype, (rows, *s.dims)) for name, s in states.items()}

    @property
    def lanes(self) -> int:
        """Number of lanes of this trainer: ``batch.lane`` has the numbers from 0 to below it.

        It is ``batch_size``, and with ranks, which have lanes in every partition,
        ``batch_size`` × partitions.  A model that keeps a memory by lane has one of this many rows.
        AttributeError where the feed has no lanes.
        """
        layout = self._segments
        if layout is None or not layout.lanes:
            raise AttributeError(
                f"feed.lanes: feed {self.name!r} has no lanes, in which a row of every batch stays "
                "with its sequence: it is not declared with order='lanes'"
            )
        return layout.batch_size * (self._link.member.trainer.partitions if layout.ranked else 1)

    @property
    def local(self) -> bool:
        """Whether batches come through shared memory."""
        return self._link.local

    # Batches

    def __next__(self, within: Accepts | None = None, none_yet: NoneYet | None = None) -> Any:
        """Return the next ``Batch``, or ``SegmentBatch`` where the feed is one of segments.

        Where states stay with the trainer it waits until the batch before is saved.
        """
        if not self._link.usable:
            self._link.check_usable()
        self._hands.on_next()
        while True:
            try:
                batch = self._next(within, none_yet)
                break
            except BatchGone:
                continue
            except KeyboardInterrupt as error:
                # Return batches that the loop never got, unless TensorFlow's threads take some.
                for held in () if self._hands.runs else self._link.lost():
                    self._hands.reject(held, None, error)
                raise
        if self._log is not None:
            self._log.took(batch)
        return batch

    def _next(self, within: Accepts | None, none_yet: NoneYet | None) -> Any:
        link = self._link
        held = link.take(self._accepts if within is None else self._joined(within), none_yet)
        if held is None:
            raise StopIteration
        hands = self._hands
        block: Any = None
        try:
            block = self._blocks.block(held)
            if isinstance(hands, Saving):
                batch = hands.begin(held, block)
                batch._feed = self._itself
                return batch
            given = held.given
            slots, segments = self._slots.of(given), self._segments
            plain = self._batch(given, slots, block, self._framework, self._itself, segments)
            held.shown = True
            return plain
        except BaseException as error:
            hands.reject(held, block, error)
            raise

    def _joined(self, within: Accepts | None) -> Accepts | None:
        """Return what the next batch has to pass: that of a loop, and of saved states."""
        hands = self._hands
        if not (isinstance(hands, Saving) and hands.kept):
            return within
        ready = hands.accepts
        return ready if within is None else lambda held: within(held) and ready(held)

    def save_states(self, token: Any, values: Mapping[str, Any]) -> Any:
        """Save states of the batch with this ``token``: all of ``values``, or none of them.

        For loops that have the arrays of a batch and not the batch, as over ``as_dataset``.  In a
        ``tf.function`` it returns an operation, as ``SegmentBatch.save_state`` does.  Of values by
        replica, as ``strategy.run`` returns them, it saves those of this process.
        """
        self._link.check_usable()
        if not isinstance(self._hands, Saving):
            raise ValueError(f"save_states: the feed {self.name!r} has no states")
        return self._hands.save_token(token, values)

    def flush_states(self) -> None:
        """Send the states that stay with this trainer to the server, as the last saves left them.

        The trainer that continues these sequences begins with them.  Leaving the feed does it too.
        Where states are at the server it does nothing.
        """
        self._link.check_usable()
        self._hands.flush()

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
        self._hands.commit(batches, self)
        self._link.settle()
        self._hands.flush()
        if batches is not None:
            self._raise_refusals()

    def skip(self, batches: int) -> int:
        """Commit the next batches without training on them; return how many came.

        There are fewer at the end of the feed.  Sequences go on, each with the state that it had
        before.  Every rank skips as many.

        A run whose loss has spiked goes back to a snapshot before that, and leaves out what the
        spike came from.
        """
        self._link.check_usable()
        if isinstance(batches, bool) or not isinstance(batches, int | np.integer) or batches < 0:
            raise ValueError(f"skip({batches!r:.80}): give a number of batches, 0 or more")
        states = () if self._segments is None else self._segments.states
        if states and self._segments is not None and self._segments.packed:
            raise ValueError(
                f"skip(): a row of feed {self.name!r} has several examples, it is declared with "
                "pack=True, and only a model gives the state after the last of them"
            )
        skipped = 0
        for batch in islice(iter(self.__next__, None), int(batches)):
            if states:
                self.save_states(batch.token, {name: batch.state(name) for name in states})
            else:
                self._hands.commit(batch, self)
            skipped += 1
        self._link.settle()
        return skipped

    # Epochs

    def __iter__(self) -> Iterator[Any]:
        """Return the batches up to the end of the feed.

        Where the feed is declared with ``repeat(n, across_batches=False)``, those up to the end of
        the epoch.  Another loop has those of the next one.
        """
        epochs = self._epochs
        if epochs is None:
            return self
        self._look_for_epoch(epochs)
        epochs.begin()
        return EpochBatches(self, epochs)

    def __len__(self) -> int:
        """Return how many batches one ``for`` over the feed has in all, from all partitions.

        The loop is an epoch where the feed is declared with ``repeat(n, across_batches=False)``,
        else the whole feed.  Ranks all have the same number.  TypeError with the reason where
        nobody knows it exactly: ``batch`` has a length where the source can be read by number, and
        no stage drops or repeats examples; segments in lanes, or of ranks, where their lengths are
        known too.  The first call asks the server.

        A loop that goes on after a restart or a resumption has fewer, and several trainers without
        ranks share them.
        """
        epochs = self._epochs
        epoch = 0 if epochs is None else epochs.number + (epochs.over and not self._link.ended)
        if epoch not in self._lengths:
            self._link.check_usable()
            self._lengths[epoch] = _value_of(self._link.ask(requests.length(epoch)))
        known = self._lengths[epoch]
        if isinstance(known, str):
            raise TypeError(f"feed {self.name!r} has no length: {known}")
        if known > _LONGEST:
            raise TypeError(f"feed {self.name!r} has no length that len() can return: {known}")
        return known

    def __bool__(self) -> bool:
        return True  # whatever its length is

    def epochs(self) -> Iterator[tuple[int, Iterator[Any]]]:
        """Yield the number of each epoch and an iterator that ends with it.

        It needs a feed that is declared with ``repeat(n, across_batches=False)``.  All trainers of
        a feed number its epochs alike: if others got all batches of one, its iterator is empty.
        After a ``break`` the next iterator continues the same epoch.  After a restart or a
        resumption the first one is the rest of the epoch that was under way.

        The end of an iterator commits the last batch of its epoch.  After ``drain`` no epoch
        follows the last one that the server had begun.
        """
        epochs = self._epochs
        if epochs is None:
            raise ValueError(
                f"epochs(): batches of feed {self.name!r} may hold examples of two epochs; declare "
                "it with repeat(n, across_batches=False)"
            )
        return self._each_epoch(epochs)

    def _each_epoch(self, epochs: Epochs) -> Iterator[tuple[int, Iterator[Any]]]:
        while self._look_for_epoch(epochs) and epochs.begin():
            yield epochs.number, EpochBatches(self, epochs)

    def _look_for_epoch(self, epochs: Epochs) -> bool:
        """Wait for the next batch where only that shows which epoch comes next.

        Return False where none comes before this trainer commits what it has.
        """
        if epochs.in_doubt:
            try:
                self.__next__(epochs.look, epochs.none_yet)
            except EpochEnds:
                return True
            except StopIteration:
                if not self._link.ended:
                    return False
                epochs.end(feed_ended=True)
        return True

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
        wanted = self._dataset_facts(facts, tokens)
        from .tf_dataset import dataset

        return dataset(self, wanted, tokens)

    def _dataset_facts(self, facts: Sequence[str], tokens: bool) -> list[str]:
        """Return the facts that elements of a dataset hold; ValueError where there can be none."""
        if not isinstance(facts, Iterable):
            raise TypeError(f"facts={facts!r:.80} is not a list of names")
        if not isinstance(tokens, bool):
            raise TypeError(f"tokens={tokens!r:.80} is not True or False")
        wanted = [facts] if isinstance(facts, str) else list(facts)
        if wanted and self._segments is not None:
            raise ValueError(
                f"facts={facts!r:.80}: a batch of segments tells all that is known of it"
            )
        if self._hands.kept:
            raise ValueError(
                "as_dataset(): the states of this feed stay with the trainer, and TensorFlow asks "
                "for batches before the ones before them are saved; declare the feed with "
                "state_placement='server', or iterate over the feed"
            )
        for name in wanted:
            if name not in self.facts or name in self.schema:
                known = ", ".join(one for one in self.facts if one not in self.schema) or "none"
                raise ValueError(
                    f"facts: {name!r:.80} is not a fact of the rows of this feed beside its "
                    f"columns; it has {known}"
                )
        if tokens and "token" in self.schema:
            raise ValueError("tokens=True: the feed has a column 'token' too; select other columns")
        if self._framework.name != "tf":
            raise ValueError(
                f'as_dataset() needs framework="tf"; this feed has {self._framework.name!r}'
            )
        return wanted

    # Snapshots

    def snapshot(self, upto: Any = None) -> dict[str, Any]:
        """Store the feed's state as it is after this step; return the token to go on from it.

        The batch in hand is committed first: call it after the step that used it.  With
        ``connect(commit="explicit")`` it commits nothing.

        ``upto`` is a batch, or its token: the call commits it and the batches that this trainer
        took before it, and no later one.

        The token is small and plain JSON data: keep it in the model's checkpoint, and give it to
        ``connect(resume=…)`` with that model.  Commits of other trainers meanwhile may be in
        the snapshot or not; batches in their hands go out again.
        """
        self._link.check_usable()
        if upto is None and (doubt := self._hands.doubt()):
            warnings.warn(doubt, stacklevel=2)
        self._hands.for_snapshot(upto, self)
        self._link.settle()
        self._hands.flush()
        return dict(_value_of(self._link.snapshot()))

    def load_state_dict(self, state: Any) -> None:
        """Go on from a snapshot, as ``connect(resume=state)`` does.  Batches in hand go back."""
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

    # Requests that concern all trainers of the feed

    def drain(self, cancel: bool = False) -> None:
        """Close the feed's input for all trainers: rows already read are still handed out.

        With ``cancel`` rows that are in no batch yet are dropped.
        """
        self._link.check_usable()
        if not isinstance(cancel, bool):
            raise TypeError(f"cancel={cancel!r:.80} is not True or False")
        self._link.ask(requests.drain(cancel))

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
        return self._change(str([*wanted]), "set_target_probs", Retarget, wanted)

    def set_weights(self, weights: Mapping[str, float]) -> dict[int, int]:
        """Change the weights by which examples of a mix are drawn, for all trainers.

        ``weights`` names every source.  They hold to the end, in place of a schedule.  Returns, for
        each partition, the number of the first batch that they can affect.  ValueError where the
        feed is no mix, or can not be drawn so.
        """
        self._link.check_usable()
        names = self._link.session.properties.get("sources")
        if names is None:
            raise ValueError("set_weights(): the feed is no mix (hs.mix), so it has no weights")
        if not isinstance(weights, Mapping):
            raise TypeError(f"weights={weights!r:.80} is not a dict of sources to numbers")
        if weights.keys() != set(names):
            raise ValueError(f"weights={weights!r:.80} must name each source of the mix: {names}")
        try:
            wanted = tuple(float(weights[name]) for name in names)
        except (TypeError, ValueError):
            raise TypeError(
                f"weights={weights!r:.80} is not a dict of sources to numbers"
            ) from None
        return self._change(repr(weights), "set_weights", Retarget, wanted, True)

    def set_version(self, version: int) -> None:
        """Tell a live feed the version of the policy that trains; a smaller one has no effect.

        Segments of which the policy lags behind it by more than ``max_staleness`` are left out, or
        marked.  ValueError where the feed cuts no sequences of a log before they end.
        """
        self._link.check_usable()
        if not self._link.session.properties.get("live"):
            raise ValueError(
                "set_version(): the feed cuts no sequences of a log before they end, so no segment "
                "has a version: batch_sequences_with_states stands directly after hs.live there"
            )
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            raise TypeError(f"version={version!r:.80} is not an int from 0 on")
        answer = self._link.ask(requests.set_version(version))
        if answer.code:
            raise ValueError(f"set_version({version}): {answer.text}")

    def set_batch_size(self, batch_size: int | Sequence[int]) -> dict[int, int]:
        """Change how many rows batches have, for all trainers: one size, or one for each bucket.

        Returns, for each partition, the number of the first batch of the new size.  ValueError
        where the feed can not have such batches: lanes and ranks of segments have a fixed number of
        rows.

        ``schema`` and later datasets of ``as_dataset`` leave the number of rows open.
        """
        self._link.check_usable()
        sizes = _sizes_of(batch_size)
        since = self._change(repr(batch_size), "set_batch_size", Resize, sizes)
        self._link.session.properties["resized"] = True
        self._lengths.clear()
        if self._segments is not None:
            self._segments.open_rows()
        self._layout = rows_open(self._layout)
        self._schema = columns_of(self._layout)
        return since

    def _change(self, given: str, call: str, kind: type, *fields: Any) -> dict[int, int]:
        for i, number in enumerate(fields[0] if kind is Retarget else ()):
            if not abs(number) <= LARGEST:
                text = f"number {i} is {number}, not between {-LARGEST:g} and {LARGEST:g}"
                raise ValueError(f"{call}({given:.80}): {text}")
        answer = self._link.ask(requests.change(call, kind, *fields))
        if answer.code:
            raise ValueError(f"{call}({given:.80}): {answer.text}")
        return dict(answer.value)

    def stats(self) -> dict[str, int]:
        """Return how many batches or segments are ready, incomplete and in flight.

        A feed of segments counts as the ``barrier`` of TensorFlow's state saver: ``ready`` and
        ``incomplete`` segments (those that wait for a state), and ``in_flight`` examples, which
        ``capacity`` bounds.  Other feeds count ``ready`` batches that no trainer has, batches
        ``in_flight`` in trainers' hands, and ``incomplete`` rows that are read and in no batch yet.
        Prefetched batches are in their trainer's hands.

        It works from any host, without HTTP.
        """
        self._link.check_usable()
        return dict(_value_of(self._link.ask(requests.stats())))

    def log_to(self, logger: Any, every_s: float = 10.0) -> None:
        """Log numbers of the batches that this trainer takes, every ``every_s`` seconds.

        ``logger`` has ``log(dict)`` (a run of wandb), ``log_metrics(dict)`` or ``add_scalar``
        (TensorBoard's ``SummaryWriter``), or is a function of a dict, or one of ``logging``.  The
        numbers are of the time since the last ones:

        ``feed/waited_s`` and ``feed/waited_share``: how long the loop waited for batches;
        ``feed/rows_per_s``; ``feed/queue``: batches that are here and not taken yet;
        ``feed/padding``: the share of steps that are padding, where the batch has a ``length``.
        """
        self._link.check_usable()
        from .feed_log import FeedLog, sender

        self._log = FeedLog(self, sender(logger), float(every_s))

    @property
    def progress(self) -> FeedProgress:
        """The commits of all trainers since the feed began, over restarts and on all servers.

        ``rows`` and ``batches``; ``epoch`` (from 0) of the first uncommitted rows, and ``epochs``,
        None for ever; ``fraction`` of all examples, from 0 to 1, None where nobody counts them.
        It prints as a line.  Each access asks the servers and waits for their answers, as ``stats``
        does: do not use it in every step.  It counts all commits that this trainer has sent; the
        batch in hand is not committed yet.
        """
        self._link.check_usable()
        self._link.settle()
        counts = _value_of(self._link.ask(requests.progress()))
        return progress_of(counts, self._link.session.properties.get("epochs", 1))

    # Leaving

    def close(self) -> None:
        """Leave the feed.  The batch in hand is committed unless an exception is being handled.

        A commit that gets no answer is an error, unless an earlier call raised that error.
        """
        self._leave(commit=sys.exc_info()[0] is None)

    def __enter__(self) -> Feed:
        self._link.check_usable()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leave(commit=kind is None)

    # For the adapters of frameworks and the log: they use these, and nothing else of the inside

    @property
    def _by_name(self) -> bool:
        """Whether batches are committed by name, so not by states or by asking for the next."""
        return self._hands.explicit

    @property
    def _states_are_saved(self) -> bool:
        """Whether it has states, and those of all batches in hand are saved."""
        hands = self._hands
        return isinstance(hands, Saving) and not hands.unsaved

    def _commit_trained(self, batch: Any) -> None:
        """Commit a batch, or all with None, without waiting for the answer."""
        if batch is None:
            self._hands.in_hand()
        else:
            self._hands.commit(batch, self)
        self._link.send_due()

    def _commit_oldest(self, number: int) -> None:
        """Commit the oldest batches of TensorFlow's iteration without waiting for the answer."""
        self._link.check_usable()
        self._hands.oldest(number)
        self._link.send_due()

    def _begin_run(self, run: DatasetRun) -> Iterator[Any]:
        """Begin an iteration over a dataset where others stopped; return its batches."""
        self._hands.begin_run(run)
        return iter(self)

    def _next_of(self, run: DatasetRun, batches: Iterator[Any]) -> Any:
        """Return the next batch of an iteration over a dataset.

        StopIteration where it has ended, or begins anew.
        """
        self._link.check_usable()
        hands = self._hands  # a rewind of the feed replaces them
        if run not in hands.runs:
            raise StopIteration
        try:
            batch = next(batches)
        except StopIteration:
            run.ended = True
            raise
        hands.fetched(run, batch.token)
        return batch

    def _follows(self, batch: Any, room: int) -> bool:
        """Return whether another batch is here: one of as many rows and at most ``room`` bytes."""
        with self._link.lock:
            held = self._link.member.trainer.here
            return held is not None and held.given.rows == batch.rows and held.given.nbytes <= room

    def _readings(self) -> tuple[float, float, int]:
        """Return the time, how long the trainer has waited, and the batches it has not taken."""
        link = self._link
        with link.lock:
            now = link.clock()
            queue = sum(not held.taken for held in link.member.trainer.hands.values())
            return now, link.member.meter.totals(now)[0], queue

    def _width(self, batch: Any) -> int:
        """Return the number of steps that the rows of a batch are padded to; 0: not known."""
        if self._segments is not None:
            return self._segments.num_unroll
        return max(
            (
                batch._slots[name].shape[1]
                for name, field in self.schema.items()
                if len(field.shape) > 1 and field.shape[1] is None and not field.ragged
            ),
            default=0,
        )

    def _numbers(self) -> dict[str, float]:
        """Return the numbers of the log since the last call; none where the feed logs itself."""
        from .feed_log import FeedLog

        if self._log is None:
            self._log = FeedLog(self, None)
        return self._log.numbers() if self._log.asked else {}

    # Inside

    def _leave(self, commit: bool) -> None:
        link, hands = self._link, self._hands
        if not link.usable:
            return
        link.leave()
        try:
            hands.leave(commit)
            if commit and not link.waits.failure_raised:
                link.settle()
                hands.flush()
            elif hands.kept:
                with contextlib.suppress(Exception):  # else it would hide the error in flight
                    link.settle(_HASTE_S)
                    hands.flush(_HASTE_S)
        finally:
            hands.give_back()
            self._finalizer.detach()
            link.close()
        if commit:
            self._raise_refusals()

    def _raise_refusals(self) -> None:
        """Raise the errors of commits that were not raised yet, all in one."""
        if refused := self._link.member.refused:
            error = refused.popleft()
            while refused:
                error.add_note(f"and: {refused.popleft()}")
            raise error


class EpochEnds(Exception):
    """The epoch of a loop has no more batches for this trainer."""


class Epochs:
    """The epoch that a trainer's loops are over."""

    def __init__(self, trainer: Trainer, finished: bool) -> None:
        """``finished``: the feed has ended before this trainer joined it."""
        self._trainer = trainer
        self.number = trainer.next_epoch
        self.over = finished  # whether the loop has come to its end
        self._entered = False  # whether a loop over this epoch has begun
        self._last = self.number if finished else sys.maxsize  # once the feed has ended

    def begin(self) -> bool:
        """Begin a loop: over the next epoch, or over what is left of this one.

        Return False where no epoch is left.
        """
        if self.over:
            if self.number >= self._last:
                return False
            self.number += 1
            self.over = False
        self._entered = True
        return True

    @property
    def in_doubt(self) -> bool:
        """Whether only the next batch shows which epoch the next loop is over."""
        return self._entered and not self.over

    def end(self, feed_ended: bool = False) -> None:
        """Note that the loop has come to its end."""
        self.over = True
        self._last = self._trainer.latest if feed_ended else sys.maxsize

    def enter(self, held: Held) -> bool:
        """Accept a batch of any epoch."""
        self.number = max(self.number, held.given.turn_epoch)
        self._entered, self.over, self._last = True, False, sys.maxsize
        return True

    def within(self, held: Held) -> bool:
        """Accept a batch of the loop's epoch; EpochEnds where it is of a later one."""
        if held.given.turn_epoch > self.number:
            raise EpochEnds
        return self.enter(held)

    def look(self, held: Held) -> bool:
        """Take nothing; raise EpochEnds as soon as the next batch is there."""
        if held.given.turn_epoch > self.number:
            self.end()
        raise EpochEnds

    def none_yet(self) -> None:
        """Raise EpochEnds where no batch of this epoch will come, but some of a later one."""
        if self.number < self._trainer.next_epoch <= self._trainer.latest:
            self.end()
            raise EpochEnds


class EpochBatches(Iterator[Any]):
    """The batches of one epoch that a trainer gets."""

    def __init__(self, feed: Feed, epochs: Epochs) -> None:
        self._feed = feed
        self._epochs = epochs
        self._number = epochs.number
        self._over = False

    def __next__(self) -> Any:
        if self._over or self._number != self._epochs.number:
            raise StopIteration
        try:
            return self._feed.__next__(self._epochs.within, self._epochs.none_yet)
        except EpochEnds:
            self._epochs.end()
            self._feed._link.wire.exchange()  # others may wait for the last commit of this epoch
        except StopIteration:
            if self._feed._link.ended:  # else it goes on once this trainer commits what it has
                self._epochs.end(feed_ended=True)
        self._over = True
        raise StopIteration


def _value_of(answer: Answered) -> Any:
    if answer.code:
        raise from_code(answer.code, answer.text)
    return answer.value


def _sizes_of(batch_size: Any) -> tuple[int, ...]:
    """Return the sizes as integers; TypeError or ValueError where no feed can have them."""
    sizes = np.atleast_1d(np.asarray(batch_size))
    if sizes.dtype.kind not in "iu" or sizes.ndim != 1:
        raise TypeError(f"batch_size={batch_size!r:.80} is not an int, or a list of ints")
    if len(sizes) > _MOST_SIZES or sizes.min() < 1 or sizes.max() > MAX_COUNT:
        raise ValueError(
            f"batch_size={batch_size!r:.80}: give one size, or one for each bucket: at most "
            f"{_MOST_SIZES} sizes, each of at least 1 and at most {MAX_COUNT}"
        )
    return tuple(sizes.tolist())


@dataclass(frozen=True, slots=True)
class FeedProgress:
    """The commits of a feed by all of its trainers, since its beginning.

    ``epoch`` is the one of the first rows that are not committed, of ``epochs`` (None: for ever).
    ``fraction`` is the part of all examples that is committed or dropped, from 0 to 1; None where
    nobody knows how many there are.
    """

    rows: int
    batches: int
    epoch: int
    epochs: int | None
    fraction: float | None

    def __str__(self) -> str:
        of = "" if self.epochs is None else f" of {self.epochs}"
        part = "" if self.fraction is None else f", {self.fraction:.0%}"
        return f"epoch {self.epoch + 1}{of}: {self.rows} rows in {self.batches} batches{part}"


def progress_of(counts: Mapping[str, Any], epochs: int | None) -> FeedProgress:
    """Return the progress of a feed of so many epochs, by the counts of all its owners."""
    fraction = None if counts["open"] else 1.0
    if counts["open"] and (whole := counts.get("examples", 0)):
        fraction = min(1.0, counts["done"] / whole)
    epoch = counts["epoch"] if epochs is None else min(counts["epoch"], epochs - 1)
    return FeedProgress(counts["rows"], counts["batches"], max(0, epoch), epochs, fraction)
