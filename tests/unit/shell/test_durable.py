"""How a life of a server begins in its state directory, and how the next one does elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace_proto.errors import ServerError
from headrace_proto.token import Token
from headrace_server import pipeline as hs
from headrace_server.shell.config import FeedConfig, RunConfig
from headrace_server.shell.durable import Durable


def config(batch_size: int = 4) -> RunConfig:
    names = ("a", "b")
    declaration = hs.from_examples([{"x": 1}]).batch(batch_size).declaration()
    return RunConfig(tuple(FeedConfig(name, declaration, (), 1) for name in names), "", ())


def snapshot(durable: Durable, epoch: int) -> str:
    name, directory = durable.shelf.begin("a")
    (directory / "0.db").write_bytes(b"early")
    return durable.shelf.finish("a", name, epoch).snapshot


@pytest.fixture
def opened() -> Any:
    held: list[Durable] = []

    def one(*args: Any, **options: Any) -> Durable:
        held.append(Durable(*args, **options))
        return held[-1]

    yield one
    for durable in held:
        durable.close()


def test_a_life_has_the_next_epoch_and_a_directory_has_one_owner(tmp_path: Path, opened: Any):
    first = opened(tmp_path, "process")
    life = first.begin(config(), {})
    assert (life.epoch, life.durability, life.state_directory) == (1, "process", str(tmp_path))
    with pytest.raises(ServerError, match="in use by another server"):
        Durable(tmp_path, "process")
    first.close()
    assert opened(tmp_path, "power").begin(config(), {}).epoch == 2


def test_a_feed_that_goes_on_from_a_snapshot_is_of_the_next_generation(tmp_path: Path, opened: Any):
    durable = opened(tmp_path, "power")
    life = durable.begin(config(), {})
    name = snapshot(durable, life.epoch)
    (tmp_path / "feeds" / "a" / "0.db").write_bytes(b"late")
    epoch = durable.prepare(life.feeds[0], name)
    assert (tmp_path / "feeds" / "a" / "0.db").read_bytes() == b"late"
    after = durable.take_back(life, "a", max(epoch, 7))
    assert (tmp_path / "feeds" / "a" / "0.db").read_bytes() == b"early"
    assert after.epoch == 8
    told = [(f.name, f.generation, f.snapshot, f.untouched) for f in after.feeds]
    assert told == [("a", 1, name, True), ("b", 0, "", False)]
    durable.close()
    again = opened(tmp_path, "power").begin(config(), {})
    assert [(f.generation, f.untouched) for f in again.feeds] == [(1, False), (0, False)]


def test_tokens_of_the_snapshots_life_are_never_given_out_again(tmp_path: Path, opened: Any):
    url = f"file://{tmp_path}/far"
    here = opened(tmp_path / "here", "power", url)
    here.begin(config(), {})
    token = Token("a", snapshot(here, 41), url)
    there = opened(tmp_path / "there", "power")
    life = there.begin(config(), {"a": token})
    assert life.epoch == 42
    assert life.feeds[0].untouched


def test_what_can_not_be_gone_on_from_leaves_all_as_it_is(tmp_path: Path, opened: Any):
    durable = opened(tmp_path, "power")
    life = durable.begin(config(), {})
    name = snapshot(durable, life.epoch)
    (tmp_path / "feeds" / "a" / "0.db").write_bytes(b"late")
    with pytest.raises(ServerError, match="batch_size was 4 and is 5"):
        durable.begin(config(5), {"a": Token("a", name)})
    assert (tmp_path / "feeds" / "a" / "0.db").read_bytes() == b"late"
