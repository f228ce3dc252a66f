"""``python -m tests.bench.ranks``: how equal the work of 8 ranks is, in each round of batches.

W2's lengths in batches of 32, dealt by headrace and by the samplers of transformers.  Work is a
cost summed over a batch: each example's length, its square, or the length it is padded to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import headrace
import headrace_server as hs

from . import sequences

RANKS = 8
#: By round, by rank: the lengths of a batch.
Rounds = list[list[np.ndarray]]

_COSTS: dict[str, Callable[[np.ndarray], float]] = {
    "steps": lambda n: float(n.sum()),
    "squares": lambda n: float((n**2).sum()),
    "padded steps": lambda n: float(len(n) * n.max()),
}


def _fed(shape: Callable[[hs.Pipeline], hs.Pipeline]) -> Rounds:
    source = hs.from_examples([{"n": int(n)} for n in sequences.lengths()])
    taken: Rounds = [[] for _ in range(RANKS)]

    def take(address: str, rank: int) -> None:
        with headrace.connect(address, rank=rank, world_size=RANKS, run=1) as feed:
            taken[rank] = [np.array(batch["n"]) for batch in feed]

    with hs.run(shape(source)) as server:
        ranks = [threading.Thread(target=take, args=(server.address, r)) for r in range(RANKS)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    return [list(round) for round in zip(*taken, strict=True)]


def _buckets(source: hs.Pipeline, **balance: Any) -> hs.Pipeline:
    boundaries = sequences.BOUNDARIES
    return source.bucket_by_sequence_length("n", sequences.BATCH, boundaries, **balance)


def _grouped() -> Rounds:
    """Batches of one sampler, one after the other to each rank."""
    import torch
    from transformers.trainer_pt_utils import LengthGroupedSampler

    lengths, batch = sequences.lengths(), sequences.BATCH
    chance = torch.Generator().manual_seed(0)
    numbers = list(LengthGroupedSampler(batch, lengths=lengths.tolist(), generator=chance))
    whole = len(numbers) // (batch * RANKS) * batch * RANKS
    return [list(round) for round in lengths[numbers[:whole]].reshape(-1, RANKS, batch)]


def _distributed() -> Rounds:
    from transformers.trainer_pt_utils import DistributedLengthGroupedSampler as Sampler

    lengths, batch = sequences.lengths(), sequences.BATCH
    known = lengths.tolist()
    of_rank = [list(Sampler(batch, None, RANKS, rank, lengths=known)) for rank in range(RANKS)]
    starts = range(0, len(of_rank[0]) - batch + 1, batch)
    return [[lengths[rank[at : at + batch]] for rank in of_rank] for at in starts]


def _rebalanced() -> Rounds:
    from transformers.trainer_pt_utils import BatchRebalanceSampler as Sampler

    lengths, together = sequences.lengths(), sequences.BATCH * RANKS
    known = lengths.tolist()
    of_rank = [list(Sampler(known, together, RANKS, 1, rank=rank)) for rank in range(RANKS)]
    return [[lengths[batch] for batch in round] for round in zip(*of_rank, strict=True)]


CONTESTANTS: dict[str, Callable[[], Rounds]] = {
    "headrace `.batch`": lambda: _fed(lambda s: s.batch(sequences.BATCH)),
    "`.batch`, `balance`": lambda: _fed(lambda s: s.batch(sequences.BATCH, balance="n")),
    "headrace buckets": lambda: _fed(_buckets),
    "buckets, `balance`": lambda: _fed(lambda s: _buckets(s, balance="n")),
    "LengthGroupedSampler": _grouped,
    "DistributedLengthGroupedSampler": _distributed,
    "BatchRebalanceSampler": _rebalanced,
}


def main() -> None:
    print(f"| batches by | padding | {' | '.join(_COSTS)} |\n| --- |{' ---: |' * 4}")
    for name, contestant in CONTESTANTS.items():
        try:
            rounds = contestant()
        except ImportError as error:
            print(f"| {name} | {error} | | | |")
            continue
        figures = []
        for cost in _COSTS.values():
            costs = np.array([[cost(batch) for batch in round] for round in rounds])
            ratios = costs.max(1) / costs.mean(1)
            figures.append(f"{ratios.mean():.3f} ({ratios.max():.2f})")
        batches = [batch for round in rounds for batch in round]
        padded = sum(_COSTS["padded steps"](batch) for batch in batches)
        padding = 1 - sum(map(np.sum, batches)) / padded
        print(f"| {name} | {padding:.1%} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
