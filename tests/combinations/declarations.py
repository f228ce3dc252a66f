"""Declarations drawn at random: any stages before any shape.

A ``Draw`` is data, of which the pipeline of the server, the declaration of the reference and the
program that a failure prints are made.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import headrace_server as hs
from tests.combinations import functions
from tests.reference import Call, Declared

_HERE = functions.__name__
_NAMES = [name for name in functions.examples(1)[0] if name != "z"]
_MIX = [0.5, 0.3, 0.2]

#: Stages of each kind, by a name that tells them apart.
STAGES: Mapping[str, Call] = {
    "map": ("map", {"fn": f"{_HERE}:heavier"}),
    "map seed": ("map", {"fn": f"{_HERE}:shaken", "seed": 5}),
    "map vectorized": ("map", {"fn": f"{_HERE}:doubled", "vectorized": True}),
    "map vectorized seed": (
        "map",
        {"fn": f"{_HERE}:shaken_together", "vectorized": True, "seed": 5},
    ),
    "flat_map": ("flat_map", {"fn": f"{_HERE}:pieces"}),
    "unbatch": ("unbatch", {}),
    "filter": ("filter", {"fn": f"{_HERE}:is_light"}),
    "filter vectorized": ("filter", {"fn": f"{_HERE}:are_light", "vectorized": True}),
    "select": ("select", {"names": _NAMES}),
    "with_origin": ("with_origin", {}),
    "rejection_sample": ("rejection_sample", {"accept_prob": "p", "seed": 3}),
    "rejection_sample function": ("rejection_sample", {"accept_prob": f"{_HERE}:likely"}),
    "rejection_sample many": ("rejection_sample", {"accept_prob": "p", "enqueue_many": True}),
    "stratified_sample": ("stratified_sample", {"labels": "y", "target_probs": _MIX, "seed": 2}),
    "stratified_sample known": (
        "stratified_sample",
        {"labels": f"{_HERE}:thirds", "target_probs": _MIX, "init_probs": [0.4, 0.3, 0.3]},
    ),
    "stratified_sample many": (
        "stratified_sample",
        {"labels": "y", "target_probs": _MIX, "enqueue_many": True},
    ),
    "resample_at_rate": ("resample_at_rate", {"rates": "w", "seed": 4}),
    "weighted_resample": ("weighted_resample", {"weights": "w", "overall_rate": 1.5}),
    "weighted_resample by class": (
        "weighted_resample",
        {"weights": [1.0, 2.0, 4.0], "labels": "y", "overall_rate": 0.8, "warmup": None},
    ),
}
#: Stages that need examples with several rows.
_OF_MANY = [
    name for name, (call, given) in STAGES.items() if call == "unbatch" or "enqueue_many" in given
]
#: Stages that may make several rows of one.
_REPEATING = ("flat_map", "resample_at_rate", "weighted_resample")

_PADDED = {"dynamic_pad": True, "allow_smaller_final_batch": True}
_CUT: dict[str, Any] = {
    "input_key": "key",
    "input_sequences": ["x"],
    "input_context": ["n", "y"],
    "initial_states": {"s": "h", "r": np.float32(1)},
    "num_unroll": 2,
    "batch_size": 4,
}
_SEGMENTS = {**_CUT, "make_keys_unique": True}
_LANES = {**_SEGMENTS, "order": "lanes"}
_LENGTHS = {"input_length": "x", "batch_size": 3, "bucket_boundaries": [3, 5]}

#: Shapes of each kind.
SHAPES: Mapping[str, Call] = {
    "batch": ("batch", {"batch_size": 4, **_PADDED}),
    "batch full": ("batch", {"batch_size": 3, "dynamic_pad": True}),
    "batch ragged": ("batch", {"batch_size": 4, "ragged": True, "allow_smaller_final_batch": True}),
    "batch pad_to": ("batch", {"batch_size": 4, "dynamic_pad": True, "pad_to": {"x": 7}}),
    "batch pad_to_multiple": ("batch", {"batch_size": 4, "pad_to_multiple": 4, **_PADDED}),
    "bucket": (
        "bucket",
        {"which_bucket": "y", "batch_size": [2, 3, 4], "num_buckets": 3, **_PADDED},
    ),
    "bucket keep_input": (
        "bucket",
        {
            "which_bucket": f"{_HERE}:thirds",
            "batch_size": 3,
            "num_buckets": 3,
            "keep_input": "c",
            "input_length": "x",
            "dynamic_pad": True,
        },
    ),
    "by length": ("bucket_by_sequence_length", {**_LENGTHS, **_PADDED}),
    "by length budget": (
        "bucket_by_sequence_length",
        {**_LENGTHS, **_PADDED, "max_padded_elements": 14},
    ),
    "by length boundary": (
        "bucket_by_sequence_length",
        {**_LENGTHS, **_PADDED, "pad_to_boundary": True},
    ),
    "by length ragged": (
        "bucket_by_sequence_length",
        {**_LENGTHS, "ragged": True, "max_padded_elements": 14},
    ),
    "rejection_sample": ("rejection_sample", {"accept_prob": "p", "batch_size": 4, **_PADDED}),
    "stratified_sample": (
        "stratified_sample",
        {"labels": "y", "target_probs": _MIX, "batch_size": 4, **_PADDED},
    ),
    "unknown_dist": (
        "stratified_sample_unknown_dist",
        {"labels": "y", "probs": _MIX, "batch_size": 4, "dynamic_pad": True},
    ),
    "segments": ("batch_sequences_with_states", _SEGMENTS),
    "segments full": (
        "batch_sequences_with_states",
        {**_SEGMENTS, "input_length": "t", "allow_small_batch": False},
    ),
    "segments lanes": ("batch_sequences_with_states", _LANES),
    "segments trainer": (
        "batch_sequences_with_states",
        {**_LANES, "state_placement": "trainer", "initial_states": {"r": np.float32(1)}},
    ),
    "segments stateless": ("batch_sequences_with_states", {**_LANES, "initial_states": {}}),
    "segments windows": (
        "batch_sequences_with_states",
        {**_SEGMENTS, "num_unroll": 3, "stride": 2, "left": 1, "right": 2},
    ),
    "segments phase": ("batch_sequences_with_states", {**_LANES, "stride": 2, "phase": "random"}),
    "state saver": (
        "sequence_queueing_state_saver",
        {**_CUT, "input_length": "t", "allow_small_batch": True},
    ),
}
SEGMENTED = [name for name, (call, _) in SHAPES.items() if "initial_states" in SHAPES[name][1]]


@dataclass(frozen=True)
class Source:
    """So many examples, each of several rows or of one, read forward or by number."""

    count: int
    batched: bool = False
    forward: bool = False
    first: int = 0

    def examples(self) -> list[functions.Example]:
        return functions.examples(self.count, self.batched, self.first)

    def pipeline(self) -> hs.Pipeline:
        if self.forward:
            return hs.from_function(f"{_HERE}:stream", self.count, self.batched)
        return hs.from_examples(self.examples())

    def __repr__(self) -> str:
        if self.forward:
            return f'hs.from_function("{_HERE}:stream", {self.count}, {self.batched})'
        return f"hs.from_examples(examples({self.count}, {self.batched}, {self.first}))"


@dataclass(frozen=True)
class Draw:
    """A declaration, the number of partitions of its feed, and what interrupts its training."""

    name: str
    source: Source
    calls: tuple[Call, ...]
    partitions: int
    #: After so many batches a snapshot is taken, from which another server goes on.
    resumed_after: int | None = None

    @property
    def segmented(self) -> bool:
        return "initial_states" in self.calls[-1][1]

    @property
    def across_batches(self) -> bool:
        """Whether a batch may hold rows of two epochs."""
        return all(given.get("across_batches", True) for _, given in self.calls)

    def declared(self) -> Declared:
        """Return the declaration as the reference takes it."""
        calls = [
            (name, {n: v.examples() if isinstance(v, Source) else v for n, v in given.items()})
            for name, given in self.calls
        ]
        return Declared(self.source.examples(), calls, self.source.forward)

    def pipeline(self) -> hs.Pipeline:
        """Return the declaration as the server takes it."""
        pipeline = self.source.pipeline()
        for name, given in self.calls:
            options = {n: v.pipeline() if isinstance(v, Source) else v for n, v in given.items()}
            pipeline = getattr(pipeline, name)(**options)
        return pipeline

    def program(self) -> str:
        """Return a program that shows the feed."""
        batches = "feed"
        if not self.across_batches:
            batches = "(batch for _, epoch in feed.epochs() for batch in epoch)"
        calls = "\n".join(
            f"    .{name}({', '.join(f'{n}={_text(v)}' for n, v in given.items())})"
            for name, given in self.calls
        )
        return (
            "import headrace, headrace_server as hs, numpy as np\n"
            f"from {_HERE} import examples\n"
            f"pipeline = ({self.source}\n{calls})\n"
            'if __name__ == "__main__":\n'
            f"    with hs.run(pipeline, partitions={self.partitions}) as server:\n"
            "        with headrace.connect(server.address, prefetch=0) as feed:\n"
            f"            for batch in {batches}:\n"
            "                print(batch.partition, batch.number, batch)\n"
            + (
                "                [batch.save_state(n, batch.state(n)) for n in feed.states]\n"
                if self.segmented
                else ""
            )
        )


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {_text(one)}" for name, one in value.items()) + "}"
    return f"np.{type(value).__name__}({value})" if isinstance(value, np.generic) else repr(value)


def drawn(chance: random.Random, stage: str, shape: str, partitions: int) -> Draw:
    """Draw a declaration with this stage before this shape."""
    stages = [stage]
    others = [
        name for name in STAGES if name not in _OF_MANY and STAGES[name][0] != STAGES[stage][0]
    ]
    if chance.random() < 0.4:
        # rows of a batch come apart first
        stages.insert(1 if stage in _OF_MANY else chance.choice((0, 1)), chance.choice(others))
    if chance.random() < 0.4:
        stages.insert(len(stages) if stage in _OF_MANY else 0, "with_origin")
    calls = [STAGES[name] for name in stages]
    if shape == "state saver" and any(name in _REPEATING for name, _ in calls):
        calls.append(("map", {"fn": f"{_HERE}:other_key", "seed": 1}))
    batched = any(name in _OF_MANY for name in stages)
    source = Source(chance.randrange(24, 40), batched, chance.random() < 0.25)
    forward, order = source.forward, list[Call]()
    if chance.random() < 0.3:
        order += [("skip", {"n": 3}), ("take", {"n": 20})]
    if not forward and chance.random() < 0.3:
        order.append(("concat", {"other": Source(7, batched, first=100)}))
    if chance.random() < 0.7:
        window = chance.choice((5, 9)) if forward or chance.random() < 0.3 else None
        options = {"seed": chance.randrange(99), "window": window}
        order.append(("shuffle", {**options, "reshuffle": chance.random() < 0.8}))
    if chance.random() < 0.3:
        order.append(("repeat", {"n": 2, "across_batches": chance.random() < 0.5}))
    return Draw(
        f"{stage} before {shape}",
        source,
        (*order, *calls, SHAPES[shape]),
        partitions,
    )
