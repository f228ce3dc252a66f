"""Batches of segments as a server describes them, and a trainer's link without servers."""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace

import numpy as np

from headrace.batch_memory import Body
from headrace.framework import Framework
from headrace.session import Member, Session
from headrace.trainer import Held
from headrace_proto.dtypes import BYTES
from headrace_proto.layout import Slot, aligned_bytes, arrange, array_at, strings_at
from headrace_proto.messages import (
    Given,
)
from headrace_proto.schema import Field
from headrace_proto.segment_layout import SegmentLayout

UNROLL, LANES = 2, 4
LSTM, TAG = ["lstm", "float32", [3]], ["tag", "bytes", []]


def properties(states=(LSTM,), placement="server", order="arrival"):
    return {
        "shape": "sequences",
        "num_unroll": UNROLL,
        "batch_size": LANES,
        "order": order,
        "placement": placement,
        "states": [list(s) for s in states],
    }


def schema_of(told):
    """The wire schema of a feed of such properties, with one sequence and one context."""
    schema = {"@key": Field(BYTES, (None,))}
    for name in ("sequence", "sequence_count", "length", "total_length"):
        schema["@" + name] = Field("int32", (None,))
    schema["@insertion_index"] = Field("int64", (None,))
    if told["order"] == "lanes":
        schema["@lane"] = Field("int32", (None,))
    schema["sequences:x"] = Field("float32", (None, UNROLL))
    schema["context:y"] = Field("int64", (None,))
    if told["placement"] == "trainer":
        schema["@starts"] = schema["@state_of"] = Field("int32", (None,))
    for name, dtype, dims in told["states"]:
        schema["state:" + name] = Field(dtype, (None, *dims))
    return schema


def columns_of(told, rows=2, sequence=0, count=2, **given):
    """Columns of a batch: plain ones, or those that are given (``state_lstm`` is state:lstm)."""
    made = {
        "@key": [b"k%d" % i for i in range(rows)],
        "@sequence": np.full(rows, sequence),
        "@sequence_count": np.full(rows, count),
        "@length": np.full(rows, UNROLL),
        "@total_length": np.full(rows, UNROLL * count),
        "@insertion_index": np.arange(rows) + np.int64(-(2**63)),
        "@lane": np.arange(rows),
        "sequences:x": np.arange(rows * UNROLL).reshape(rows, UNROLL),
        "context:y": np.arange(rows) + 10,
        "@starts": np.arange(0 if np.any(sequence) else rows),
        "@state_of": np.full(0 if np.any(sequence) else rows, -1),
    }
    states = 0 if told["placement"] == "trainer" else rows
    for name, dtype, dims in told["states"]:
        empty = [b""] * (states * int(np.prod(dims, dtype=int)))
        made["state:" + name] = empty if dtype == BYTES else np.zeros((states, *dims))
    for name, value in given.items():
        group, _, inner = name.partition("_")
        known = f"@{name}" in made
        made[f"@{name}" if known else f"{group}:{inner}"] = value
    return {name: made[name] for name in schema_of(told)}


def block_of(told, columns):
    """The block of a batch, and where its columns lie."""
    schema, wanted = schema_of(told), []
    for name, value in columns.items():
        field = schema[name]
        strings = field.dtype == BYTES
        wanted.append(
            (
                field.dtype,
                (len(value),) if strings else np.shape(value),
                sum(map(len, value)) if strings else 0,
            )
        )
    slots, nbytes = arrange(wanted)
    block = aligned_bytes(nbytes)
    for slot, value in zip(slots, columns.values(), strict=True):
        if slot.dtype == BYTES:
            ends = np.cumsum([0, *map(len, value)])
            data = ends.astype("<i8").tobytes() + b"".join(value)
            block[slot.offset : slot.offset + len(data)] = np.frombuffer(data, np.uint8)
        else:
            array_at(block, slot)[...] = value
    return block, [[slot.offset, slot.nbytes, list(slot.shape)] for slot in slots]


def given_of(told, token, columns, rows=None, partition=0, request=0):
    """A batch of these columns, and its block."""
    block, places = block_of(told, columns)
    rows = len(columns["@key"]) if rows is None else rows
    turn = 0, token
    return (
        Given(request, token, partition, token, *turn, 0, rows, block.nbytes, places, frame=1),
        block,
    )


class FakeLink:
    """A link without servers: batches in a trainer's hands, and the calls that it gets."""

    def __init__(self):
        self.trainer = SimpleNamespace(hands={})
        self.lock = threading.RLock()
        self.member = Member()
        self.session = Session(self.member)
        self.left = None
        self.explain = None
        self.looked_at = 0.0
        self.saved, self.returned = {}, []

    def lose(self):
        """Let other trainers have all that is in hand."""
        for held in self.trainer.hands.values():
            held.stale = True

    def session_of(self, partition):
        return self.session

    def check_usable(self):
        if self.left:
            raise self.left

    def save(self, token, states):
        held = self.trainer.hands.pop(token, None)
        counts = held is not None and not held.stale
        if counts:
            self.saved[token] = states
        return counts

    def give_back(self, token):
        if self.trainer.hands.pop(token, None):
            self.returned.append(token)


def in_hand(told, *batches, framework=None, partitions=None):
    """A Saving with the batches of these columns in hand, and its link."""
    from headrace.saving import Saving

    layout = SegmentLayout(schema_of(told), told)
    link = FakeLink()
    saving = Saving(link, layout, framework or Framework())
    hands = SimpleNamespace(saving=saving, link=link, batches=[], last=0, ready=deque())

    def deliver(columns, token=None, partition=0, spoil=None):
        hands.last = token or hands.last + 1
        given, block = given_of(told, hands.last, columns, partition=partition)
        if spoil:
            spoil(block, given.columns)
        held = link.trainer.hands[given.token] = Held(given, Body(block), given.token, given.token)
        hands.ready.append(held)

    def take():
        held = hands.ready[0]
        if saving.kept and not saving.accepts(held):
            return None
        hands.ready.popleft()
        batch = saving.begin(held, held.source.memory)
        hands.batches.append(batch)
        return batch

    hands.deliver, hands.take = deliver, take
    for columns in batches:
        deliver(columns)
        take()
    return hands


def states_in(told, columns, block, report=b""):
    """Return the states that a server reads from an uploaded block."""
    block = np.frombuffer(bytes(block), np.uint8)
    read = {}
    for (name, dtype, _), (offset, nbytes, shape) in zip(told["states"], columns, strict=True):
        slot = Slot(dtype, tuple(shape), offset, nbytes)
        read[name] = (strings_at if dtype == BYTES else array_at)(block, slot)
    return read
