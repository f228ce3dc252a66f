"""A start of a server in its state directory, and the next one in another."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest

import headrace_server as hs
from headrace_proto.errors import ServerError
from headrace_proto.token import Token
from headrace_server.journal import state_directory as module
from headrace_server.journal.state_directory import StateDirectory
from headrace_server.process.config import FeedConfig, RunConfig


def config(batch_size: int = 4) -> RunConfig:
    names = ("a", "b")
    declaration = hs.from_examples([{"x": 1}]).batch(batch_size).declaration()
    return RunConfig(tuple(FeedConfig(name, declaration, (), 1) for name in names), "", ())


def snapshot(durable: StateDirectory, term: int) -> str:
    name, directory = durable.shelf.begin("a")
    (directory / "0.journal").write_bytes(b"early")
    return durable.shelf.finish("a", name, term).snapshot


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """How far the clock is."""
    now = [0]
    monkeypatch.setattr(module, "term_by_clock", lambda: now[0])
    return now


@pytest.fixture
def opened() -> Any:
    held: list[StateDirectory] = []

    def one(*args: Any, **options: Any) -> StateDirectory:
        held.append(StateDirectory(*args, **options))
        return held[-1]

    yield one
    for durable in held:
        durable.close()


def test_a_start_has_the_next_term_and_a_directory_has_one_owner(tmp_path, opened):
    first = opened(tmp_path, "process")
    begun = first.begin(config(), {})
    assert (begun.term, begun.durability, begun.state_directory) == (1, "process", str(tmp_path))
    with pytest.raises(ServerError, match="in use by another server"):
        StateDirectory(tmp_path, "process")
    first.close()
    assert opened(tmp_path, "power").begin(config(), {}).term == 2


def test_a_start_that_can_copy_no_snapshot_is_refused_and_leaves_the_directory_free(
    tmp_path, opened
):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"snapshots=.* can not be used: File exists"):
        StateDirectory(tmp_path / "state", "process", str(tmp_path / "file"))
    opened(tmp_path / "state", "process", str(tmp_path / "far"))


def test_a_feed_that_goes_on_from_a_snapshot_is_of_the_next_generation(tmp_path, opened):
    durable = opened(tmp_path, "power")
    begun = durable.begin(config(), {})
    name = snapshot(durable, begun.term)
    (tmp_path / "feeds" / "a" / "0.journal").write_bytes(b"late")
    term = durable.prepare(begun.feeds[0], name)
    assert (tmp_path / "feeds" / "a" / "0.journal").read_bytes() == b"late"
    after = durable.take_back(begun, "a", max(term, 7))
    assert (tmp_path / "feeds" / "a" / "0.journal").read_bytes() == b"early"
    assert after.term == 8
    told = [(f.name, f.generation, f.snapshot, f.untouched) for f in after.feeds]
    assert told == [("a", 1, name, True), ("b", 0, "", False)]
    durable.close()
    again = opened(tmp_path, "power").begin(config(), {})
    assert [(f.generation, f.untouched) for f in again.feeds] == [(1, False), (0, False)]


def test_tokens_of_the_snapshots_term_are_never_given_out_again(tmp_path, opened):
    url = f"file://{tmp_path}/far"
    here = opened(tmp_path / "here", "power", url)
    here.begin(config(), {})
    token = Token("a", snapshot(here, 41), url)
    there = opened(tmp_path / "there", "power")
    begun = there.begin(config(), {"a": token})
    assert begun.term == 42
    assert begun.feeds[0].untouched


def test_a_refused_resume_leaves_all_files_as_they_are(tmp_path, opened):
    durable = opened(tmp_path, "power")
    begun = durable.begin(config(), {})
    name = snapshot(durable, begun.term)
    (tmp_path / "feeds" / "a" / "0.journal").write_bytes(b"late")
    with pytest.raises(ServerError, match="batch_size was 4 and is 5"):
        durable.begin(config(5), {"a": Token("a", name)})
    assert (tmp_path / "feeds" / "a" / "0.journal").read_bytes() == b"late"


def test_a_feed_whose_state_is_gone_does_not_begin_anew_beside_its_snapshots(tmp_path, opened):
    """It resumes from one, or begins anew by the command that the error names."""
    durable = opened(tmp_path, "power")
    name = snapshot(durable, durable.begin(config(), {}).term)
    shutil.rmtree(tmp_path / "feeds" / "a")
    with pytest.raises(ServerError, match=f"state of feed 'a' is gone.*the last is {name}") as lost:
        durable.begin(config(), {})
    assert not (tmp_path / "feeds" / "a").exists()
    durable.begin(config(), {"a": Token("a", name)})
    assert (tmp_path / "feeds" / "a" / "0.journal").read_bytes() == b"early"
    shutil.rmtree(tmp_path / "feeds" / "a")
    subprocess.run(shlex.split(str(lost.value).partition("to begin anew: ")[2]), check=True)
    durable.begin(config(), {})
    assert (tmp_path / "snapshots" / ".a.1" / name).exists()


def test_a_feed_keeps_the_partitions_of_its_state_or_of_its_snapshot(tmp_path, opened):
    def parted(number: int) -> RunConfig:
        feeds = tuple(replace(feed, partitions=number) for feed in config().feeds)
        return replace(config(), feeds=feeds)

    durable = opened(tmp_path / "one", "process")
    begun = durable.begin(parted(3), {})
    name = snapshot(durable, begun.term)
    again = durable.begin(parted(5), {}, keep_partitions=True)
    assert [feed.partitions for feed in again.feeds] == [3, 3]
    with pytest.raises(ServerError, match="partitions was 3 and is 5"):
        durable.begin(parted(5), {})
    other = opened(tmp_path / "two", "process")
    shutil.copytree(tmp_path / "one" / "snapshots", tmp_path / "two" / "snapshots")
    token = Token("a", name)
    begun = other.begin(parted(5), {"a": token}, keep_partitions=True)
    assert [feed.partitions for feed in begun.feeds] == [3, 5]  # "b" is new there


def test_a_directory_that_was_put_back_gives_no_term_again_and_does_not_know_what_it_forgot(
    tmp_path, opened, clock
):
    """1. Two starts, a copy, two more starts; the copy is put back, and started.
    2. Its term is beyond all of them, and the two are not among its starts.
    """
    state, copy = tmp_path / "state", tmp_path / "copy"
    terms = []
    for clock[0] in (100, 200, 300, 300):
        held = opened(state, "power")
        terms.append(held.begin(config(), {}).term)
        held.close()
        if terms[-1] == 200:
            shutil.copytree(state, copy)
    assert terms == [100, 200, 300, 301]
    shutil.rmtree(state)
    shutil.copytree(copy, state)
    clock[0] = 400
    begun = opened(state, "power").begin(config(), {})
    assert begun.term == 400 and begun.starts == (100, 200, 400)
