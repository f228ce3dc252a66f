"""A state directory has one owner, counts its starts, and knows what its states are of."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from headrace_proto.errors import ServerError
from headrace_server.files.durable_file import write_durably
from headrace_server.files.manifest import DataFile
from headrace_server.journal import feed_directory
from headrace_server.journal.feed_directory import (
    ConfigChanged,
    check_feed,
    own_partition,
    partition_path,
)
from headrace_server.journal.journal import Journal
from headrace_server.journal.state_directory import StateDirectory
from headrace_server.process.config import FeedConfig
from tests.nursery import WarmPopen, environment

FILES = (DataFile("/data/a", 10, "1"), DataFile("/data/b", 20, "2"))


def shuffled(seed: int = 1, **options: Any) -> Any:
    source = hs.read_tfrecord(
        "a-*.tfrecord", {"k": hs.scalar("bytes"), "x": hs.sequence("float32", (3,))}
    )
    if options:
        source = source.options(**options)
    return source.shuffle(seed=seed)


def pipeline(
    shape: dict[str, Any] | None = None, states: Any = None, source: Any = None, **options: Any
) -> Any:
    arguments: dict[str, Any] = {"num_unroll": 4, "batch_size": 2, **(shape or {})}
    return (source or shuffled(**options)).batch_sequences_with_states(
        input_key="k",
        input_sequences=["x"],
        input_context=[],
        initial_states=states or {"s": hs.zeros((2,), "float32")},
        **arguments,
    )


def feed(made: Any = None, files: Any = FILES, partitions: int = 3, **more: Any) -> FeedConfig:
    return FeedConfig("speech", (made or pipeline()).declaration(), files, partitions, **more)


@pytest.fixture
def directory(tmp_path: Path) -> Any:
    one = StateDirectory(tmp_path / "deep" / "state")
    yield one
    one.close()


def child(code: str, path: Path) -> subprocess.Popen[str]:
    return WarmPopen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


@pytest.mark.parametrize(
    "place",
    ["feeds/speech", "feeds/speech/0.journal", "feeds/speech/0.lock", "snapshots/speech", "index"],
)
def test_a_link_in_the_directory_is_refused_and_nothing_is_written_where_it_leads(
    place: str, tmp_path: Path
):
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "state" / place
    elsewhere.mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere / "file" if link.suffix else elsewhere)
    with pytest.raises(ServerError, match=f"{place} is a symbolic link to .*elsewhere"):
        StateDirectory(tmp_path / "state")
    link.unlink()
    (tmp_path / "linked").symlink_to(tmp_path / "state")  # the directory itself may be one
    opened = StateDirectory(tmp_path / "linked")
    check_feed(opened.path, feed())
    opened.close()
    assert not list(elsewhere.iterdir())


def test_a_link_that_came_later_is_not_followed(directory: StateDirectory, tmp_path: Path):
    check_feed(directory.path, feed())
    path = partition_path(directory.path, "speech", 0)
    (tmp_path / "elsewhere").mkdir()
    for link in (path, path.with_suffix(".lock"), path.with_name("feed.json.part")):
        link.symlink_to(tmp_path / "elsewhere" / "file")
    for write in (
        lambda: own_partition(path),
        lambda: Journal(path, "power", begun=True),
        lambda: write_durably(path.with_name("feed.json"), "x"),
    ):
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            write()
    path.parent.rename(directory.path / "feeds" / "other")
    path.parent.symlink_to(tmp_path / "elsewhere")
    for write in (lambda: own_partition(path), lambda: Journal(path, "power")):
        with pytest.raises(OSError, match="Not a directory"):
            write()
    assert not list((tmp_path / "elsewhere").iterdir())


# The term


def test_a_number_follows_the_clock_where_that_is_further_and_can_be_right(tmp_path: Path):
    directory = StateDirectory(tmp_path)
    numbers = [directory.raise_term(0, now) for now in (50, 50, 7, 0, 2**31 - 2, 60)]
    assert numbers == [50, 51, 52, 53, 54, 60]
    assert directory.raise_term(70, 65) == 71
    assert directory.starts == (*numbers, 71)
    assert directory.count == 7
    directory.close()


KILLED = """
import os, sys
from headrace_server.journal.state_directory import StateDirectory
FILES = ("state_directory.py", "durable_file.py")
at, seen = int(sys.stdin.readline()), 0
def trace(frame, event, argument):
    global seen
    if event in ("call", "line") and frame.f_code.co_filename.endswith(FILES):
        seen += 1
        if seen == at:
            os.kill(os.getpid(), 9)
    return trace
held = StateDirectory(sys.argv[1])
sys.settrace(trace)
term = held.raise_term()
sys.settrace(None)
print(term, flush=True)
"""


def test_a_kill_at_any_line_never_gives_a_number_twice(tmp_path: Path):
    given, killed = [0], 0
    for at in range(1, 80, 2):
        process = child(KILLED, tmp_path)
        out, error = process.communicate(f"{at}\n")
        assert error == ""
        if out:
            given.append(int(out))
            assert given[-1] > given[-2]
            break
        killed += 1
    assert killed > 8
    assert len(given) == 2
    directory = StateDirectory(tmp_path)
    assert directory.raise_term() > given[-1]
    directory.close()


@pytest.mark.parametrize(
    "text", ["", "7", "[]", "[[1], [1]]", "[[1, 7], [1, 3]]", "[[1, -1], [1, -1]]", "\xff\xfe"]
)
def test_a_damaged_term_is_an_error_with_the_remedy(text: str, directory: StateDirectory):
    file = directory.path / "terms.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ServerError, match=r"terms\.json is damaged.*an N larger than any"):
        directory.raise_term()
    assert file.read_bytes() == text.encode("latin-1")
    file.write_text("[[1, 41], [1, 41]]")
    assert directory.raise_term() == 42
    assert (directory.starts, directory.count) == ((41, 42), 2)


def test_a_term_beyond_all_tokens_is_refused(directory: StateDirectory):
    (directory.path / "terms.json").write_text(f"[[1, {2**31 - 1}], [1, {2**31 - 1}]]")
    with pytest.raises(ServerError, match=r"terms\.json is damaged: there is no term above"):
        directory.raise_term()


def test_a_missing_term_beside_existing_states_is_an_error(directory: StateDirectory):
    path = partition_path(directory.path, "speech", 0)
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(ServerError, match=r"terms\.json is gone, and states are there"):
        directory.raise_term()


# Feeds


def test_the_same_feed_goes_on(directory: StateDirectory):
    check_feed(directory.path, feed())
    noted = (directory.path / "feeds" / "speech" / "feed.json").read_text()
    check_feed(directory.path, feed())
    check_feed(directory.path, feed(pipeline(on_bad_example="skip", max_bad_examples=3)))
    assert (directory.path / "feeds" / "speech" / "feed.json").read_text() == noted


CHANGES = {
    "batch_size": (
        feed(pipeline({"batch_size": 5})),
        ["pipeline.shape.batch_size was 2 and is 5"],
    ),
    "capacity": (
        feed(pipeline({"capacity": 9})),
        ["pipeline.shape.capacity was 1000 and is 9"],
    ),
    "stamp": (
        feed(files=(FILES[0], DataFile("/data/b", 20, "1795887713861099993"))),
        [r"file /data/b was written anew \(then 19\d\d-.*, now 2026-11-2\d .*:53\.861100[+-].*\)"],
    ),
    "places": (
        feed(files=(DataFile("/other/a", 10, "7"), DataFile("/other/b", 20, "8"))),
        ["file /data/a is not of the feed any more", "file /other/a is new"],
    ),
    "layout": (
        feed(pipeline({"left": 1, "padding_values": {"x": 2.0}})),
        ["pipeline.shape.left was 0 and is 1", "pipeline.shape.padding_values was null"],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_feed_is_refused_in_words_and_goes_on_when_that_is_allowed(
    name: str, directory: StateDirectory
):
    check_feed(directory.path, feed())
    changed, words = CHANGES[name]
    for text in [*words, "feed 'speech' is not what the state in", "allow_config_change=True"]:
        with pytest.raises(ConfigChanged, match=text):
            check_feed(directory.path, changed)
    check_feed(directory.path, changed, allow_change=True)
    check_feed(directory.path, changed)  # it is what the state is of from now on
    with pytest.raises(ConfigChanged):
        check_feed(directory.path, feed())


NEVER = {
    "partitions": (feed(partitions=4), "partitions was 3 and is 4"),
    "num_unroll": (feed(pipeline({"num_unroll": 8})), "num_unroll was 4 and is 8"),
    "dtype": (
        feed(pipeline(states={"s": hs.zeros((2,), "float64")})),
        r'states.s\[0\] was "float32" and is "float64"',
    ),
    "shape": (
        feed(pipeline(states={"s": hs.zeros((7,), "float32")})),
        r"states.s\[1\]\[0\] was 2 and is 7",
    ),
    "size": (
        feed(files=(FILES[0], DataFile("/data/b", 21, "3"))),
        "file /data/b had 20 bytes and has 21, and positions are counted through all files",
    ),
    "other files": (
        feed(files=(FILES[0], DataFile("/data/c", 20, "2"))),
        "file /data/b is not of the feed any more, and positions",
    ),
    "order of files": (feed(files=FILES[::-1]), "the files come in another order"),
    "seed": (feed(pipeline(source=shuffled(2))), "pipeline.order.seed was 1 and is 2"),
    "epochs": (feed(pipeline(source=shuffled().repeat(3))), "pipeline.order.epochs was 1 and is 3"),
    "kind": (feed(shuffled().batch(2)), 'pipeline.shape.kind was "sequences" and is "batch"'),
    "stages": (
        feed(pipeline(source=shuffled().filter(bool))),
        "pipeline.stages was .* and is .*pass these",
    ),
    "order": (feed(pipeline({"order": "lanes"})), 'order was "arrival" and is "lanes"'),
    "names": (
        feed(pipeline(states={"t": hs.zeros((2,), "float32")})),
        "states.s was .* and is null",
    ),
}


@pytest.mark.parametrize("name", NEVER)
def test_an_incompatible_change_of_states_is_refused_even_where_changes_are_allowed(
    name: str, directory: StateDirectory
):
    check_feed(directory.path, feed())
    for allow in (False, True):
        with pytest.raises(ConfigChanged, match=NEVER[name][1]) as caught:
            check_feed(directory.path, NEVER[name][0], allow_change=allow)
        assert "can not go on from the state" in str(caught.value)
    check_feed(directory.path, feed())


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        *((None, text) for text in ("", "{", "[]", "{}", '{"format": 1}', "\xff")),
        ('"shape"', '"shapf"'),
        ('"partitions": 3', '"partitions": 0'),
    ],
)
def test_a_damaged_note_is_refused_by_name(was, becomes: str, directory: StateDirectory):
    check_feed(directory.path, feed())
    file = directory.path / "feeds" / "speech" / "feed.json"
    noted = file.read_text()
    assert was is None or was in noted
    file.write_bytes((noted.replace(was, becomes) if was else becomes).encode("latin-1"))
    for allow in (False, True):
        with pytest.raises(ServerError, match=r"feed\.json is damaged.*Resume from a snapshot"):
            check_feed(directory.path, feed(), allow_change=allow)


def test_a_note_that_is_gone_while_states_are_there_is_refused(directory: StateDirectory):
    path = partition_path(directory.path, "speech", 0)
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(ServerError, match=r"feed\.json is gone, and states lie beside it"):
        check_feed(directory.path, feed())


def test_a_note_of_another_release_is_refused_with_both_versions(
    directory: StateDirectory, monkeypatch: pytest.MonkeyPatch
):
    check_feed(directory.path, feed())
    monkeypatch.setattr(feed_directory, "_FORMAT", 5)
    with pytest.raises(
        ServerError, match=r"another release .*format 4, this one reads 5\): go on with that"
    ) as refused:
        check_feed(directory.path, feed(), allow_change=True)
    subprocess.run(shlex.split(str(refused.value).partition("to begin anew: ")[2]), check=True)
    anew = StateDirectory(directory.path)
    assert not check_feed(anew.path, feed())
    anew.close()
    assert Path(f"{directory.path}.1/feeds/speech/feed.json").exists()


def test_terms_of_a_share_are_no_other_shares(directory: StateDirectory):
    terms = [directory.raise_term(share=(2, 4)) for _ in range(3)]
    assert terms == [2, 6, 10]
    assert directory.raise_term(at_least=21, share=(2, 4)) == 22
    assert directory.raise_term(beyond=30, share=(2, 4)) == 34
