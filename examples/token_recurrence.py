"""A linear recurrence, as in Mamba and RWKV, over a stream of tokens, on two ranks.

python examples/token_recurrence.py

    h[t] = decay(x[t]) · h[t-1] + input(x[t])        for each channel by itself

Each row of a batch reads its own piece of the stream from end to end, and its state stays where it
was computed.  The text repeats itself after more tokens than a segment has.
"""

from __future__ import annotations

import tempfile

import numpy as np
import ranks
import torch
import torch.distributed as dist
from torch import nn

import headrace_server as hs
from headrace.torch import FeedDataset

RANKS, ROWS, UNROLL, UNITS, TOKENS = 2, 4, 16, 32, 16


def stream(path: str) -> hs.Pipeline:
    chance = np.random.default_rng(1)
    text = np.tile(chance.integers(0, TOKENS, 24), 400).astype(np.uint16)
    text.tofile(path)
    return (
        hs.read_tokens(path, "uint16", lanes=RANKS * ROWS)
        .repeat(4)
        .batch_sequences_with_states(
            input_key="key",
            input_sequences=["tokens", "targets"],
            input_context=[],
            initial_states={"h": hs.zeros((UNITS,))},
            num_unroll=UNROLL,
            batch_size=ROWS,
            order="lanes",
            state_placement="trainer",
        )
    )


class Recurrence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decay, self.input = nn.Embedding(TOKENS, UNITS), nn.Embedding(TOKENS, UNITS)
        self.out = nn.Sequential(nn.Linear(UNITS, 64), nn.ReLU(), nn.Linear(64, TOKENS))

    def forward(self, tokens: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        decay, new = torch.sigmoid(self.decay(tokens)), self.input(tokens)
        steps = []
        for t in range(tokens.shape[1]):  # a real model scans
            h = decay[:, t] * h + new[:, t]
            steps.append(h)
        return self.out(torch.stack(steps, 1)), h


def train(address: str, path: str) -> None:
    """The work of one rank."""
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(Recurrence())
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    losses = []
    with FeedDataset(address) as dataset:
        for batch in dataset:
            tokens, targets = (batch.sequences[name].long() for name in ("tokens", "targets"))
            logits, h = model(tokens, batch.state("h"))
            batch.save_state("h", h)  # detached: the gradient ends here
            targets[torch.arange(UNROLL) >= batch.length[:, None]] = -100  # padding
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    if dist.get_rank() == 0:
        torch.save(losses, path)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        with hs.run(stream(f"{directory}/text.bin")) as server:
            ranks.run(train, RANKS, server.address, f"{directory}/losses.pt")
        losses = torch.load(f"{directory}/losses.pt")
    print(f"loss {np.mean(losses[:20]):.3f} at first, {np.mean(losses[-20:]):.3f} at the end")


if __name__ == "__main__":
    main()
