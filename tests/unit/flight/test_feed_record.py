"""Records of all recorders are joined: rows, hand-outs, ends."""

from __future__ import annotations

import dataclasses
import subprocess
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from headrace_proto.errors import ServerError, UnknownFeed
from headrace_proto.messages import Hello
from headrace_server.core.dispatch_effects import Answer, Batch, Effect, Reclaimed, Returned, Send
from headrace_server.core.plan import Part, Read
from headrace_server.core.slots import Segments
from headrace_server.flight.choice import handed_to
from headrace_server.flight.feed_record import FeedRecord, beside_of, feed_of
from headrace_server.flight.flight_file import FORMAT, frame
from headrace_server.flight.recorder import Recorder, flight_directory
from headrace_server.flight.rows import BatchId
from headrace_server.process.config import RunConfig
from headrace_server.reading.chunk import Origin
from headrace_server.reading.trace import ChunkTrace, Trace


def config(state: Path, start: int = 1, nbytes: int = 1 << 20) -> RunConfig:
    about = {"state_directory": str(state), "start": start, "record": "rows"}
    return RunConfig((), "", (), record_bytes=nbytes, **about)  # type: ignore[arg-type]


def source(chunk: int, *examples: int, keys: tuple[bytes, ...] = ()) -> ChunkTrace:
    numbers = np.array(examples, np.int64)
    origin = Origin(("a\udcff", "b"), (numbers % 2).astype(np.int32), numbers // 2, 10 * numbers)
    return ChunkTrace(Read(chunk, 3, [0, b"\0", 1], 64), {"mean": 0.5}, numbers, origin, keys)


def hello(rank: int = -1, world: int = 0, nonce: bytes = b"n") -> Hello:
    return Hello(2, 2, "t", "f", nonce, rank, world, host="node:5", process=b"p")


def sent(token: int, number: int, session: int = 1, seq: int = 1) -> Send:
    return Send(session, seq, token, Batch(0, number, 3))


def test_the_rows_of_a_batch_are_named_as_errors_name_them(tmp_path: Path) -> None:
    recorder = Recorder(config(tmp_path), "f")
    sources = {4: source(4, 7, 5, 6), 9: source(9, 1, 2)}
    parts = (Part(4, np.array([0, 2])), Part(9, slice(0, 2)))
    recorder.made(2, 17, 4, Trace(sources, parts, meta={"bucket": 1}))
    recorder.rest()
    made = FeedRecord(tmp_path, "f").get(BatchId(1, 2, 17))
    assert made is not None and made.trace.meta == {"bucket": 1}
    assert [(row.example, row.epoch, row.place) for row in made.listed()] == [
        (7, 3, "b, record 3, byte 70"),
        (6, 3, "a\udcff, record 3, byte 60"),
        (1, 3, "b, record 0, byte 10"),
        (2, 3, "a\udcff, record 1, byte 20"),
    ]
    stored, _ = made.places()[0]
    assert (stored.read, stored.stages) == (Read(4, 3, [0, b"\0", 1], 64), {"mean": 0.5})
    recorder.close()


def test_segments_are_named_by_key_and_number(tmp_path: Path) -> None:
    recorder = Recorder(config(tmp_path), "f")
    column = np.array([1, 0], np.int64)
    numbers = [column, column, np.array([4, 4]), column, column + 2, column + 5]
    batch = Segments(column, np.array(numbers))
    states = {"state:h": ((2, 1), b"\1\2")}
    trace = Trace({4: source(4, 7, 5, keys=(b"k7", b"k5"))}, segments=batch, states=states)
    recorder.made(0, 0, 2, trace)
    recorder.rest()
    recorded = FeedRecord(tmp_path, "f")
    made = recorded.get(BatchId(1, 0, 0))
    place = recorded.place(BatchId(1, 0, 0))
    assert made is not None and place is not None and place.has_states
    assert [(r.key, r.segment, r.segments, r.example) for r in made.listed()] == [
        (b"k5", 3, 6, 5),
        (b"k7", 2, 5, 7),
    ]
    assert made.has_key(b"k5") and not made.has_key(b"k6")
    assert made.trace.states == {"state:h": [[2, 1], b"\1\2"]}
    recorder.close()


def test_states_of_batches_that_were_read_stay_in_no_memory(tmp_path: Path) -> None:
    recorder = Recorder(config(tmp_path, nbytes=1 << 26), "f")
    for number in range(40):
        trace = Trace({number: source(number, 7)}, (Part(number, slice(0, 1)),))
        states = {"state:h": ((1 << 16,), bytes([number]) * (1 << 16))}
        recorder.made(0, number, 1, dataclasses.replace(trace, states=states))
    recorder.close()
    history = FeedRecord(tmp_path, "f")
    tracemalloc.start()
    read = [history.get(BatchId(1, 0, number)) for number in range(40)]
    assert all(made and made.trace.states for made in read)
    del read
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 10 << 16  # of 40


def test_every_file_stands_for_itself(tmp_path: Path) -> None:
    recorder = Recorder(config(tmp_path), "f")
    one = source(0, *np.random.default_rng(1).permutation(9000).tolist())
    for number in range(400):  # of each file the source is a part
        at = np.random.default_rng(number).permutation(9000)[:600]
        recorder.made(0, number, 600, Trace({0: one}, (Part(0, at),)))
    recorder.close()
    directory = flight_directory(tmp_path, "f")
    oldest = sorted(directory.iterdir())
    assert len(oldest) > 2
    oldest[0].unlink()
    recorded = FeedRecord(tmp_path, "f")
    numbers = [number for number in range(400) if recorded.place(BatchId(1, 0, number))]
    assert numbers == list(range(numbers[0], 400)) and numbers[0] > 0
    for number in numbers:
        at = np.random.default_rng(number).permutation(9000)[:600]
        made = recorded.get(BatchId(1, 0, number))
        assert made is not None
        assert [row.example for row in made.listed()] == one.ordinals[at].tolist()


def test_of_two_records_of_one_batch_the_later_one_counts(tmp_path: Path) -> None:
    recorder = Recorder(config(tmp_path), "f")
    for chunk in (5, 6):
        recorder.made(0, 0, 1, Trace({chunk: source(chunk, chunk)}, (Part(chunk, slice(0, 1)),)))
    recorder.close()
    made = FeedRecord(tmp_path, "f").get(BatchId(1, 0, 0))
    assert made is not None and [row.example for row in made.listed()] == [6]


def fates(
    tmp_path: Path, *rounds: list[Effect], recorder: Recorder | None = None
) -> list[tuple[int, str]]:
    recorder = recorder or Recorder(config(tmp_path), "f")
    recorder.joined(1, hello(2, 4))
    for effects in rounds:
        recorder.note(effects)
    recorder.close()
    return [(le.token, le.fate) for le in FeedRecord(tmp_path, "f").leases]


def test_each_lease_has_its_end(tmp_path: Path) -> None:
    sends: list[Effect] = [sent(token, token, seq=token) for token in range(1, 8)]
    assert fates(
        tmp_path,
        sends,
        [Answer(1, (1,), ()), Returned(2, "expired"), Returned(4, "left"), sent(3, 3)],
        [Answer(1, (1,), (2,)), Returned(5, "voided"), Returned(6, "expired")],
        [Answer(1, (6,), (), ((7, "state", "wrong"),))],
    ) == [
        *((1, "committed"), (2, "stale"), (3, "out"), (4, "left")),
        *((5, "voided"), (6, "committed"), (7, "refused")),
    ]
    leases = FeedRecord(tmp_path, "f").leases
    assert [event.fate for event in leases[5].events] == ["expired", "committed"]
    assert leases[6].events[0].text == "state: wrong"
    assert str(leases[0].trainer) == "1/1 (node:5, rank 2 of 4)" and leases[4].step == 5


def test_who_a_trainer_is_stands_in_every_file(tmp_path: Path) -> None:
    recorder = Recorder(config(tmp_path), "f")
    recorder.joined(1, hello())
    token = 0
    while len(list(flight_directory(tmp_path, "f").glob("*"))) < 2:
        batch: list[Effect] = [sent(token := token + 1, token) for _ in range(200)]
        recorder.note(batch)
    recorder.close()
    sorted(flight_directory(tmp_path, "f").glob("*"))[0].unlink()
    leases = FeedRecord(tmp_path, "f").leases
    assert leases and {lease.trainer.host for lease in leases} == {"node:5"}


class Life:
    """One life of an owner, which has the partition of its number."""

    def __init__(
        self, state: Path, start: int, owner: int, trainer: Hello, by_number: bool = True
    ) -> None:
        self._recorder = Recorder(config(state, start), "f", owner, by_number)
        self._recorder.joined(start, trainer)
        self._session, self._partition, self._sent = start, owner, 0

    def gives(self, *numbers: int) -> None:
        """Hand these batches to the trainer; tokens are 100 times the life, and count from 1."""
        for number in numbers:
            self._sent += 1
            token = 100 * self._session + self._sent
            batch = Batch(self._partition, number, 3)
            self._recorder.note([Send(self._session, self._sent, token, batch)])

    def notes(self, *effects: Effect) -> None:
        self._recorder.note(effects)


def told(state: Path) -> list[tuple[int, int, str]]:
    """Token, step and fate of all that is recorded."""
    found = FeedRecord(state, "f").leases
    return [(lease.token, lease.step, lease.fate) for lease in found]


def test_batches_of_several_owners_are_one_trainers_in_the_order_of_the_feed(
    tmp_path: Path,
) -> None:
    lives = [Life(tmp_path, 1 + owner, owner, hello()) for owner in range(3)]
    lives[2].gives(0, 1)
    lives[0].gives(0)
    lives[1].gives(0, 1)
    lives[0].gives(1)
    steps = [(101, 1), (201, 2), (301, 3), (102, 4), (202, 5), (302, 6)]
    assert told(tmp_path) == [(token, step, "out") for token, step in steps]
    leases = FeedRecord(tmp_path, "f").leases
    assert {str(lease.trainer) for lease in leases} == {"1/1 (node:5)"}
    for text in ("1", "3", "2/2"):
        assert handed_to(text, range(2, 4), leases) == leases[1:3]


def test_rounds_of_several_owners_are_in_their_order_whatever_their_batches_are(
    tmp_path: Path,
) -> None:
    one, two = (Life(tmp_path, 1 + owner, owner, hello(1, 2)) for owner in range(2))
    two.gives(1, 2)
    one.gives(1, 9)
    assert [token for token, _, _ in told(tmp_path)] == [101, 201, 102, 202]


def test_segments_of_several_owners_are_in_the_order_of_the_hand_out(tmp_path: Path) -> None:
    one, two = (Life(tmp_path, 1 + owner, owner, hello(), by_number=False) for owner in range(2))
    two.gives(0)
    one.gives(0)
    two.gives(1)
    assert [token for token, _, _ in told(tmp_path)] == [201, 101, 202]


@pytest.mark.parametrize("by_number", [True, False])
def test_batches_that_were_out_when_their_owner_died_have_an_end(
    tmp_path: Path, by_number: bool
) -> None:
    before, other = (Life(tmp_path, 1 + owner, owner, hello(), by_number) for owner in range(2))
    before.gives(0, 1, 2)
    before.notes(Answer(1, (101,), ()))
    after = Life(tmp_path, 3, 0, hello(), by_number)
    after.notes(Reclaimed(102))
    assert [fate for _, _, fate in told(tmp_path)] == ["committed", "out", "out"]
    after.gives(2, 3)
    end = "lost" if by_number else "voided"
    fates = [(token, fate) for token, _, fate in told(tmp_path)]
    assert fates == [
        *((101, "committed"), (102, "out"), (103, end), (301, "out"), (302, "out")),
    ]
    if by_number:  # it was not used, so the next has its number
        assert [step for _, step, _ in told(tmp_path)] == [1, 2, 3, 3, 4]
    other.gives(9)
    Life(tmp_path, 4, 1, hello(nonce=b"another"), by_number).gives(9)
    assert {token: fate for token, _, fate in told(tmp_path)}[201] == "left"


def test_hand_outs_and_rows_are_joined(tmp_path: Path) -> None:
    recorder = Recorder(config(tmp_path), "f")
    for number in range(3):
        keys = (b"k%d" % number,)
        recorder.made(
            0,
            number,
            1,
            Trace({number: source(number, number, keys=keys)}, (Part(number, slice(0, 1)),)),
        )
    rounds: list[list[Effect]] = [
        [sent(1, 0), sent(2, 1)],
        [Returned(1, "left"), sent(3, 0, 2)],
    ]
    assert fates(tmp_path, *rounds, recorder=recorder)
    history = FeedRecord(tmp_path, feed_of(tmp_path, None))
    handed = [(lease.token, lease.batch) for lease in history.leases]
    assert handed == [(1, BatchId(1, 0, 0)), (2, BatchId(1, 0, 1)), (3, BatchId(1, 0, 0))]
    (never,) = history.with_key(b"k2")
    assert never == BatchId(1, 0, 2)
    (again,) = history.with_key(b"k0")
    made = history.get(again)
    assert made and [row.example for row in made.listed()] == [0]


def test_a_record_of_another_release_is_refused_with_the_remedy(tmp_path: Path) -> None:
    directory = flight_directory(tmp_path, "f")
    directory.mkdir(parents=True)
    for life, version in ((1, 1), (2, 3), (3, FORMAT)):
        path = directory / f"flight-{life:010}-000000.flight"
        path.write_bytes(frame([version, 0, True, []]))
    with pytest.raises(ServerError, match=r"format 1, this one reads 4\): read it by that") as old:
        FeedRecord(tmp_path, "f")
    subprocess.run(["sh", "-c", str(old.value).partition("to leave out its like: ")[2]], check=True)
    FeedRecord(tmp_path, "f")
    assert len(list((directory.parent / "flight.others").iterdir())) == 2


def test_a_feed_without_a_record_is_refused_with_those_that_have_one(tmp_path: Path) -> None:
    fates(tmp_path, [sent(1, 0)])
    with pytest.raises(UnknownFeed, match=r"no flight of feed 'g'; .* has recorded f"):
        feed_of(tmp_path, "g")
    with pytest.raises(ServerError, match="holds no record of a feed"):
        feed_of(tmp_path / "feeds", None)
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        feed_of(tmp_path / "elsewhere", None)
    with pytest.raises(TypeError, match=r"beside=\[''\] is neither a state directory nor a list"):
        beside_of([""])
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file"):
        feed_of(tmp_path / "file", None)
