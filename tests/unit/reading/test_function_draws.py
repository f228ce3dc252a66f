"""A function that draws gets the same numbers for an example whenever and wherever it is called."""

from __future__ import annotations

import headrace_server as hs
from headrace_server.files.index_cache import IndexCache
from headrace_server.pipeline.builder import Pipeline
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.intake import Intake
from headrace_server.reading.row_functions import Draws
from headrace_server.reading.sources import open_reader
from headrace_server.shaping.plan import Read


def numbers(
    pipeline: Pipeline, partitions: int = 1, limit: int = 7
) -> dict[tuple[int, int], float]:
    """The number that each example drew, by example and epoch."""
    declaration = pipeline.batch(1).declaration()
    found: dict[tuple[int, int], float] = {}
    for partition in range(partitions):
        bad = BadRecords()
        reader = open_reader(declaration.source, (), bad, IndexCache(None))
        intake = Intake(reader, declaration, partition, partitions, bad)
        for epoch in range(declaration.order.epochs or 0):
            position = intake.start
            while position is not None:
                most = intake.limit(limit)
                chunk, position = intake.chunk(Read(0, epoch, position, most))
                pairs = zip(chunk.columns["i"].tolist(), chunk.columns["u"].tolist(), strict=True)
                for i, u in pairs:
                    found[i, epoch] = u
    return found


def source(n: int = 600) -> Pipeline:
    return hs.from_examples([{"i": i} for i in range(n)]).shuffle(seed=1).repeat(2)


def test_a_generator_is_a_function_of_seed_stage_epoch_and_ordinal():
    draws = Draws(7, 2)
    assert draws.generator(0, 5).random(3).tolist() == draws.generator(0, 5).random(3).tolist()
    seen = set()
    for seed, stage, epoch, ordinal in [
        (7, 2, 0, 5),
        (8, 2, 0, 5),
        (7, 3, 0, 5),
        (7, 2, 1, 5),
        (7, 2, 0, 6),
        (7, 2, 0, -6),
    ]:
        draws = Draws(seed, stage)
        seen.add(draws.generator(epoch, ordinal).integers(2**62))
    assert len(seen) == 6


def test_generators_are_pinned_since_another_one_would_change_runs_that_are_resumed():
    raw = Draws(7, 0).generator(0, 3).bit_generator.random_raw(2)
    assert raw.tolist() == [5127681270110856949, 6488534293789767082]
