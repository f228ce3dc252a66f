"""A source, and the arguments of segments of it, for tests of calls."""

from __future__ import annotations

from typing import Any

import headrace_server as hs

FEATURES = {"k": hs.scalar("bytes"), "x": hs.scalar("int64"), "v": hs.sequence("float32")}
SOURCE = hs.read_tfrecord("/data/a-*.tfrecord", FEATURES)
SEGMENTS: dict[str, Any] = {
    "input_key": "k",
    "input_sequences": ["v"],
    "input_context": [],
    "input_length": "x",
    "initial_states": {"h": hs.zeros((2,))},
    "num_unroll": 5,
    "batch_size": 4,
}
