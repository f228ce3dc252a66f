"""Recurrent replay from files: Q-learning on pieces of episodes, each after a burn-in.

python examples/replay_burn_in.py

    step        0 ····· 9 10 ···· 19 20 ···· 29      left=10, num_unroll=10
    segment 1   │ burn-in │  own     │               the state before step 0 is known;
    segment 2             │ burn-in  │  own     │    that before step 10 is saved by segment 1

The burn-in only brings the state up to the weights of today, without a gradient.  The cue at the
beginning of an episode says which action is rewarded, so values depend on the state.
"""

from __future__ import annotations

import tempfile

import numpy as np
import torch
from torch import nn

import headrace
import headrace_server as hs

BURN_IN, OWN, UNITS, ACTIONS, DISCOUNT = 10, 10, 24, 2, 0.5


def write(path: str) -> None:
    chance = np.random.default_rng(1)
    length = chance.integers(30, 60, 96)
    starts, steps = np.cumsum(length) - length, length.sum()
    cue, action = chance.integers(0, 2, len(length)), chance.integers(0, ACTIONS, steps)
    seen = np.zeros((steps, 2), np.float32)
    seen[starts, cue] = 1
    rewarded = (action == np.repeat(cue, length)).astype(np.float32)
    np.savez(
        path,
        id=np.array([f"episode {i}" for i in range(len(length))]),
        seen=seen,
        action=action,
        reward=rewarded,
        offsets=np.append(starts, steps),
    )


def replay(path: str) -> hs.Pipeline:
    return (
        hs.read_npz(path, ragged=dict.fromkeys(("seen", "action", "reward"), "offsets"))
        .shuffle(seed=1)
        .repeat(6)
        .batch_sequences_with_states(
            input_key="id",
            input_sequences=["seen", "action", "reward"],
            input_context=[],
            initial_states={"h": hs.zeros((UNITS,))},
            num_unroll=OWN,
            left=BURN_IN,
            right=1,  # the step after the last own one, for its target
            batch_size=16,
        )
    )


class Values(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(2, UNITS), nn.Linear(UNITS, ACTIONS)

    def forward(self, seen: torch.Tensor, h: torch.Tensor, real: torch.Tensor) -> tuple:
        values = []
        for t in range(seen.shape[1]):
            h = torch.where(real[:, t, None], self.cell(seen[:, t], h), h)
            values.append(self.out(h))
        return torch.stack(values, 1), h


def main() -> None:
    torch.manual_seed(1)
    model, losses = Values(), []
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    with tempfile.TemporaryDirectory() as directory:
        write(f"{directory}/replay.npz")
        with (
            hs.run(replay(f"{directory}/replay.npz")) as server,
            headrace.connect(server.address, framework="torch") as feed,
        ):
            for batch in feed:
                seen = batch.sequences["seen"]
                before = torch.arange(BURN_IN) >= BURN_IN - batch.left_length[:, None]
                own = torch.arange(OWN + 1) < (batch.length + batch.right_length)[:, None]
                with torch.no_grad():
                    _, h = model(seen[:, :BURN_IN], batch.state("h"), before)
                values, _ = model(seen[:, BURN_IN:], h, own)
                batch.save_state("h", h)  # before this segment's own steps: the next one's burn-in
                action, reward = (
                    batch.sequences[name][:, BURN_IN:-1] for name in ("action", "reward")
                )
                taken = values[:, :-1].gather(2, action[:, :, None])[:, :, 0]
                best = values[:, 1:].max(2).values.detach() * own[:, 1:]  # 0 after the episode
                loss = ((taken - reward - DISCOUNT * best) ** 2)[own[:, :-1]].mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    print(f"loss {np.mean(losses[:20]):.3f} at first, {np.mean(losses[-20:]):.3f} at the end")


if __name__ == "__main__":
    main()
