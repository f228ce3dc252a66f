"""One feed on four hosts, with trainers on eight others, over a network that is cut and slow.

    streams   the same trainers on one server and on four ─► the same batches, rows and states
    moved     four servers, a snapshot ─► kill -9 of all ─► two servers and the same trainers
    faults    chaos over all hosts: kills, suspensions, links that are cut, deaf one way or slow,
              hosts that are lost

No host sees the memory of another.  The judge of chaos tries the faults by its laws; the rest is
compared batch by batch.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.chaos.driver import Setup as Chaos
from tests.chaos.driver import run as chaos
from tests.chaos.faults import FREE
from tests.chaos.feeds import MODES, cells_wanted, stateful
from tests.chaos.hosts import Host, Network, why_not
from tests.chaos.processes import Process
from tests.chaos.results import report as told

from .frame import NotHere, Report, Setup, percentile
from .led import state_before
from .yard import ROOT, environment

__all__ = ["run"]

_SERVERS, _TRAINERS, _PARTITIONS = 4, 8, 8
_MOVED_TO = 2
_FAULTS = 300
#: Faults of one feed, and what it has to do between two of them.
_FAULTS_OF_A_FEED = 50
_CELLS_PER_FAULT = 400
_PACE_S = 0.4
_STEP_S = 0.15
_LEASE_S = 3.0
_PATIENCE_S = 60.0
_CELLS = 2000
#: Batches that a trainer takes before the snapshot, and after it in vain.
_BEFORE, _IN_VAIN = 12, 5
#: Feeds whose streams are compared, the number of their trainers, and options of connect.
_STREAMS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("segments", 1, {"prefetch": 0}),
    ("plain", 8, {}),
    ("lanes", 1, {}),
    ("sampled", 1, {"prefetch": 3}),
    ("buckets", 8, {"world_size": 8}),
    ("segments", 4, {"world_size": 4}),
    ("kept", 1, {}),
)


def run(setup: Setup, report: Report) -> None:
    lacking = why_not()
    if lacking:
        raise NotHere(lacking)
    with Network(_SERVERS + _TRAINERS) as network:
        servers, homes = network.hosts[:_SERVERS], network.hosts[_SERVERS:]
        with contextlib.ExitStack() as stack:
            trainers = [stack.enter_context(_Led(home, setup.scratch)) for home in homes]
            _streams(setup, report, servers, trainers)
            _moved(setup, report, servers, trainers)
    _faults(setup, report)


class _Led:
    """A trainer on a host that carries out commands."""

    def __init__(self, host: Host, scratch: Path) -> None:
        self._log = scratch / f"led-{host.ip}.log"
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [*host.inside, sys.executable, "-m", "tests.trials.led", str(_PATIENCE_S)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=environment(),
            )

    def __call__(self, **order: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a trainer ended at {order}: {self._log.read_text()[-800:]}")
        return json.loads(answer)

    def __enter__(self) -> _Led:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _each(trainers: Sequence[_Led], orders: Sequence[dict[str, Any]] | dict[str, Any]) -> list[Any]:
    """The answers of trainers to an order each, or to one, carried out at the same time."""
    each = [orders] * len(trainers) if isinstance(orders, dict) else orders
    with ThreadPoolExecutor(len(trainers)) as pool:
        return list(pool.map(lambda led, order: led(**order), trainers, each))


def _taken(trainers: Sequence[_Led], most: int | None) -> list[Any]:
    """Return the batches of all trainers, each of which takes at most ``most``."""
    return [batch for taken in _each(trainers, {"take": most}) for batch in taken]


@contextlib.contextmanager
def _served(hosts: Sequence[Host], log: Path, **options: Any) -> Iterator[str]:
    """A server on each of these hosts; the addresses.  At the end they are killed."""
    processes = []
    try:
        for index, host in enumerate(hosts):
            mine = {
                "bind": f"tcp://{host.ip}:5557",
                "share": [index, len(hosts)],
                "partitions": _PARTITIONS,
                **options,
            }
            if "state_dir" in options:
                mine["state_dir"] = f"{options['state_dir']}/{index}-of-{len(hosts)}"
            arguments = [json.dumps(mine)]
            processes.append(Process("tests.chaos.server", arguments, log, host.inside))
        yield ",".join(f"tcp://{host.ip}:5557" for host in hosts)
    finally:
        for process in processes:
            process.kill()
            process.close()


def _streams(
    setup: Setup, report: Report, servers: Sequence[Host], trainers: Sequence[_Led]
) -> None:
    size = setup.sized(_CELLS, 200)
    cases = _STREAMS[: max(2, setup.sized(len(_STREAMS)))]
    found: dict[int, list[Any]] = {}
    for count in (1, _SERVERS):
        modes = list({mode: None for mode, *_ in cases})
        log = setup.scratch / "streams.log"
        found[count] = []
        for mode in modes:
            with _served(servers[:count], log, modes=[mode], size=size) as address:
                for of, readers, options in cases:
                    if of == mode:
                        read = _read(trainers[:readers], address, options)
                        found[count].append((mode, readers, read))
    for (mode, readers, one), (_, _, four) in zip(found[1], found[_SERVERS], strict=True):
        if one != four:
            report.wrong(f"{mode} with {readers} trainers: the streams of 1 and 4 servers differ")
        batches = [batch for stream in four for batch in stream]
        what = f"{mode} with {readers} trainers"
        dropped = mode == "buckets"  # rounds that are not whole when the feed ends
        _judge_batches(report, what, mode, size, batches, dropped=dropped)
        report.count("batches of streams", len(batches))


def _read(trainers: Sequence[_Led], address: str, options: dict[str, Any]) -> list[Any]:
    """The stream of each trainer; where the batches go to any of them, all as one."""
    ranks = [{"rank": rank} if "world_size" in options else {} for rank in range(len(trainers))]
    first, *others = [{"join": address, **options, **rank} for rank in ranks]
    trainers[0](restart=True, **first)  # what the readers of the last case have done is undone
    if others:
        _each(trainers[1:], others)
    streams = _each(trainers, {"take": None})
    _each(trainers, {"leave": True})
    if len(trainers) > 1 and "world_size" not in options:
        return [sorted(batch for stream in streams for batch in stream)]
    return streams


def _judge_batches(
    report: Report,
    what: str,
    mode: str,
    size: int,
    batches: Sequence[Any],
    dropped: bool = False,
) -> None:
    """Each cell once, and each segment from the state in which its predecessor was left."""
    counted = Counter(tuple(cell) for batch in batches for cell in batch[2])
    wanted = cells_wanted(mode, size, _PARTITIONS)
    lost = set() if dropped else wanted - counted.keys()
    twice = [cell for cell, n in counted.items() if n > 1]
    if lost or twice or counted.keys() - wanted:
        report.wrong(f"{what}: {len(lost)} lost, {len(twice)} twice: {[*lost, *twice][:5]}")
    if stateful(mode):
        pairs = [pair for batch in batches for pair in zip(batch[2], batch[3], strict=True)]
        wrong = [cell for cell, state in pairs if list(state_before(*cell)) != state]
        if wrong:
            report.wrong(f"{what}: {len(wrong)} states are not their predecessor's: {wrong[:5]}")
        report.count("states compared", len(pairs))


def _moved(setup: Setup, report: Report, servers: Sequence[Host], trainers: Sequence[_Led]) -> None:
    """Two servers go on from a snapshot of four; commits after the snapshot are undone."""
    size = setup.sized(_CELLS, 600)
    for mode in MODES if setup.scale >= 1 else ["segments"]:
        options = {"modes": [mode], "size": size, "log": setup.scratch / "moved.log"}
        options["state_dir"] = str(setup.scratch / f"moved-{mode}")
        options["snapshots"] = str(setup.scratch / f"moved-{mode}" / "snapshots")
        with _served(servers, **options) as address:
            _each(trainers, {"join": address, "prefetch": 0})
            batches = _taken(trainers, _BEFORE)
            token = trainers[0](snapshot=True)
            vain = _taken(trainers, _IN_VAIN)
        with _served(servers[:_MOVED_TO], resume=token, **options) as address:
            _each(trainers, {"join": address, "prefetch": 0, "resume": token})
            batches += _taken(trainers, None)
            _each(trainers, {"leave": True})
        _judge_batches(report, f"{mode} from 4 servers to 2", mode, size, batches)
        report.count("batches around a snapshot", len(batches))
        report.count("batches undone", len(vain))


def _faults(setup: Setup, report: Report) -> None:
    left, waits = setup.sized(_FAULTS, 4), list[float]()
    modes = ["segments", *(mode for mode in MODES if mode != "segments")]
    for number, mode in enumerate(modes):
        most = min(left, _FAULTS_OF_A_FEED)
        if not most:
            break
        directory = setup.scratch / f"faults-{mode}"
        directory.mkdir()
        outcome = chaos(
            Chaos(
                mode,
                f"{setup.seed} {number}",
                (*FREE, "host lost"),
                seconds=20.0 * most,
                pace_s=_PACE_S,
                size=_CELLS_PER_FAULT * most + 500,
                trainers=_TRAINERS,
                workers=1 + number % 2,
                partitions=_PARTITIONS,
                step_s=_STEP_S,
                lease_s=_LEASE_S,
                patience_s=_PATIENCE_S,
                servers=_SERVERS,
                hosts=True,
                most=most,
            ),
            directory,
        )
        print(told(outcome), flush=True)
        left -= most
        for finding in outcome.verdict.findings:
            report.wrong(f"{mode}: {finding.law}: {finding.text}")
        if outcome.faults.total() < most:
            report.missed.append(f"{mode}: {outcome.faults.total()} faults of {most}")
        for kind, count in outcome.faults.items():
            report.count(kind, count)
        report.count("faults", outcome.faults.total())
        report.count("batches under faults", outcome.verdict.counts["commits"])
        report.count("cells under faults", outcome.verdict.counts["cells"])
        waits += outcome.recoveries["server"]
    report.figures["after a server's death p50 s"] = round(percentile(waits, 0.5), 2)
    report.figures["after a server's death p99 s"] = round(percentile(waits, 0.99), 2)
