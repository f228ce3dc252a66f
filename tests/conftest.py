"""The check of every test when it ends: it may leave nothing behind.

Threads, child processes and shared memory that were not there before are a failure of the test
that left them.  Shared memory of a process that was killed is there until the next start of a
server sweeps it: where tests run in several processes it can be any one's, so it is looked for
when all have ended.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_server.process.rundir import sweep

from . import examples as examples  # sets how many a property is tried with
from .children import children_of
from .nursery import FRAMEWORKS, NURSERY, warm_starts
from .patience import PATIENCE_S

# Threads of PyTorch that wait for each other by spinning take minutes on a machine that is busy.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
for _name, _value in _ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

# A job in the background of a script ignores them, and so would all processes of the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_HERE = Path(__file__).parent
#: Their tests are those of tools that measure or harm the product, and of programs beside it.
_OF_TOOLS = (*("chaos", "unit/bench", "integration/test_trials.py", "integration/test_demo.py"),)
#: Tests by what their process imports, and those that take long.
_KINDS = {
    "tensorflow": re.compile(r"tensorflow|\btf\b|keras"),
    "torch": re.compile("torch"),
    "long": re.compile("test_combinations.py|test_chaos|test_rollouts"),
    "jax": re.compile("jax|framework"),
}
_SHM = Path("/dev/shm")
#: Some tests fill the space that they get; all others together take a tenth of it.
_ROOM = 4 << 30
#: Frameworks that modules of tests import themselves.
LOADED_TO_COLLECT: set[str] = set()
_IN_PARALLEL = "PYTEST_XDIST_WORKER" in os.environ


def pytest_configure(config: pytest.Config) -> None:
    """Have the files of tests in memory, where there is room: a sync of a disk takes its time.

    No test can see more than that a sync was asked for.
    """
    free = shutil.disk_usage(_SHM).free if _SHM.exists() else 0
    if config.option.basetemp is None and free > _ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_SHM))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark tests of tools by where they lie, and put the tests of a kind together.

    xdist gives each of its processes as many tests, and others take from the end of these.
    TensorFlow takes seconds of a processor to import, so its tests are the first of one process;
    those that take longest are the first of another, or all would wait for one that begins last.
    """
    for item in items:
        if item.path.relative_to(_HERE).as_posix().startswith(_OF_TOOLS):
            item.add_marker(pytest.mark.tools)
    yield  # tests are left out by their marks
    kinds: dict[str, list[pytest.Item]] = {name: [] for name in (*_KINDS, "")}
    for item in items:
        kinds[_kind_of(item)].append(item)
    *first, rest = (sorted(of, key=lambda item: not _is_slow(item)) for of in kinds.values())
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    left, others = len(items), iter(rest)
    items.clear()
    for number in range(processes):
        size = left // (processes - number)
        own = [item for of in first[number::processes] for item in of]
        own += itertools.islice(others, max(0, size - len(own)))
        items += own
        left -= len(own)
    items += others


def _kind_of(item: pytest.Item) -> str:
    if item.get_closest_marker("tf") or "tf" in getattr(item, "fixturenames", ()):
        return "tensorflow"
    return next((name for name, of in _KINDS.items() if of.search(item.nodeid)), "")


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def _threads() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("headrace")}


def _children() -> set[int]:
    """Direct children of this process that are not yet reaped, threads' children included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there is none, which is soon known
        return set()
    return set(children_of(os.getpid())) - NURSERY.pids - FRAMEWORKS.pids


def _shared_memory(of_the_dead: bool) -> set[str]:
    """Return run directories made by this process or by one that has ended."""
    found = set()
    for path in _SHM.glob(f"headrace-{os.getuid()}-*"):
        maker = int(path.name.split("-")[2])
        if maker == os.getpid() or (of_the_dead and not Path(f"/proc/{maker}").exists()):
            found.add(path.name)
    return found


def _present(alone: bool) -> tuple[set[str], set[int], set[str]]:
    return _threads(), _children(), _shared_memory(alone)


def pytest_collection_finish() -> None:
    """Leave all that was imported and collected out of later collections of garbage."""
    LOADED_TO_COLLECT.update({"tensorflow", "torch", "jax"} & set(sys.modules))
    gc.collect()
    gc.freeze()


def pytest_sessionstart() -> None:
    if not os.environ.get("COLD"):
        warm_starts()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Check that a sweep removes leftovers of killed servers."""
    NURSERY.close()
    FRAMEWORKS.close()
    if _IN_PARALLEL:  # this is one of several
        return
    sweep(_SHM)
    left = _shared_memory(of_the_dead=True)
    if left:
        print(f"\nleft behind in shared memory: {sorted(left)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    alone = not _IN_PARALLEL
    before = _present(alone)
    yield
    began, pause = time.monotonic(), 0.001
    while any(left := [now - then for now, then in zip(_present(alone), before, strict=True)]):
        waited = time.monotonic() - began
        if waited > PATIENCE_S:
            pytest.fail(f"left behind: threads {left[0]}, processes {left[1]}, memory {left[2]}")
        time.sleep(pause := min(2 * pause, 0.05))
        if waited > 0.2:  # a cycle may hold it; with a framework a collection takes half a second
            gc.collect()
