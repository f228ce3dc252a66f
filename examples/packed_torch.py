"""An LSTM in PyTorch on packed lanes, which begins anew at each reset, beside unpacked lanes.

python examples/packed_torch.py
"""

from __future__ import annotations

from typing import Any

import torch
from recall import EPOCHS, RATE, STEPS, UNITS, Report, packed_lanes
from torch import nn

import headrace
import headrace_server as hs


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(2, UNITS)
        self.out = nn.Linear(UNITS, 1)

    def forward(self, x: torch.Tensor, resets: Any, state: tuple, initial: Any) -> tuple:
        steps = []
        for step in range(STEPS):
            if resets is not None:
                new = resets[:, step, None]
                state = tuple(torch.where(new, a, b) for a, b in zip(initial, state, strict=True))
            state = self.cell(x[:, step], state)
            steps.append(state[0])
        return self.out(torch.stack(steps, 1))[:, :, 0], state


def losses_of(model: Model, batch: Any, packed: bool) -> torch.Tensor:
    """Return the loss of each real step; save the states."""
    states, resets, initial, bit = ("h", "c"), None, None, batch.context["bit"]
    if packed:
        resets, initial = batch.resets, [batch.initial_state(name) for name in states]
        real = batch.segment_ids > 0
        wanted = bit.gather(1, (batch.segment_ids.long() - 1).clamp(min=0))
    else:
        real = torch.arange(STEPS) < batch.length[:, None]
        wanted = bit[:, None].expand(-1, STEPS)
    before = tuple(batch.state(name) for name in states)
    logits, after = model(batch.sequences["x"], resets, before, initial)
    for name, value in zip(states, after, strict=True):
        batch.save_state(name, value)
    return nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")[real]


def train(packed: bool) -> None:
    torch.manual_seed(1)
    model, report = Model(), Report()
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    feeds = {name: packed_lanes(("h", "c"), packed, n) for name, n in EPOCHS.items()}
    with hs.run(feeds) as server:
        with headrace.connect(server.address, feed="once", framework="torch") as feed:
            untrained = [losses_of(model, batch, packed).detach() for batch in feed]
        with headrace.connect(server.address, feed="train", framework="torch") as feed:
            for batch in feed:
                loss = losses_of(model, batch, packed).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                report.add(loss.item())
    report.compared(float(torch.cat(untrained).mean()), packed)


if __name__ == "__main__":
    train(packed=False)
    train(packed=True)
