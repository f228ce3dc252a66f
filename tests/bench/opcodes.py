"""``python -m tests.bench.opcodes``: bytecodes and Python calls of a batch, at owner and trainer.

    this process, the trainer ── SIGUSR2 ──► its worker      both trace their main threads
                              ◄── the worker's counts ──     for the same 300 batches

Counted bytecodes are the same on any machine, microseconds are not.  Tracing slows both processes
down alike, so who waits for whom stays as it is; the clock runs slower by as much, so that what is
done once in some milliseconds is done once in as many batches.  Nobody polls: spins would count.
The frame of ``Owner.run`` and that of the loop here are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

WARM, COUNTED = 200, 300
#: How much slower a traced process is.
_SLOWER = 16
#: The folder in which a worker leaves its number, and its counts.
_FOLDER = "HEADRACE_OPCODES"
_REPOSITORY = Path(__file__).parents[2]
#: Calls for each batch by which a file counts as one that a batch passes: some messages are for
#: several batches, and what is done for each tick or record is less.
_PASSES = 0.12
#: Records that are enough for any workload here.
_RECORDS, _SEQUENCES = 40_000, 3_000


class Tracer:
    """Counts the bytecodes and calls of the main thread, by function."""

    def __init__(self) -> None:
        self._counts: dict[CodeType, list[int]] = {}
        self._counters: dict[CodeType, Any] = {}
        self._real = self._now = time.monotonic
        time.monotonic = lambda: self._now()

    def start(self) -> None:
        real, file = self._real, os.open("/proc/thread-self/schedstat", os.O_RDONLY)

        def awake() -> float:  # what this thread has waited for a core depends on other processes
            return real() - int(os.pread(file, 64, 0).split()[1]) / 1e9

        began, now = awake(), real()
        self._now = lambda: now + (awake() - began) / _SLOWER
        sys.settrace(self._call)

    def stop(self) -> dict[str, list[int]]:
        sys.settrace(None)
        self._now = self._real
        counts = Counter[str](), Counter[str]()
        for code, of in self._counts.items():
            for counter, number in zip(counts, of, strict=True):
                counter[f"{_place(code)}:{code.co_qualname}"] += number
        return {name: [of[name] for of in counts] for name in counts[0]}

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        count = self._counters.get(code)
        if count is None:
            count = self._counters[code] = self._counter(code)
        if not count:
            return None
        self._counts[code][1] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    def _counter(self, code: CodeType) -> Any:
        if code.co_filename == __file__:
            return False
        counts = self._counts[code] = [0, 0]

        def count(frame: FrameType, event: str, argument: object) -> Any:
            if event == "opcode":
                counts[0] += 1
            return count

        return count


def _place(code: CodeType) -> str:
    """Return the room of a function, or its package, and its file."""
    file = Path(code.co_filename)
    if not file.is_relative_to(_REPOSITORY) or ".venv" in file.parts:
        return "libraries "
    package, *rooms = file.relative_to(_REPOSITORY).parts[1:-1]
    room = rooms[0] if rooms else package.removeprefix("headrace_") or package
    return f"{room} {file.stem}"


def in_worker() -> None:
    """Wait in a worker for a signal to count, and for another to write what was counted."""
    import headrace_proto.spin

    headrace_proto.spin.cores = lambda *_: 0.0
    folder, tracer, begun = Path(os.environ[_FOLDER]), Tracer(), []

    def turn(*_: object) -> None:
        if begun:
            _write(folder / "counts", tracer.stop())
        else:
            begun.append(True)
            _write(folder / "begun", True)
            tracer.start()

    signal.signal(signal.SIGUSR2, turn)
    _write(folder / "worker", os.getpid())


def _write(path: Path, value: object) -> None:
    path.with_suffix(".part").write_text(json.dumps(value))
    path.with_suffix(".part").rename(path)


def _read(path: Path) -> Any:
    while not path.exists():
        time.sleep(0.01)
    return json.loads(path.read_text())


def count(pipeline: Any, prefetch: int, train: Callable[[Any], None]) -> dict[str, Any]:
    """Return the bytecodes and calls of a batch at owner and trainer, by function."""
    import headrace
    import headrace_server as hs

    with tempfile.TemporaryDirectory() as folder:
        os.environ[_FOLDER] = folder
        with hs.run(pipeline, worker_timeout_s=3600.0, lease_ttl_s=3600.0) as server:
            worker = _read(Path(folder, "worker"))
            with headrace.connect(server.address, prefetch=prefetch) as feed:
                steps = _steps(feed, train)
                for _ in range(WARM):
                    next(steps)
                os.kill(worker, signal.SIGUSR2)
                _read(Path(folder, "begun"))
                tracer = Tracer()
                tracer.start()
                for _ in range(COUNTED):
                    next(steps)
                trainer = tracer.stop()
                os.kill(worker, signal.SIGUSR2)
                owner = _read(Path(folder, "counts"))
    return {
        process: {name: [number / COUNTED for number in of] for name, of in counts.items()}
        for process, counts in (("owner", owner), ("trainer", trainer))
    }


def _steps(feed: Any, train: Callable[[Any], None]) -> Iterator[None]:
    for batch in feed:
        train(batch)
        yield


def _read_columns(batch: Any) -> None:
    for name in batch:
        batch[name]


def _carry_states(batch: Any) -> None:
    batch.sequences["x"], batch.length, batch.context["length"]
    after = {name: batch.state(name) + 1.0 for name in ("a", "b")}
    for name, value in after.items():
        batch.save_state(name, value)


def _w1(directory: Path) -> Any:
    import headrace_server as hs

    from . import workloads

    features = {
        "label": hs.scalar("int64"),
        "x": hs.fixed("float32", (workloads.WIDTH,)),
        "id": hs.scalar("bytes"),
    }
    source = hs.read_tfrecord(workloads.w1_files(directory)[:1], features)
    return source.repeat().batch(workloads.BATCH)


def cases(directory: Path) -> dict[str, tuple[Any, int, Callable[[Any], None]]]:
    """Return each case's pipeline, prefetch and step of training."""
    from . import sequences, states

    arrival, lanes = (states.pipeline(directory, lanes) for lanes in (False, True))
    return {
        "W1": (_w1(directory), 8, _read_columns),
        "W2": (sequences.pipeline(directory, False), 8, _read_columns),
        "W4 arrival 0": (arrival, 0, _carry_states),
        "W4 arrival 1": (arrival, 1, _carry_states),
        "W4 lanes 2": (lanes, 2, _carry_states),
        "W4 lanes 8": (lanes, 8, _carry_states),
    }


def prepare(directory: Path) -> None:
    """Write the first records of the benchmark's data."""
    from . import records, sequences, workloads

    columns = workloads.w1_columns(_RECORDS)
    rows = zip(*columns.values(), strict=True)
    messages = (
        records.example({"label": int(label), "x": x, "id": name}) for label, x, name in rows
    )
    records.write(Path(workloads.w1_files(directory)[0]), messages)
    steps, numbers = sequences.lengths().tolist(), sequences.pool()
    messages = (
        records.example({"key": sequences.key(i), "length": t, "x": numbers[i : i + t]})
        for i, t in enumerate(steps[:_SEQUENCES])
    )
    records.write(Path(sequences.tfrecord_file(directory)), messages)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.opcodes", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--functions", type=int, default=0, help="print so many of each process")
    parser.add_argument("--json", type=Path, help="write all counts to this file")
    options = parser.parse_args()
    import headrace_proto.spin

    headrace_proto.spin.cores = lambda *_: 0.0
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(
            "import sys\n"
            "if 'headrace_server.worker.worker' in sys.orig_argv:\n"
            "    from tests.bench import opcodes\n"
            "    opcodes.in_worker()\n"
        )
        sys.path.insert(0, folder)
        prepare(Path(folder))
        for name, case in cases(Path(folder)).items():
            if options.only in name:
                found[name] = count(*case)
                print(_table(name, found[name], options.functions), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found))


def total(counts: dict[str, list[float]]) -> list[int]:
    """Return the bytecodes and calls of all functions."""
    return [round(sum(numbers)) for numbers in zip(*counts.values(), strict=True)]


def files(counts: dict[str, list[float]]) -> set[str]:
    """Return the files of our code that a batch passes."""
    return {
        place
        for function, (_, calls) in counts.items()
        if calls >= _PASSES and (place := function.partition(":")[0]) != "libraries "
    }


def _table(name: str, counts: dict[str, Any], functions: int) -> str:
    lines = [f"{name}   {sum(len(files(of)) for of in counts.values())} files"]
    for process, of in counts.items():
        rooms = Counter[str]()
        for function, (number, _) in of.items():
            rooms[function.partition(" ")[0]] += number
        by_room = ", ".join(f"{room} {number:.0f}" for room, number in rooms.most_common())
        opcodes, calls = total(of)
        numbers = f"{opcodes:7,} bytecodes {calls:5} calls {len(files(of)):4} files"
        lines.append(f"    {process:8}{numbers}   {by_room}")
        dearest = sorted(of.items(), key=lambda item: -item[1][0])[:functions]
        lines += [f"{number:20.1f} {calls:6.2f}  {name}" for name, (number, calls) in dearest]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
