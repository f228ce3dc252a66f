"""Any stages before any shape: a partition gives what the reference says, in any process."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.batches.batch import Batch, RaggedBatch, columns_of
from headrace.batches.segments import SegmentBatch
from headrace.framework import NUMPY
from headrace_proto.layout import KnownSlots
from headrace_proto.schema import RESERVED
from headrace_proto.segment_layout import SegmentLayout
from headrace_server.leasing.words import Batch as Made
from headrace_server.leasing.words import Outlook
from tests.combinations import training
from tests.combinations.declarations import MARK, SHAPES, STAGES, Feed, drawn
from tests.combinations.laws import Case
from tests.combinations.runs import Draw, Place, Run
from tests.patience import eventually
from tests.unit import segment_player
from tests.unit.changes import Model
from tests.unit.segment_player import Player


class Trainer:
    """The only trainer of a partition, which other processes own one after the other."""

    def __init__(self, feed: Feed, parts: tuple[int, int], directory: Path) -> None:
        self.feed, self.parts, self.directory = feed, parts, directory
        self.model = Model()
        self.player = Player(feed.pipeline(), directory, parts=parts)

    def die(self) -> None:
        """Let another process own the partition, which knows what was stored."""
        tokens = self.player.tokens
        self.player = Player(self.feed.pipeline(), self.directory, parts=self.parts)
        self.player.tokens = tokens
        self.player.feed.resume(self.model.saved)

    def _step(self, epoch: int) -> Made | Outlook | None:
        """Return None where a source that is read ahead has nothing yet."""
        made = self.player.step(epoch=epoch)
        return None if made is Outlook.WAITS else made

    def take(self, epoch: int) -> training.Taken | Outlook:
        """Take a batch, as a trainer's process shows it, and commit it."""
        player, run = self.player, self.player.feed
        made = eventually(lambda: self._step(epoch))
        if isinstance(made, Outlook):
            return made
        block = player.slab.memory(made.body.block).copy()
        schema = dict(run.schema)
        given: Any = SimpleNamespace(
            token=1,
            partition=self.parts[0],
            number=made.number,
            rows=made.rows,
            epoch=made.epoch,
            bucket=made.bucket,
            nbytes=made.nbytes,
            columns=[[slot.offset, slot.nbytes, [*slot.shape]] for slot in made.body.slots],
        )
        slots = KnownSlots(schema).of(given)
        facts = {n[1:] for n in schema if n[0] == RESERVED and not n.startswith("@offsets:")}
        states: set[str] = set()
        if self.feed.segmented:
            layout = SegmentLayout(schema, run.properties)
            states = set(layout.states)
            batch: Any = SegmentBatch(given, slots, block, NUMPY, None, layout)
        else:
            ragged = any(field.ragged for field in columns_of(schema).values())
            batch = (RaggedBatch if ragged else Batch)(given, slots, block, NUMPY)
        shown: Any = SimpleNamespace(facts=facts, states=states)
        size = self.feed.shape["batch_size"]
        lanes = size if self.feed.lanes else 0
        taken = training.Taken(0, 0, training._plain(shown, batch), lanes, "done")
        saved = {n: training._after(shown, batch, n, batch.state(n)) for n in states - {MARK}}
        saved = {n: value.astype(batch.state(n).dtype) for n, value in saved.items()}
        if MARK in states:
            taken.marks = saved[MARK] = np.random.default_rng().integers(1 << 62, size=made.rows)
        assert player.save(segment_player.Taken(made, {}), saved) is None
        player.slab.free(made.body.block)
        for change in run.take_records():
            self.model.apply(change)
        return taken


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "segments trainer"])
def test_drawn_feeds_give_the_batches_of_the_reference(shape: str, tmp_path: Path) -> None:
    chance = random.Random(shape)
    for stage in chance.sample(sorted(STAGES), 6):
        feed = drawn(chance, stage, shape)
        if feed.states == "trainer":
            continue
        partitions = chance.randint(1, 3)
        deaths = chance.choice((0, 2, 6))
        taken = []
        for partition in range(partitions):
            trainer, epoch = Trainer(feed, (partition, partitions), tmp_path), 0
            counts: Counter[int] = Counter()
            while (one := trainer.take(epoch)) is not Outlook.ENDED:
                if one is Outlook.OVER:
                    epoch += 1
                    continue
                assert isinstance(one, training.Taken)
                of = one.values["@epoch"] if feed.borders else 0
                turn = 0 if feed.lanes else counts[of]  # lanes go on in their partition
                taken.append(((of, turn, partition), one))
                counts[of] += 1
                if deaths and chance.random() < 0.3:
                    deaths -= 1
                    trainer.die()
        taken.sort(key=lambda of: of[0])
        place, run = Place(partitions), Run()
        draw = Draw(f"{stage}, {shape}", feed, run)
        faults = Case(draw, partitions).broken(place, run, [one for _, one in taken])
        assert not faults, f"{draw.name}: {faults}\n{draw.program(place)}"


def test_packed_lanes_with_room_for_no_more_go_on_in_another_process(tmp_path: Path) -> None:
    feed = Feed(12).batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        initial_states={MARK: np.int64(0)},
        num_unroll=3,
        batch_size=2,
        order="lanes",
        pack=True,
        capacity=2,
    )
    for batches in range(1, 8):
        trainer = Trainer(feed, (0, 1), tmp_path)
        for _ in range(batches):
            assert isinstance(trainer.take(0), training.Taken)
        trainer.die()
        while isinstance(one := trainer.take(0), training.Taken):
            pass
        assert one is Outlook.ENDED
