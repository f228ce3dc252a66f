"""Trainers of a drawn run: threads of this process, and one process where a trainer is to die.

    thread ───────────────► Watch: what was taken, saved and committed; steps that all make together
    process ── lines ─────►        (python -m tests.combinations.training)

Each trainer passes on every batch as a dict, in the form of the reference.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

import headrace
from headrace_proto.schema import FACTS
from tests import reference
from tests.combinations.declarations import MARK
from tests.combinations.runs import Draw, Run
from tests.nursery import WarmPopen, environment
from tests.patience import PATIENCE_S

_OF_SEGMENTS = (
    *("key", "sequence", "sequence_count", "length", "total_length", "left_length"),
    *("right_length", "insertion_index", "first", "last", "valid"),
)
_OF_PACKED = (
    *("key", "length", "total_length", "insertion_index", "first", "last", "valid"),
    *("segment_ids", "positions", "resets"),
)
#: Bounds each wait of a trainer; shorter where bugs are expected.
WAIT_S = float(os.environ.get("COMBINATIONS_WAIT_S", PATIENCE_S))


@dataclass
class Taken:
    """A batch in a trainer's hands."""

    who: int
    connection: int
    values: dict[str, Any]
    lanes: int  # of its trainer
    #: "taken", "saved" (its commit is on the way), "done" (the server has answered).
    state: str = "taken"
    marks: np.ndarray | None = None  # that its rows were saved with
    later: bool = False  # taken after the snapshot


def train(
    addresses: list[str],
    name: str,
    borders: bool,
    run: Run,
    who: int,
    hear: Callable[..., Any],
    connection: int = 0,
) -> None:
    """Train from a feed to its end, as trainer or rank number ``who``.

    ``hear`` gets what happens: ("taken", connection, values, lanes), ("saved", marks), ("done",)
    of all that were saved, ("step", number of batches, feed).
    """
    options: dict[str, Any] = {"prefetch": run.prefetch}
    if run.world:
        options |= {"rank": who, "world_size": run.world}
    if run.any_order:
        options["order"] = "any"
    if run.hold >= 0:
        options["commit"] = "explicit"
    last = who == run.members - 1
    dies = run.dies if last and connection == 0 else None
    seen, ended = 0, False
    stops = run.dies or run.leaves or run.parts or run.snapshot or run.steers or run.hold > 0
    whole = not stops and run.members == (run.world or 1)
    while not ended:
        with headrace.connect(addresses, feed=name, timeout=WAIT_S, **options) as feed:
            again, whole = True, whole and not feed.progress.batches
            while again:
                again, held = False, []
                for batch in _all_of(feed, borders, whole):
                    seen, again = seen + 1, run.hold > 0
                    hear(
                        "taken", connection, _plain(feed, batch), feed.lanes if _lanes(batch) else 0
                    )
                    _die(dies, seen, "taken")
                    hear("saved", _save(feed, batch))
                    held.append(batch)
                    if run.hold >= 0 and len(held) > run.hold:
                        feed.commit(held)
                        held = []
                    _die(dies, seen, "saved")
                    if run.dies or seen == run.snapshot:
                        feed.commit(held if run.hold >= 0 else None)
                        held = []
                        hear("done")
                    _die(dies, seen, "done")
                    hear("step", seen, feed)
                    if leaves := seen == run.parts or (who == 0 and seen == run.leaves):
                        break
                else:
                    leaves = False
                if run.hold >= 0:
                    feed.commit(held)
                ended = not leaves or seen == run.parts
                again &= not leaves
        hear("done")
        connection += 1


def _die(dies: tuple[int, str] | None, seen: int, when: str) -> None:
    if dies == (seen, when):
        os.kill(os.getpid(), signal.SIGKILL)


def _steered(feed: headrace.Feed, what: str, value: Any) -> dict[int, int] | None:
    """Steer a feed; return None where it is too late for that, or the feed has two samplers.

    With partition -1 where it was asked again: what the first answer would have been is unknown.
    """
    asked = dict[int, int]()
    while True:
        try:
            if what == "drain":
                feed.drain(cancel=value)
                return asked
            if what == "set_weights":
                feed.set_weights(value)
                return asked
            if what == "set_target_probs":
                return asked | feed.set_target_probs(value)
            return asked | feed.set_batch_size(value)
        except headrace.ConnectionLost as error:
            if "ask again" not in str(error):
                raise
            asked = {-1: 0}
        except ValueError as error:
            late = "all batches of the feed were made before", "the feed has ended"
            if not str(error).endswith((*late, "set_target_probs() needs exactly one")):
                raise
            return asked or None


def _lanes(batch: Any) -> bool:
    try:
        return isinstance(batch, headrace.NextQueuedSequenceBatch) and batch.lane is not None
    except AttributeError:
        return False


def _all_of(feed: headrace.Feed, borders: bool, whole: bool) -> Iterator[Any]:
    """Yield all batches.  ``whole``: each loop has as many as ``len(feed)`` says, if it knows."""
    loops = (epoch for _, epoch in feed.epochs()) if borders else [feed]
    for loop in loops:
        length, count = None, 0
        with contextlib.suppress(TypeError):
            length = len(feed) if whole else None
        for batch in loop:
            count += 1
            yield batch
        assert length in (None, count), f"len(feed) is {length}, and {count} batches came"


def _plain(feed: headrace.Feed, batch: Any) -> dict[str, Any]:
    """Return a batch in the form of the reference, with ``@partition`` beside that."""
    found: dict[str, Any] = {
        "@partition": batch.partition,
        "@epoch": batch.epoch,
        "@number": batch.number,
    }
    facts = {name for name in FACTS if name in feed.facts}
    if isinstance(batch, headrace.Batch):
        found |= {name: _rows(batch[name]) for name in batch}
        with contextlib.suppress(AttributeError):
            found["@bucket"] = batch.bucket
    else:
        packed = "segment_ids" in feed.facts
        of_segments = _OF_PACKED if packed else _OF_SEGMENTS
        facts |= {*of_segments, *(("lane",) if _lanes(batch) else ())}
        found |= {f"sequences:{name}": np.array(batch.sequences[name]) for name in batch.sequences}
        found |= {f"context:{name}": np.array(batch.context[name]) for name in batch.context}
        found |= {f"state:{name}": np.array(batch.state(name)) for name in feed.states}
    return found | {f"@{name}": list(np.array(getattr(batch, name))) for name in facts}


def _rows(column: Any) -> Any:
    if isinstance(column, np.ndarray):
        return np.array(column)
    return [np.array(column.values[a:b]) for a, b in pairwise(column.offsets.tolist())]


def _save(feed: headrace.Feed, batch: Any) -> np.ndarray | None:
    """Save all states, as the reference does, and a mark of its own for each row; return these."""
    marks = None
    for name in feed.states:
        state = batch.state(name)
        if name == MARK:
            marks = np.frombuffer(os.urandom(8 * len(state)), np.int64)
            batch.save_state(name, marks.copy())
        else:
            batch.save_state(name, _after(feed, batch, name, state).astype(state.dtype))
    return marks


def _after(feed: headrace.Feed, batch: Any, name: str, state: np.ndarray) -> Any:
    """Return a state after a batch, as the reference has it."""
    inner = [1] * (state.ndim - 1)
    if "segment_ids" not in feed.facts:
        return reference.saved(state, batch.sequence.reshape(-1, *inner))
    for step in range(batch.positions.shape[1]):
        resets, real = (of[:, step].reshape(-1, *inner) for of in (batch.resets, batch.segment_ids))
        state = np.where(resets, batch.initial_state(name), state)
        after = reference.saved(state, batch.positions[:, step].reshape(-1, *inner))
        state = np.where(real > 0, after, state)
    return state


class Meeting:
    """A place where all trainers that have not ended meet.  Who ends need not come any more."""

    def __init__(self, parties: int) -> None:
        self._changed = threading.Condition()
        self._parties, self._here, self._round = parties, 0, 0

    def wait(self) -> None:
        with self._changed:
            self._here += 1
            own = self._round
            self._open()
            if not self._changed.wait_for(lambda: self._round > own, WAIT_S):
                raise TimeoutError("another rank makes no step")

    def leave(self) -> None:
        with self._changed:
            self._parties -= 1
            self._open()

    def _open(self) -> None:
        if self._here >= self._parties:
            self._here, self._round = 0, self._round + 1
            self._changed.notify_all()


@dataclass
class Watch:
    """The batches that the trainers of one feed saw."""

    draw: Draw
    addresses: list[str]
    name: str
    run: Run
    ticked: Callable[[], None]
    taken: list[Taken] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    token: Any = None
    #: Where the feed was steered: by partition the number of the first batch of another size.
    #: See ``_steered``.
    since: dict[int, int] | None = None
    _lock: Any = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._meeting = Meeting(self.run.members)

    def threads(self) -> list[threading.Thread]:
        """Return the trainers, which have not begun."""
        return [
            threading.Thread(target=self._trainer, args=(who,), name=f"trainer {who}")
            for who in range(self.run.members)
        ]

    def _trainer(self, who: int) -> None:
        try:
            if self.run.dies and who == self.run.members - 1:
                self._process(who)
            else:
                hear = self._listener(who)
                train(self.addresses, self.name, self.draw.feed.borders, self.run, who, hear)
        except Exception as error:
            self.faults.append(f"trainer {who}: {type(error).__name__}: {error}")
        finally:
            self._meeting.leave()

    def _listener(self, who: int) -> Callable[..., Any]:
        own: list[Taken] = []

        def hear(what: str, *given: Any) -> None:
            if what == "taken":
                connection, values, lanes = given
                with self._lock:
                    later = self.token is not None
                    own.append(Taken(who, connection, values, lanes, later=later))
                    self.taken.append(own[-1])
            elif what == "saved":
                own[-1].state, own[-1].marks = "saved", given[0]
            elif what == "done":
                for one in own:
                    one.state = "done" if one.state == "saved" else one.state
                own[:-1] = []
            else:
                self._step(who, *given)

        return hear

    def _step(self, who: int, seen: int, feed: Any) -> None:
        self.ticked()
        if who == 0 and self.run.steers and seen == self.run.steers[0]:
            self.since = _steered(feed, *self.run.steers[1:])
        if self.run.world:
            self._meeting.wait()
        if seen == self.run.snapshot:
            if not self.run.world:
                self._meeting.wait()
            if who == 0:
                token = feed.snapshot()
                with self._lock:
                    self.token = token
            self._meeting.wait()

    def _process(self, who: int) -> None:
        """Run a trainer as a process, which kills itself; a rank is started again."""
        hear, connection = self._listener(who), 0
        while True:
            about = {
                "addresses": self.addresses,
                "name": self.name,
                "borders": self.draw.feed.borders,
                "run": asdict(self.run),
                "who": who,
                "connection": connection,
            }
            with _child(about) as process:
                for line in process.stdout:
                    if not line.startswith(b"+"):
                        self.faults.append(f"trainer {who} said {line!r}")
                        continue
                    what, *given = pickle.loads(base64.b64decode(line[1:]))  # noqa: S301
                    hear(what, *given)
                    with contextlib.suppress(BrokenPipeError):  # it has killed itself
                        process.stdin.write(b"\n")
                        process.stdin.flush()
            if process.returncode == -signal.SIGKILL and connection == 0:
                if not self.run.world:
                    return
                if self.run.dies is not None and self.run.dies[1] == "done":
                    self._step(who, 0, None)
                connection = 1
                continue
            if process.returncode:
                self.faults.append(f"trainer {who} ended with {process.returncode}")
            return


@contextlib.contextmanager
def _child(about: dict[str, Any]) -> Iterator[Any]:
    command = [sys.executable, "-m", __name__, json.dumps(about)]
    process = WarmPopen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
    try:
        yield process
        process.wait(WAIT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdin.close()
        process.stdout.close()


def _main() -> None:
    about = json.loads(sys.argv[1])
    dies = about["run"]["dies"]
    run = Run(**{**about.pop("run"), "dies": tuple(dies) if dies else None})

    def hear(what: str, *given: Any) -> None:
        given = (given[0], None) if what == "step" else given
        line = base64.b64encode(pickle.dumps((what, *given)))
        print("+" + line.decode(), flush=True)
        sys.stdin.readline()  # so that what other trainers do next is heard later

    try:
        train(hear=hear, run=run, **about)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    _main()
