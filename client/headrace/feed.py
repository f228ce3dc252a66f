"""What a trainer works with: ``connect`` and the ``Feed`` it gives."""

from __future__ import annotations

import os
import secrets
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from headrace_proto.address import check_address
from headrace_proto.errors import ConnectionLost, FeedClosed, ForkedProcess, ProtocolError
from headrace_proto.messages import Delivery
from headrace_proto.schema import RESERVED, Field, schema_from_wire

from .batch import Batch, Framework, NumpyFramework, slots_of
from .holding import BufferPool
from .link import Link
from .session import Received, Session

__all__ = ["Feed", "connect"]

_FRAMEWORKS = ("numpy", "tf", "torch", "jax")
_MAX_PREFETCH = 63


def connect(
    address: str,
    *,
    feed: str | None = None,
    framework: str = "numpy",
    prefetch: int = 2,
    rank: int | None = None,
    world_size: int | None = None,
    timeout: float = 120.0,
) -> Feed:
    """Join a feed as a trainer.

    ``feed`` may be left out where the server serves one.  ``framework`` is ``"numpy"``, ``"tf"``,
    ``"torch"`` or ``"jax"``.  ``prefetch`` batches are held beyond the one in hand; with 0 a batch
    is asked for only when the trainer waits for it.  ``rank`` and ``world_size`` make the feed
    coordinated: every round gives each rank one batch.  ``timeout`` is the deadline in seconds of
    every wait.
    """
    check_address("address", address)
    if framework not in _FRAMEWORKS:
        raise ValueError(f"framework={framework!r} is not one of {', '.join(_FRAMEWORKS)}")
    if isinstance(prefetch, bool) or not isinstance(prefetch, int):
        raise TypeError(f"prefetch={prefetch!r} is not an integer")
    if not 0 <= prefetch <= _MAX_PREFETCH:
        raise ValueError(f"prefetch={prefetch} does not lie in 0 … {_MAX_PREFETCH}")
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank} and world_size={world_size}: give both or neither")
    if rank is not None and world_size is not None and not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} does not lie in 0 … world_size-1 = {world_size - 1}")
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout > 0:
        raise ValueError(f"timeout={timeout!r} is not a positive number of seconds")
    loaded = _framework(framework)
    session = Session(
        feed or "",
        secrets.token_bytes(16),
        prefetch,
        -1 if rank is None else rank,
        world_size or 0,
    )
    link = Link(address, session, float(timeout))
    try:
        link.open()
        return Feed(link, loaded)
    except BaseException:
        link.close()
        raise


def _framework(name: str) -> Framework:
    """Load a framework's face, and nothing of the others."""
    if name == "tf":
        from .tf import TensorFlow

        return TensorFlow()
    if name == "torch":
        from .torch import Torch

        return Torch()
    if name == "jax":
        from .jax import Jax

        return Jax()
    return NumpyFramework()


class Feed:
    """A feed in a trainer's hands: an iterator of batches.

    Asking for the next batch commits the one in hand.  Leaving the ``with`` block commits it too,
    unless an exception carries one out: then it goes back, and its rows go out again.
    """

    def __init__(self, link: Link, framework: Framework) -> None:
        self._link = link
        self._framework = framework
        self._pid = os.getpid()
        self._pool = BufferPool()
        self._in_hand: int | None = None
        self._closed = False
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
            self._schema = {n: f for n, f in self._layout.items() if n[0] != RESERVED}
        return self._schema

    @property
    def facts(self) -> Mapping[str, Field]:
        """What batches tell of their rows beside the columns: ``length``, ``label``, ``rate``."""
        _ = self.schema
        return {n[1:]: f for n, f in self._layout.items() if n[0] == RESERVED}

    @property
    def local(self) -> bool:
        """Whether batches come through shared memory."""
        return self._link.attachment is not None

    # Batches

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        self._check()
        self._commit_in_hand()
        received = self._link.take()
        if received is None:
            raise StopIteration
        self._in_hand = received.delivery.token
        try:
            return self._batch(received)
        except BaseException:
            self._give_back_in_hand()
            raise

    def as_dataset(self, facts: Sequence[str] = ()) -> Any:
        """The rest of the feed as a ``tf.data.Dataset`` with the right ``element_spec``.

        A batch is committed when TensorFlow takes the next one from the feed.  ``facts`` are what
        its elements hold beside the columns: ``length``, ``label`` or ``rate``, where the feed
        tells them.
        """
        self._check()
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

    def drain(self, cancel: bool = False) -> None:
        """Close the feed's input for all trainers: what was read is still handed out.

        With ``cancel`` what is not yet a batch is dropped.
        """
        self._check()
        self._link.drain(cancel)

    def set_target_probs(self, probs: Sequence[float]) -> dict[int, int]:
        """Change the proportions of classes that a stratified feed draws, for all trainers.

        Returns for each partition the number of the first batch that the new ones reach; batches
        before it are made or being made.  ValueError when the feed can not draw them.
        """
        self._check()
        wanted = tuple(float(p) for p in probs)
        answer = self._link.retarget(wanted)
        if answer.fault:
            raise ValueError(f"set_target_probs({list(wanted)}): {answer.fault}")
        return dict(answer.since)

    def close(self) -> None:
        """Leave the feed.  The batch in hand is committed unless an exception is being handled."""
        if self._closed or os.getpid() != self._pid:
            return
        self._leave(commit=sys.exc_info()[0] is None)

    def __enter__(self) -> Feed:
        self._check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._closed and os.getpid() == self._pid:
            self._leave(commit=kind is None)

    # Inside

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcess(
                f"this feed was connected in process {self._pid} and is used in its fork "
                f"{os.getpid()}: connect in the process that uses it (in a torch DataLoader: in "
                "the dataset's __iter__, or use num_workers=0 and let headrace do the reading)"
            )
        if self._closed:
            raise FeedClosed("this feed was closed; connect again")

    def _commit_in_hand(self) -> None:
        if self._in_hand is not None:
            token, self._in_hand = self._in_hand, None
            self._link.commit(token)

    def _give_back_in_hand(self) -> None:
        if self._in_hand is not None:
            token, self._in_hand = self._in_hand, None
            self._link.give_back(token)

    def _leave(self, commit: bool) -> None:
        self._closed = True
        try:
            if commit:
                self._commit_in_hand()
                if not self._link.session.failure:
                    self._link.settle()
            else:
                self._give_back_in_hand()
        finally:
            self._finalizer.detach()
            self._link.close()
        if commit and self._link.session.refused:
            raise self._link.session.refused.popleft()

    def _batch(self, received: Received) -> Batch:
        delivery = received.delivery
        _ = self.schema  # learnt at the first batch where a feed had none when it was joined
        slots = slots_of(delivery, self._layout)
        return Batch(delivery, slots, self._block(delivery, received.source), self._framework)

    def _block(self, delivery: Delivery, held: Any) -> np.ndarray:
        """The bytes of a batch, aligned: a view of shared memory, or this process's own."""
        token = delivery.token
        if not delivery.segment:
            source = np.frombuffer(held.buffer, np.uint8)
            if source.nbytes != delivery.nbytes:
                raise ProtocolError(f"a batch of {delivery.nbytes} bytes came with {source.nbytes}")
            return self._copied(source)
        if held is None:
            raise ProtocolError("the server sent a reference to memory that was not attached")
        session, link = self._link.session, self._link
        try:
            block: np.ndarray = held.block(
                delivery.segment, delivery.offset, delivery.nbytes, lambda: session.release(token)
            )
        except FileNotFoundError:
            raise ConnectionLost(
                f"the memory of the server at {link.address} is gone: it was stopped, or killed "
                "and started anew"
            ) from None
        if not delivery.copy_out:
            return block
        copied = self._copied(block)
        del block
        link.wake()
        return copied

    def _copied(self, source: np.ndarray) -> np.ndarray:
        memory = self._pool.buffer(source.nbytes)
        np.copyto(memory, source)
        return memory


def _abandon(link: Link, pid: int) -> None:
    """The feed was dropped without close: leave, in the process that connected."""
    if os.getpid() == pid:
        link.close()
