"""Streaming speech: a recogniser that sees chunks with some history and a little look-ahead.

python examples/streaming_speech.py

    ─────────┬────────────────┬─────        left + num_unroll + right frames; the chunk's
     history │     chunk      │ ahead       own are those between the lines
    ─────────┴────────────────┴─────

A frame's class depends on frames on both sides of it, so the frames at the borders of a chunk need
its context.  Nothing is carried on, so the server keeps no state.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import headrace
import headrace_server as hs

LEFT, CHUNK, RIGHT, BANDS = 8, 16, 4, 4


def utterances() -> hs.Pipeline:
    chance = np.random.default_rng(1)
    examples = []
    for i in range(64):
        frames = chance.normal(size=(chance.integers(40, 120), BANDS)).astype(np.float32)
        far = np.pad(frames[:, 0], (LEFT, RIGHT))
        classes = (far[: len(frames)] > 0) + 2 * (far[LEFT + RIGHT :] > 0)
        examples.append({"utt": f"u{i}", "audio": frames, "class": classes.astype(np.int64)})
    return (
        hs.from_examples(examples)
        .shuffle(seed=1)
        .repeat(8)
        .batch_sequences_with_states(
            input_key="utt",
            input_sequences=["audio", "class"],
            input_context=[],
            initial_states={},
            num_unroll=CHUNK,
            left=LEFT,
            right=RIGHT,
            batch_size=16,
            order="lanes",
        )
    )


def main() -> None:
    torch.manual_seed(1)
    # The convolution takes the frames from LEFT before to RIGHT after each frame of the chunk.
    model = nn.Sequential(nn.Conv1d(BANDS, 32, LEFT + 1 + RIGHT), nn.ReLU(), nn.Conv1d(32, 4, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    with (
        hs.run(utterances()) as server,
        headrace.connect(server.address, framework="torch") as feed,
    ):
        for batch in feed:
            logits = model(batch.sequences["audio"].transpose(1, 2))  # [B, 4, CHUNK]
            classes = batch.sequences["class"][:, LEFT : LEFT + CHUNK]
            real = torch.arange(CHUNK) < batch.length[:, None]
            loss = nn.functional.cross_entropy(logits, classes, reduction="none")[real].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    print(f"loss {np.mean(losses[:20]):.3f} at first, {np.mean(losses[-20:]):.3f} at the end")


if __name__ == "__main__":
    main()
