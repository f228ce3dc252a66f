"""PyTorch: batches as tensors without a copy, states on their device, a feed as a dataset.

    FeedDataset(address, feed="train")       connects when it is first asked for a batch
        for batch in dataset                 the next epoch, or the rest of the feed
        state_dict()  ─► token               into the checkpoint, after the step of the last batch
        load_state_dict(token)               the next batch is the one after that step

Training loops of other libraries accept the dataset: it works in ``DataLoader(batch_size=None)``,
``StatefulDataLoader``, Accelerate, ``headrace.lightning`` and ``headrace.transformers``.

A kept state is the tensor that was saved, detached: later writes to that tensor change it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headrace_proto.dtypes import numpy_dtype
from headrace_proto.errors import HeadraceError
from headrace_proto.token import Token

try:
    import torch
    import torch.distributed as distributed
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise ImportError('framework="torch" needs PyTorch: pip install torch') from error

from .connecting import connect
from .feed import Feed
from .framework import Framework

__all__ = ["FeedDataset", "Torch"]

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
