"""tensorpack's MultiProcessRunnerZMQ: every one of its processes runs the whole dataflow.

    batch by hand ─► msgpack ─► ZeroMQ (ipc) ─► arrays      in each process, nothing is shared out

So with two processes each batch comes twice.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from . import by_hand
from .steps import ENDED, LOADED, READY, Check, Contestant, Steps

#: Batches in each queue.  What waits there between two windows must be used up in a run-in.
_AHEAD = 4


def runner(workload: str, processes: int, check: Check) -> Contestant:
    def steps(directory: Path) -> Steps:
        # Cheaper than pickle here, which is what it takes unless told.
        os.environ["TENSORPACK_ONCE_SERIALIZE"] = "msgpack"
        from tensorpack.dataflow import DataFlow, MultiProcessRunnerZMQ

        yield LOADED
        source = by_hand.SOURCES[workload](directory)

        class Batches(DataFlow):  # type: ignore[misc]
            def __iter__(self) -> Iterator[by_hand.Batch]:
                return map(source.batch, itertools.count())

        flow = MultiProcessRunnerZMQ(Batches(), processes, hwm=_AHEAD)
        flow.reset_state()
        yield READY
        checked = False
        for batch in flow:
            if not checked:
                checked = True
                check(batch, directory)
            yield 1
        yield ENDED

    return steps
