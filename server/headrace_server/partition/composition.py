"""A declared partition becomes a run of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import numpy as np

from headrace_proto.schema import Field

from ..making.segment_cutting import Cutting
from ..making.slab import Slab
from ..pipeline.declaration import SEQUENCES, Declaration, Shape
from ..reading.chunk import BadRecords, Chunk
from ..reading.intake import Intake
from ..reading.source import StreamSource
from ..reading.sources.live import LogReader
from ..shaping.input import Input
from ..shaping.plain import PlainMachine
from .live_run import LiveRun
from .partition_run import Run
from .plain_run import PlainRun
from .segment_run import SegmentRun

#: Options of shapes by which the last rows come in smaller batches.
_SMALLER = ("allow_smaller_final_batch", "allow_small_batch")
#: This shape offers neither to users.
_WHOLE = "stratified_sample_unknown_dist"


def shape_check(
    shape: Shape, fields: Mapping[str, Field], bad: BadRecords
) -> Callable[[Chunk], tuple[Chunk, np.ndarray]]:
    """Return the check of a chunk by the shape, which reports rows that it can not place.

    It returns the others, and their steps: 0 where the shape does not cut them.
    """
    if shape.kind == SEQUENCES:
        cutting = Cutting(shape, fields, 0)

        def cut(chunk: Chunk) -> tuple[Chunk, np.ndarray]:
            chunk, offer = cutting.offer(chunk, bad, 0)
            return chunk, offer.steps

        return cut
    made = shape.made()
    made.open(0)

    def placed(chunk: Chunk) -> tuple[Chunk, np.ndarray]:
        chunk = made.facts(chunk, bad)[0]
        return chunk, np.zeros(len(chunk), np.int64)

    return placed


def drops_of(shape: Shape, dropped: Mapping[str, int]) -> str:
    """Return which rows a partition without a batch has dropped, and how to keep them."""
    listed = ", ".join(f"{count} as {reason}" for reason, count in dropped.items())
    if "remainder" not in dropped:
        return listed
    given = [name for name in _SMALLER if shape.options.get(name) is False]
    keep = f", or {given[0]}=True, which keeps them" if given and shape.kind != _WHOLE else ""
    return f"{listed}, which fill no batch; give a smaller batch_size or fewer partitions{keep}"


def compose(
    reader: StreamSource,
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
    order, shape = declaration.order, declaration.shape
    if declaration.segmented:
        cutting = Cutting(shape, intake.fields, partition, declaration.live)
        cutting.check_state_bytes(max_state_bytes)
        segments = cutting.machine
        segments.targets, segments.mix = intake.stratified, intake.mix
        segments.input = Input(segments, intake.start, order.epochs, order.across_batches)
        if isinstance(reader, LogReader) and declaration.live:
            return LiveRun(intake, cutting, slab, reader)
        return SegmentRun(intake, cutting, slab)
    made = shape.made()
    made.open(partition)
    rows = Input(made.shaper, intake.start, order.epochs, order.across_batches)
    machine = PlainMachine(partition, rows, made.shaper)
    machine.targets, machine.mix = [*intake.stratified, *machine.targets], intake.mix
    run = PlainRun(intake, machine, slab, made)
    run.schema  # noqa: B018 - the shape refuses columns that it can not batch
    return run
