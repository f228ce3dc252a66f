"""An LSTM over days of readings, an hour at a time, with its state carried on.

python examples/sensor_days.py

Each sensor has a cycle of a day with a phase of its own, which an hour does not show: the state
does.  The readings lie in Parquet, a row for each.
"""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

import headrace
import headrace_server as hs

SENSORS, READINGS, UNROLL, UNITS = 32, 2 * 144, 6, 24


def write(path: str) -> None:
    chance = np.random.default_rng(1)
    t = np.arange(READINGS)
    readings = [
        np.sin(2 * np.pi * (t / 144 + chance.random())) + chance.normal(0, 0.3, READINGS)
        for _ in range(SENSORS)
    ]
    names = np.repeat([f"sensor {i}" for i in range(SENSORS)], READINGS)
    table = {"sensor": names, "reading": np.concatenate(readings).astype(np.float32)}
    pq.write_table(pa.table(table), path, row_group_size=4 * READINGS)


def days(path: str) -> hs.Pipeline:
    return (
        hs.read_parquet(path, group_by="sensor")
        .shuffle(seed=1)
        .repeat(3)
        .batch_sequences_with_states(
            input_key="sensor",
            input_sequences=["reading"],
            input_context=[],
            initial_states={"h": hs.zeros((UNITS,)), "c": hs.zeros((UNITS,))},
            num_unroll=UNROLL,
            right=1,  # the reading after the segment is a target
            batch_size=16,
        )
    )


class Forecast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, UNITS, batch_first=True)
        self.out = nn.Linear(UNITS, 1)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple:
        steps, (h, c) = self.lstm(x[:, :, None], (h[None], c[None]))
        return self.out(steps)[:, :, 0], h[0], c[0]


def main() -> None:
    torch.manual_seed(1)
    model, losses = Forecast(), []
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    with tempfile.TemporaryDirectory() as directory:
        write(f"{directory}/readings.parquet")
        with (
            hs.run(days(f"{directory}/readings.parquet")) as server,
            headrace.connect(server.address, framework="torch") as feed,
        ):
            for batch in feed:
                reading = batch.sequences["reading"]  # [16, 6 + 1]
                guess, h, c = model(reading[:, :-1], batch.state("h"), batch.state("c"))
                steps = torch.arange(UNROLL) < (batch.length + batch.right_length - 1)[:, None]
                loss = ((guess - reading[:, 1:]) ** 2)[steps].mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                batch.save_state("h", h)
                batch.save_state("c", c)
                losses.append(loss.item())
    print(f"loss {np.mean(losses[:20]):.3f} at first, {np.mean(losses[-20:]):.3f} at the end")


if __name__ == "__main__":
    main()
