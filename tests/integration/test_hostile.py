"""Hostile and broken peers at live public sockets: an honest trainer never notices them."""

from __future__ import annotations

import itertools
import logging
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq

import headrace
import headrace_server as hs
from headrace_proto import limits
from headrace_proto.codec import pack
from headrace_proto.credentials import load_keys
from headrace_proto.errors import one_line
from headrace_proto.messages import (
    FROM_TRAINER,
    Bye,
    Flush,
    Get,
    Give,
    Handed,
    Hello,
    Pulse,
    Refused,
    Renew,
    Resize,
    Save,
    ServedShare,
    Stats,
    Step,
    Unknown,
    Welcome,
)
from headrace_server.cli.keygen import make_pair
from headrace_server.journal.journal import Journal
from headrace_server.shaping.spans import SEGMENT_PLACE
from headrace_server.shaping.stored_state import Change
from tests.located import workers_at
from tests.patience import PATIENCE_S
from tests.trials.hostile import messages_of_frames

from .honest import answer, dealer, honest_trainer
from .serving import connect, in_segments, number_of, serving

ROWS = 4000
#: Of the process at whose address a peer comes: the locator, or a worker.
PLACES = ["locator", "worker-0-0"]


@pytest.fixture
def server() -> Iterator[hs.Server]:
    with hs.run(hs.from_examples([{"i": k} for k in range(ROWS)]).batch(10)) as running:
        yield running


@pytest.fixture
def worker(server: hs.Server) -> str:
    """The address of its worker."""
    return workers_at(server.address)[0]


def address_of(server: hs.Server, place: str, keys: str | None = None) -> str:
    found = None if keys is None else load_keys(keys)
    return server.address if place == "locator" else workers_at(server.address, found)[0]


def hear(peer: zmq.Socket[bytes], kind: Any) -> Any:
    """Return the next answer of a kind; a slow server may answer a Hello twice."""
    while not isinstance(told := answer(peer), kind):
        pass
    return told


def hello(**changes: object) -> bytes:
    values: dict[str, object] = {
        "version": limits.PROTOCOL,
        "library": "t",
        "feed": "",
        "nonce": b"n",
    }
    return FROM_TRAINER.encode(Hello(**{**values, **changes}))  # type: ignore[arg-type]


GARBAGE = [
    b"",
    b"\xff",
    b"\xc1",
    msgpack.packb(None),
    msgpack.packb([]),
    msgpack.packb([99]),
    msgpack.packb([True]),
    msgpack.packb({"op": 1}),
    msgpack.packb([1]),
    msgpack.packb([3, -1, 0]),
    msgpack.packb([3, 1, 2**64 - 1, [1] * 5000]),
    msgpack.packb([1, 1, 1, "x", "y", b"n" * 20000]),
    msgpack.packb(msgpack.ExtType(5, b"x")),
    b"\x91" * 60_000,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff" + b"\x80" * 50_000,
    b"\x92\x01\xd9\xff" + b"\xf0" * 255,
    os.urandom(limits.MAX_HEADER_BYTES + 1),
]


@pytest.mark.parametrize("place", PLACES)
def test_a_message_that_is_none_is_refused_once_and_costs_nobody_else_anything(server, place):
    address = address_of(server, place)
    with honest_trainer(server, ROWS):
        for garbage in GARBAGE:
            with dealer(address) as peer:
                peer.send(garbage)
                refused = answer(peer)
                assert isinstance(refused, Refused) and refused.code == "protocol"
                peer.send(garbage)
                assert not peer.poll(50), "answered twice"


def test_a_hello_to_an_owner_that_is_not_there_is_told_how_many_there_are(worker):
    """A server that was started again may have fewer owners."""
    with dealer(worker) as peer:
        peer.send(hello(owner=1, owners=2))
        assert len(hear(peer, ServedShare).workers) == 1


@pytest.mark.parametrize(
    ("keys", "place"), [(False, "locator"), (True, "worker-0-0")], ids=["open", "keys"]
)
def test_messages_of_any_number_and_size_of_frames_end_only_their_connection(keys, place, tmp_path):
    pipeline = hs.from_examples([{"i": k} for k in range(ROWS)]).batch(10)
    if keys:
        make_pair(tmp_path, None)
        make_pair(tmp_path, "trainer")
    chosen = str(tmp_path) if keys else None
    with hs.run(pipeline, workers=2, keys=chosen) as server:
        pids, address = server.pids, address_of(server, place, chosen)
        with honest_trainer(server, ROWS, chosen):
            for message in messages_of_frames(random.Random(5), 24, 80 << 20):
                # before a session, and in one
                for session in (0,) if place == "locator" else (0, 1):
                    with dealer(address, chosen) as peer:
                        if session:
                            peer.send(hello())
                            session = hear(peer, Welcome).session
                        peer.send_multipart(
                            [FROM_TRAINER.encode(Step(session, gets=(Get(1, 0),))), *message[1:]]
                        )
                        peer.send_multipart(message)
                        assert isinstance(hear(peer, Refused), Refused)
        assert server.pids == pids
        assert server.access()["refused"]["garbage"] >= 24


def test_a_peer_that_takes_the_name_of_a_channel_is_refused(server, worker):
    """Else the owner would take it for the trainer of this host that has the channel."""
    with headrace.connect(server.address, prefetch=0, timeout=PATIENCE_S) as feed:
        first = next(feed)
        with dealer(worker, name=b"\0channel-1") as peer:
            peer.send(FROM_TRAINER.encode(Bye(number_of(server))))
            assert isinstance(answer(peer), Refused)
        assert len(first["i"]) + sum(len(batch["i"]) for batch in feed) == ROWS


@pytest.mark.parametrize("place", PLACES)
def test_an_oversize_frame_ends_only_its_connection(server, place):
    with honest_trainer(server, ROWS), dealer(address_of(server, place)) as peer:
        watch = peer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        peer.send(bytes(limits.MAX_UPLOAD_BYTES + 1))
        assert watch.poll(1000 * int(PATIENCE_S)) and not peer.poll(0)
        peer.disable_monitor()
        watch.close()


def test_numbers_that_are_not_the_senders_get_it_nowhere(server, worker):
    with headrace.connect(server.address, prefetch=0, timeout=PATIENCE_S) as feed:
        first = next(feed)
        session = number_of(server)
        with dealer(worker) as peer:
            for message in (
                Step(session, commits=(first.token,), gets=(Get(100, 0),)),
                Renew(session, 100),
                Step(2**61, gets=(Get(1, 0),)),
            ):
                peer.send(FROM_TRAINER.encode(message))
                assert answer(peer) == Unknown(message.session)
        rest = [i for batch in feed for i in batch["i"].tolist()]
    assert len(rest) + len(first["i"]) == ROWS


@pytest.mark.parametrize("kind", ["batches", "segments"])
def test_any_number_of_wrong_commits_at_once_is_answered_and_harms_nobody(kind):
    """Their answers would not fit one message."""
    pipeline = hs.from_examples([{"i": k} for k in range(8)]).batch(4)
    if kind == "segments":
        told = [{"key": f"{k}", "x": [k]} for k in range(8)]
        pipeline = in_segments(hs.from_examples(told), num_unroll=1, batch_size=4)
    tokens = tuple(range(1, 4001))
    with serving(pipeline) as server:
        with dealer(address_of(server, "worker-0-0")) as peer:
            peer.send(hello())
            session = hear(peer, Welcome).session
            peer.send(FROM_TRAINER.encode(Step(session, tokens)))
            answered: list[int] = []
            while len(answered) < len(tokens):
                told = hear(peer, Give)
                answered += [*told.stale, *(token for token, *_ in told.faults)]
            assert answered == list(tokens)
        with headrace.connect(server.address, timeout=PATIENCE_S) as feed:
            rows = 0
            for batch in feed:
                rows += 4
                if kind == "segments":
                    batch.save_state("s", batch.state("s"))
        assert rows == 8


#: The largest number of a message, and others that are too large for one.
NUMBERS = (limits.MAX_COUNT, 2**62, 2**63 - 1, 2**64 - 1)


def greetings_with(number: int, place: bytes) -> Iterator[tuple[bytes, ...]]:
    """Yield greetings of a rank, in each of which some fields have this number."""
    handed = {"token": 5, "partition": 0, "number": 0, "epoch": 0, "index": 0, "rows": 4}
    for name in ("run", "birth", "connection", "term", "owners"):
        yield (hello(rank=0, world_size=1, **{name: number}),)
    yield (hello(rank=0, world_size=1, gets=(number, 0, number)),)
    yield (hello(rank=0, world_size=1, acknowledged=(0, number)),)
    for names in ({"number"}, {"epoch"}, {"index"}, {"rows"}, {"token"}, {"number", "index"}):
        for committed in (False, True):
            changes = dict.fromkeys(names, number) | {"committed": committed}
            batch = Handed(**{**handed, **changes}, place_bytes=len(place))
            yield hello(rank=0, world_size=1, batches=(batch,)), place, b""


def messages_with(session: int, number: int) -> Iterator[bytes]:
    """Yield messages of a session in which most fields have this number."""
    numbers = (number,)
    gets, saves = (Get(number, 0, number),), (Save(number),)
    yield FROM_TRAINER.encode(Renew(session, 0, numbers, number))
    yield FROM_TRAINER.encode(Step(session, numbers, numbers, numbers, numbers, gets))
    yield FROM_TRAINER.encode(Step(session, saves=saves))
    yield FROM_TRAINER.encode(Flush(session, number, number, numbers, [[number, 4, [number]]]))
    yield FROM_TRAINER.encode(Resize(session, number, numbers))
    yield FROM_TRAINER.encode(Stats(session, number))


@pytest.mark.parametrize("kind", ["batches", "segments"])
def test_no_number_of_a_peer_ends_a_process_or_reaches_the_next_rank_or_start(tmp_path, kind):
    """A peer's run number, and the turns of batches that it claims to hold, are stored."""
    pipeline = hs.from_examples([{"key": f"{k}", "x": [k, k], "i": k} for k in range(60)])
    pipeline = pipeline.batch(4) if kind == "batches" else in_segments(pipeline)
    seen: list[int] = []

    def train(server: hs.Server, most: int) -> None:
        with connect(server, rank=0, world_size=1, prefetch=0) as feed:
            for batch in itertools.islice(feed, most):
                if kind == "segments":
                    seen.extend(batch.insertion_index[batch.valid].tolist())
                    batch.save_state("s", batch.state("s"))
                else:
                    seen.extend(batch["i"].tolist())

    for start in range(2):
        with serving(pipeline, state_dir=tmp_path / "state", partitions=1) as server:
            pids, worker = server.pids, address_of(server, "worker-0-0")
            for number in NUMBERS:
                place = np.zeros(1, SEGMENT_PLACE)
                place["version"], index = number, min(number, 2**63 - 1).to_bytes(8, "little")
                whole = (index + place.tobytes()) * (kind == "segments")
                for greeting in greetings_with(number, whole):
                    with dealer(worker) as peer:
                        peer.send_multipart(greeting)
                        while isinstance(told := answer(peer), (Pulse, Give)):
                            pass
                        if isinstance(told, Welcome):
                            for message in messages_with(told.session, number):
                                peer.send(message)
                            peer.send(FROM_TRAINER.encode(Bye(told.session)))
                            while not isinstance(answer(peer), (Unknown, Refused)):
                                pass
                train(server, 1)
            if start:
                train(server, 1000)
            assert server.pids == pids
    assert len(seen) == len(set(seen))
    assert len(seen) >= 60 - 4, "a peer that claims to have trained a batch is believed"


@pytest.mark.parametrize("kind", ["deal", "turns", "trainers", "after 0"])
def test_a_stored_number_that_no_message_may_have_is_refused_by_name_at_the_start(tmp_path, kind):
    pipeline = hs.from_examples([{"i": k} for k in range(8)]).batch(4)
    with serving(pipeline, state_dir=tmp_path / "state", partitions=1) as server:
        with connect(server, rank=0, world_size=1) as feed:
            next(feed)
    path = tmp_path / "state" / "feeds" / "default" / "0.journal"
    journal = Journal(path, "process", owner="partition 0 of feed 'default'")
    journal.submit(Change(meta={kind: pack([1, [2**64 - 1, 1], 1, []])}))
    journal.close()
    refused = (
        f"{path} is damaged: its '{kind}' has the number 18446744073709551615; the most is "
        f"{limits.MAX_COUNT}.*resume from a snapshot"
    )
    with pytest.raises(headrace.ServerError, match=refused):
        serving(pipeline, state_dir=tmp_path / "state", partitions=1).close()


def test_absurd_hellos_are_refused_with_the_reason(server, worker):
    cases = [
        ({"version": 6}, "version", "speaks protocol 6, the server"),
        ({"feed": "other"}, "feed", "this server has 'default'"),
        ({"nonce": b""}, "protocol", "nonce"),
        ({"nonce": b"x" * 65}, "protocol", "nonce"),
        ({"rank": 5, "world_size": 2}, "protocol", "world_size-1 = 1, not 5"),
        ({"rank": 0, "world_size": 2**62}, "protocol", "world_size"),
        ({"rank": -7, "world_size": 3}, "protocol", "Hello.rank: -7 is not a rank, or -1, from"),
        ({"run": 2**64 - 1}, "protocol", "Hello.run: 18446744073709551615 is not a count"),
    ]
    for number, (changes, code, text) in enumerate(cases):
        for address in (worker, server.address) if number < 2 else (worker,):
            with dealer(address) as peer:
                peer.send(hello(**changes))
                refused = hear(peer, Refused)
                assert isinstance(refused, Refused), changes
                assert refused.code == code and text in refused.text


# Words of peers and of data

FORGED = "words\nERROR headrace.server: all is lost\x1b[2J"


def assert_not_forged(text: str) -> None:
    assert "all is lost" in text
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line.startswith("ERROR headrace.server: all")]


def test_no_word_of_a_trainer_forges_a_line_of_the_log_or_moves_the_cursor(capfd, caplog):
    """It says them as its host, its release, its feed, and its snapshot."""
    caplog.set_level(logging.INFO, "headrace")  # the server has that level, too
    endless = hs.from_examples([{"i": 1}]).repeat().batch(1)
    known = Hello(limits.PROTOCOL, "t", "default", b"n" * 16, owner=0, owners=1, host=FORGED)
    with (
        serving(endless) as server,
        dealer(workers_at(server.address)[0]) as peer,
    ):
        for wrong in ({"resume": FORGED}, {"feed": FORGED}, {"version": 1, "library": FORGED}):
            peer.send(FROM_TRAINER.encode(replace(known, nonce=os.urandom(16), **wrong)))
            refused = answer(peer)
            assert isinstance(refused, Refused) and "\x1b" not in refused.text
            assert len(refused.text.splitlines()) == 1
        peer.send(FROM_TRAINER.encode(known))
        welcome = answer(peer)
        assert isinstance(welcome, Welcome)
        (trainer,) = server.stats()["default"]["trainers"]
        assert trainer["host"] == one_line(FORGED)
        peer.send(FROM_TRAINER.encode(Bye(welcome.session)))
        assert isinstance(answer(peer), Unknown)
    assert_not_forged(capfd.readouterr().err)


def test_no_word_of_data_or_of_user_code_forges_a_line_either(caplog, tmp_path):
    """1. An error of a function that quotes an example. 2. A file with such a name is refused."""

    def fail(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(row["text"].decode())

    with serving(hs.from_examples([{"text": FORGED.encode()}]).map(fail).batch(1)) as server:
        with pytest.raises(headrace.DataError) as caught, connect(server) as feed:
            next(feed)
        assert_not_forged(str(caught.value))
    assert_not_forged(caplog.messages[-1])
    (tmp_path / FORGED).write_text('{"i": 1}\n')
    with pytest.raises(headrace.FilesMissing) as missing:
        serving(hs.read_jsonl(str(tmp_path / "*"), {"i": hs.scalar("int64")}).batch(1)).__enter__()
    assert_not_forged(str(missing.value))
