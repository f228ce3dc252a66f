"""Training through time in PyTorch: an LSTM whose states never leave its device.

python examples/stateful_torch.py

With ``order="lanes"`` a row stays with its sequence, and with ``state_placement="trainer"`` the
feed tells only where a new sequence begins.  The loop is the same as with states at the server.
"""

from __future__ import annotations

import torch
from recall import RATE, STEPS, UNITS, Report, recall
from torch import nn

import headrace
import headrace_server as hs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, UNITS, batch_first=True)
        self.out = nn.Linear(UNITS, 1)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple:
        steps, (h, c) = self.lstm(x, (h[None], c[None]))
        return self.out(steps)[:, :, 0], h[0], c[0]


def main() -> None:
    torch.manual_seed(1)
    model, report = Model().to(DEVICE), Report()
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    cross_entropy = nn.BCEWithLogitsLoss(reduction="none")
    pipeline = recall(states=("h", "c"), order="lanes", state_placement="trainer")
    with (
        hs.run(pipeline) as server,
        headrace.connect(server.address, framework="torch") as feed,
    ):
        for batch in feed:
            x = batch.sequences["x"].to(DEVICE)
            wanted = batch.context["bit"].to(DEVICE)[:, None].expand(-1, STEPS)
            mask = torch.arange(STEPS) < batch.length[:, None]
            h, c = batch.state("h").to(DEVICE), batch.state("c").to(DEVICE)
            logits, h, c = model(x, h, c)
            loss = cross_entropy(logits, wanted)[mask.to(DEVICE)].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batch.save_state("h", h)
            batch.save_state("c", c)
            report.add(loss.item())
    report.end()


if __name__ == "__main__":
    main()
