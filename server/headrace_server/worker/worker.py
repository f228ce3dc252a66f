"""The entry of a worker process, which the supervisor starts as an owner of partitions."""

from __future__ import annotations

import resource
import sys
import threading
import traceback
from contextlib import suppress

from ..net.sockets import CanNotBind
from ..pipeline.forks import OwnProcess, let_go_in_children
from ..process.child import Pipe
from ..process.config import Life
from ..process.log_lines import log_to_stderr
from .owner import Owner

#: When memory runs out, the kernel kills a worker, which can be replaced, before others.
_OOM_SCORE = b"500"


def _bound_memory(most: int) -> None:
    """Bound the private memory of this process, without slabs and mapped files.  0: no bound."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb", 0) as score:
        score.write(_OOM_SCORE)
    if most:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def serve(life: Life, pipe: Pipe) -> None:
    """Run one life of a worker until an order to stop."""
    sys.path[:0] = [path for path in life.config.python_path if path not in sys.path]
    try:
        worker = Owner(life, pipe)
    except CanNotBind as error:
        pipe.report("not_bound", text=str(error))  # the supervisor ends this process
        threading.Event().wait()
        return
    let_go_in_children(lambda: (pipe.fileno(), *worker.filenos()))
    with OwnProcess():
        worker.run()
    worker.close()


def main() -> None:
    """Run the process."""
    log_to_stderr()
    pipe = Pipe()
    life = pipe.read_config()
    limit = life.memory_bytes
    _bound_memory(limit)
    try:
        serve(life, pipe)
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError):
            text = f"it ran out of memory (worker_memory_bytes={limit or 'unbounded'}): {text}"
        pipe.report("dying", text=text)
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
