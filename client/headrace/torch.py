"""PyTorch: batches as tensors without a copy, states on their device, a feed as a dataset.

    FeedDataset(address, feed="train")       connects when it is first asked for a batch
        for batch in dataset                 the next epoch, or the rest of the feed
        state_dict()  ─► token               into the checkpoint, after the step of the last batch
        load_state_dict(token)               the next batch is the one after that step

Training loops of other libraries accept the dataset: it works in ``DataLoader(batch_size=None)``,
``StatefulDataLoader``, Accelerate, ``headrace.lightning`` and ``headrace.transformers``.

    for batch in broadcast(feed, group)      the same batches for all processes of a group, of which
                                             one has the feed

A kept state is the tensor that was saved, detached: later writes to that tensor change it.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headrace_proto.dtypes import numpy_dtype
from headrace_proto.errors import HeadraceError
from headrace_proto.segment_layout import SegmentLayout
from headrace_proto.token import Token

try:
    import torch
    import torch.distributed as distributed
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise ImportError('framework="torch" needs PyTorch: pip install torch') from error

from .batches.batch import BatchInHand
from .batches.lane_states import LaneStates, continued
from .batches.segments import SegmentBatch
from .connecting import connect
from .connection.state_block import unknown_state
from .feed import Feed
from .framework import Framework

__all__ = ["FeedDataset", "Torch", "broadcast"]

#: Types that numpy knows only by ml_dtypes: their bits are passed and reinterpreted.
_VIEWED = {
    "bfloat16": np.int16,
    "float8_e4m3fn": np.uint8,
    "float8_e5m2": np.uint8,
    "float8_e4m3fnuz": np.uint8,
    "float8_e5m2fnuz": np.uint8,
}


class Torch(Framework):
    """Tensors on the memory of a batch."""

    name = "torch"

    def numbers(self, array: np.ndarray, dtype: str, aligned: bool = False) -> Any:
        carrier = _VIEWED.get(dtype)
        if carrier is None:
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(carrier)).view(getattr(torch, dtype))

    def strings(self, array: np.ndarray) -> Any:
        return array.tolist()

    def ragged(self, values: Any, offsets: Any) -> Any:
        if isinstance(values, list):  # of strings
            return super().ragged(values, offsets)
        return torch.nested.nested_tensor_from_jagged(values, offsets)

    def owns(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def described(self, value: Any) -> tuple[str, tuple[int, ...]]:
        return str(value.dtype).removeprefix("torch."), tuple(value.shape)

    def state_in(self, value: Any, dtype: str) -> np.ndarray:
        value = value.detach().cpu()
        carrier = _VIEWED.get(dtype)
        if carrier is None:
            array: np.ndarray = value.resolve_conj().resolve_neg().numpy()
            return array
        bits: np.ndarray = value.view(getattr(torch, np.dtype(carrier).name)).numpy()
        return bits.view(numpy_dtype(dtype))

    def kept(self, value: Any) -> Any:
        return value.detach()

    def merged(
        self, value: Any, source: np.ndarray | None, rows: np.ndarray, initial: np.ndarray
    ) -> Any:
        device = value.device
        if source is None:
            merged = value.clone()
        else:
            merged = value.index_select(0, torch.from_numpy(source).to(device))
        fresh = self.numbers(initial, str(value.dtype).removeprefix("torch."))
        merged[torch.from_numpy(rows).to(device)] = fresh.to(device)
        return merged

    def moved(self, value: Any, device: Any, non_blocking: bool) -> Any:
        return value.to(device, non_blocking=non_blocking)

    def pinned(self, value: Any) -> Any:
        return value.pin_memory()


class FeedDataset(IterableDataset):  # type: ignore[misc]
    """A feed as an ``IterableDataset`` of batches, whose state is its position.

    ``options`` are those of ``headrace.connect``: ``feed``, ``prefetch``, ``timeout`` and so on.
    It connects when it is first used.  If ``torch.distributed`` is initialised by then, its rank
    and world size are used, unless ``options`` give others.

    With ``DataLoader`` and ``StatefulDataLoader`` use ``batch_size=None`` and ``num_workers=0``:
    elements are batches already, and the server has the workers.
    """

    def __init__(self, address: str | Sequence[str], **options: Any) -> None:
        if "framework" in options:
            raise TypeError("framework: a FeedDataset has tensors of torch; leave it out")
        inspect.signature(connect).bind(address, **options)  # TypeError for an unknown one
        super().__init__()
        self._address = address
        self._options = options
        self._feed: Feed | None = None
        self._warned = False  # of a pass without batches

    def __repr__(self) -> str:
        return f"<FeedDataset of {self._feed or self._address!r}>"

    @property
    def feed(self) -> Feed:
        """The feed; the first access connects."""
        if self._feed is None:
            options = dict(self._options)
            if "rank" not in options and _processes() > 1:
                options.update(rank=distributed.get_rank(), world_size=_processes())
            self._feed = connect(self._address, framework="torch", **options)
            for once in ("resume", "restart"):
                self._options.pop(once, None)
        return self._feed

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch, or the rest of the feed where it has no epochs."""
        worker = get_worker_info()
        if worker is not None:
            raise ValueError(
                f"num_workers={worker.num_workers}: the workers of the server read this data, and "
                "the process that trains commits its batches; use num_workers=0"
            )
        return self._pass(self.feed.name, iter(self.feed))

    def _pass(self, name: str, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of a pass, and warn of the first that has none."""
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty and not self._warned:
            self._warned = True
            warnings.warn(
                f"a pass over feed {name!r} has no batch: the feed has ended.  Declare it with "
                ".repeat(n, across_batches=False), and each of n passes is an epoch; without n "
                "there is no end",
                stacklevel=3,
            )

    def __len__(self) -> int:
        """Return the number of batches in an epoch.  TypeError where it is not known."""
        feed: Any = self.feed
        return len(feed)

    def commit_explicitly(self) -> None:
        """Let only ``trained`` commit batches, for a loop that fetches ahead of training.

        ValueError where the options ask for another way.
        """
        given = "commit" in self._options
        commit = self._options.setdefault("commit", "explicit")
        if commit != "explicit":
            raise ValueError(
                f"commit={commit!r}: this loop fetches ahead of training, and asking for a batch "
                'would commit one that is not trained; leave it out, or give "explicit"'
            )
        if self._feed is not None and not given:
            self.close()

    def trained(self, batch: Any = None) -> None:
        """Commit a batch, or all that were taken, without a wait for the answer.

        For ``commit="explicit"``.  Batches of segments are committed by the save of their states:
        for them it does nothing.
        """
        feed = self.feed
        if not feed.states:
            feed._commit_trained(batch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batch in hand, as ``feed.snapshot()`` does.

        Where ``torch.distributed`` is initialised all ranks call it after the same step.  All get
        the same position, which contains the batches that they have trained.
        """
        feed = self.feed
        if _processes() == 1:
            return feed.snapshot()
        if feed._by_name:
            feed.commit([])
        else:
            feed.commit()
        distributed.barrier()  # every rank's commits are answered
        answer: list[Any] = [None]
        if distributed.get_rank() == 0:
            try:
                answer = [feed.snapshot()]
            except HeadraceError as error:
                answer = [error]
        distributed.broadcast_object_list(answer)
        if isinstance(answer[0], HeadraceError):
            raise answer[0]
        return dict(answer[0])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position when the feed is used next, on all ranks."""
        Token.from_plain("state", state)
        feed, self._feed = self._feed, None
        if feed is not None:
            feed._leave(commit=False)
        self._options = {**self._options, "resume": state}
        self._options.pop("restart", None)
        if _processes() > 1:
            distributed.barrier()  # no rank uses the feed while the first one takes it back

    def close(self) -> None:
        """Leave the feed, as ``feed.close()`` does.  The next use connects again."""
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

    def __enter__(self) -> FeedDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_feed": None}  # the other process opens its own connection


def _processes() -> int:
    """Return how many processes train together by ``torch.distributed``."""
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return 1


# ── The same batches for all processes of a group
#
#     feed ─► the one that has it ── attributes, block ──► the others, on memory of their own


def broadcast(feed: Feed | FeedDataset | None, group: Any = None) -> Iterator[Any]:
    """Return the batches of one loop over a feed, for all processes of a group.

    One process gives its feed, the others None.  All of them call it and go on in step; each gets
    the same batches, and the end or the error of the feed.  Commits and saves count in the process
    that has the feed, and have no effect in the others.  Where states stay with the trainer, every
    process has those that it saved itself.

    ``group``: of ``torch.distributed``, with a backend for the CPU; None has all processes.
    """
    given = feed.feed if isinstance(feed, FeedDataset) else feed
    if distributed.get_backend(group) == "nccl":
        raise ValueError(
            "broadcast: batches are in the memory of the host, and this group has nccl alone; give "
            'one that is made with torch.distributed.new_group(ranks, backend="gloo")'
        )
    fault = ""
    if given is not None and not isinstance(given, Feed):
        fault = f"feed={feed!r:.120} is no feed: give one, a FeedDataset, or None"
    elif given is not None and given._framework.name != "torch":
        fault = f'{given!r} has arrays of {given._framework.name}: connect with framework="torch"'
    told: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(told, (given is not None, fault), group)
    leaders = [rank for rank, (leads, _) in enumerate(told) if leads]
    if len(leaders) != 1:
        raise ValueError(
            "broadcast: one process of a group gives its feed and the others None; here "
            f"{len(leaders)} of {len(told)} give one"
        )
    if fault := told[leaders[0]][1]:
        raise ValueError(f"broadcast: {fault}")
    leader = leaders[0] if group is None else distributed.get_global_rank(group, leaders[0])
    return _followed(leader, group) if given is None else _led(given, leader, group)


#: Attributes of a batch that belong to its process.
_OWN = {"_block", "_cache", "_feed", "_framework", "_layout", "_saves", "_saving"}


def _led(feed: Feed, leader: int, group: Any) -> Iterator[Any]:
    """Yield batches, each of which the others of the group get before."""

    def give(*header: Any) -> None:
        distributed.broadcast_object_list([header], leader, group)

    layout = feed._segments
    give(layout and (layout.schema, feed._link.session.properties, layout.ranked))
    batches = iter(feed)
    while True:
        try:
            batch = next(batches, None)
        except Exception as error:
            give("error", error)
            raise
        if batch is None:
            give("end")
            return
        same = {name: value for name, value in vars(batch).items() if name not in _OWN}
        give(type(batch), same, batch.nbytes)
        distributed.broadcast(torch.from_numpy(batch._block), leader, group)
        yield batch


def _followed(leader: int, group: Any) -> Iterator[Any]:
    """Yield the batches that the leader of the group has."""

    def heard() -> Any:
        header: list[Any] = [None]
        distributed.broadcast_object_list(header, leader, group)
        return header[0]

    (layout,) = heard()
    follower = _Follower(layout)
    while True:
        kind, *more = heard()
        if kind == "end":
            return
        if kind == "error":
            raise more[0]
        same, nbytes = more
        block = torch.empty(nbytes, dtype=torch.uint8)
        distributed.broadcast(block, leader, group)
        yield follower.batch(kind, same, block.numpy())


class _Follower:
    """Takes the place of the feed, and of its states, for batches that another process has."""

    def __init__(self, layout: Any) -> None:
        """``layout``: schema, properties and ``ranked`` of a feed of segments; else None."""
        self._layout: Any = None
        if layout is not None:
            schema, properties, ranked = layout
            self._layout = SegmentLayout(schema, properties)
            self._layout.ranked = ranked
        self._framework = Torch()
        self._lanes: dict[int, LaneStates] = {}  # by partition, where states stay with the trainer
        self._saved: dict[str, Any] = {}  # of the batch in hand

    def batch(self, kind: type[BatchInHand], same: Mapping[str, Any], block: np.ndarray) -> Any:
        """Return a batch with these attributes."""
        batch: Any = object.__new__(kind)
        batch.__dict__.update(same, _block=block, _cache={}, _framework=self._framework)
        batch._layout, batch._feed, self._saved = self._layout, weakref.ref(self), {}
        if self._layout is not None and self._layout.states:
            batch._saving = self
            if self._layout.kept:
                lanes, starts = batch.array("@lane").tobytes(), batch.array("@starts")
                before = self._lanes.get(batch.partition)
                batch._cache.update(continued(batch, lanes, starts, before))
        return batch

    def commit(self, batch: Any) -> None:
        """Do nothing: the process with the feed commits."""

    def save(self, batch: SegmentBatch, values: Mapping[str, Any]) -> None:
        """Keep states where they stay with the trainer; else the process with the feed saves."""
        states = self._layout.states
        for name, value in values.items():
            if name not in states:
                raise unknown_state(name, states)
            self._saved[name] = torch.as_tensor(value).detach()
        if self._layout.kept and len(self._saved) == len(states):
            lanes, goes_on = batch.array("@lane").tobytes(), batch._goes_on()
            self._lanes[batch.partition] = LaneStates(batch.token, lanes, goes_on, self._saved)
