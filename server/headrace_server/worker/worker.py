"""A worker process: the supervisor begins it, and its life is that of an owner."""

from __future__ import annotations

import logging
import resource
import sys
import time
import traceback
from contextlib import suppress
from typing import Any

from ..pipeline.by_source import source_directory
from ..pipeline.forks import OwnProcess, let_go_in_children
from ..process.child import ParentPipe
from ..process.config import RunConfig
from ..process.diary import Diary
from .opening import Life
from .owner import Owner
from .relay_door import FrontGone

__all__ = ["main"]

#: So long a worker whose front has died waits for its own end.
_ALONE_S = 5.0
#: Where memory runs out the kernel is to take a worker, which can be replaced, and not the front.
_OOM_SCORE = b"500"


def _bound_memory(most: int) -> None:
    """What this process may take for itself: slabs and mapped files do not count.  0: any."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb", 0) as score:
        score.write(_OOM_SCORE)
    if most:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def main() -> None:
    """Entry of the process."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    pipe = ParentPipe()
    plain = pipe.read_config()
    config = RunConfig.from_plain(plain["run"])
    pipe.watch()
    sys.path[:0] = [path for path in config.python_path if path not in sys.path]
    sys.path.append(str(source_directory(config.directory)))
    limit = plain["memory_bytes"]
    _bound_memory(limit)

    def passed(feed: str, rows: list[int]) -> None:
        pipe.tell("passed", feed=feed, rows=rows)

    def functions(feed: str, found: Any) -> None:
        pipe.tell("functions", feed=feed, functions=found)

    try:
        life = Life(
            config=config,
            worker=plain["worker"],
            number=plain["life"],
            diary=Diary(plain["diary"]),
            marks=plain["marks"],
            passed=passed,
            functions=functions,
        )
        worker = Owner(life, pipe, plain["begun"])
        let_go_in_children(lambda: (*pipe.filenos, *worker.filenos()))
        with OwnProcess():
            worker.run()
        worker.close()
    except BaseException as error:
        if isinstance(error, (BrokenPipeError, FrontGone)):
            time.sleep(_ALONE_S)  # a front that died ends us too, and says why
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError):
            text = f"it ran out of memory (worker_memory_bytes={limit or 'unbounded'}): {text}"
        pipe.tell("dying", text=text)
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
