"""Composes the run of a partition: which machine, maker and commits a declaration needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from headrace_proto.schema import Field

from ..core.partition import Partition
from ..pipeline.declaration import SEQUENCES, Declaration, Shape
from ..reading.chunk import Chunk
from ..reading.intake import Intake
from ..reading.reader import BadRecords, Reader
from .partition_run import Run
from .plain_commits import PlainCommits
from .plain_maker import PlainMaker
from .segment_commits import SegmentCommits
from .segment_cutting import Cutting
from .segment_maker import SegmentMaker
from .shaping import Shaping
from .slab import Slab
from .stored_examples import StoredExamples


def segmented(declaration: Declaration) -> bool:
    """Return whether batches are of segments, with states."""
    return declaration.shape.kind == SEQUENCES


def shape_check(
    shape: Shape, fields: Mapping[str, Field], bad: BadRecords
) -> Callable[[Chunk], object]:
    """Return the check of a chunk by the shape, which reports rows that it can not place."""
    if shape.kind == SEQUENCES:
        cutting = Cutting(shape, fields, 0)
        return lambda chunk: cutting.offer(chunk, bad, 0)
    shaping = Shaping(shape, 0)
    return lambda chunk: shaping.facts(chunk, bad)


def compose(
    reader: Reader,
    declaration: Declaration,
    partition: int,
    partitions: int,
    slab: Slab,
    bad: BadRecords,
    max_state_bytes: int = sys.maxsize,
) -> Run:
    """Return a run of one partition, at its beginning.

    LimitExceeded where the states of an example have more than ``max_state_bytes``.
    """
    intake = Intake(reader, declaration, partition, partitions, bad)
    epochs, across = declaration.order.epochs, declaration.order.across_batches
    if not segmented(declaration):
        maker = PlainMaker(intake, declaration.shape, partition)
        machine = Partition(maker.shaping.machine, intake.start(), epochs, across)
        return Run(intake, machine, maker, PlainCommits(intake, machine, maker), slab)
    cutting = Cutting(declaration.shape, intake.fields, partition)
    cutting.check_state_bytes(max_state_bytes)
    stored = StoredExamples()
    segment_maker = SegmentMaker(intake, cutting, stored, slab)
    machine = Partition(cutting.machine, intake.start(), epochs, across, waits=not across)
    commits = SegmentCommits(intake, machine, segment_maker, stored)
    return Run(intake, machine, segment_maker, commits, slab)
