"""A contestant that fails or is silent ends with all its children, and its output is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import running
from tests.bench.running import Failed, Process, Running
from tests.children import gone
from tests.patience import eventually


def program(directory: Path, lines: str) -> str:
    """Something that is started as an interpreter would be."""
    file = directory / "python"
    file.write_text(f"#!/bin/sh\n{lines}\n")
    file.chmod(0o755)
    return str(file)


def test_a_contestant_answers_in_json_among_other_words(tmp_path: Path):
    lines = """echo 'hello'; echo '{broken'; echo '{"warm": true}'; read x; echo "$x" """
    process = Process(program(tmp_path, lines), "any", tmp_path)
    process.warm()
    assert process.window(1.5) == {"seconds": 1.5}
    process.close()


def test_a_contestant_that_ends_early_is_reported_with_its_output(tmp_path: Path):
    process = Process(program(tmp_path, "echo 'no such thing' >&2; exit 3"), "any", tmp_path)
    with pytest.raises(Failed, match="any: ended with 3: no such thing"):
        process.warm()
    process.close()


def test_one_that_is_silent_ends_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running, "_WARM_S", 0.3)
    lines = f"sleep 600 & echo $! > {tmp_path}/child; wait"
    process = Process(program(tmp_path, lines), "any", tmp_path)
    eventually(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
    with pytest.raises(Failed, match=r"said nothing for 0\.3 s"):
        process.warm()
    process.close()
    assert gone(int((tmp_path / "child").read_text()))


def test_one_is_stopped_with_its_children_between_its_windows(tmp_path: Path):
    loop = "while :; do :; done"
    lines = f"""({loop}) & echo $! > {tmp_path}/child
        while echo '{{"warm": true}}'; read x; do :; done"""
    process = Process(program(tmp_path, lines), "any", tmp_path)
    process.warm()
    child = int((tmp_path / "child").read_text())
    for _ in range(2):
        eventually(lambda: stopped(child))
        process.window(0.1)
    process.close()
    assert gone(child)


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def test_processes_that_a_contestant_leaves_behind_are_ended(tmp_path: Path):
    lines = (
        f"""sleep 600 >/dev/null & echo $! > {tmp_path}/child; echo '{{"warm": true}}'; read x"""
    )
    process = Process(program(tmp_path, lines), "any", tmp_path)
    process.warm()
    process.close()
    assert gone(int((tmp_path / "child").read_text()))


def test_contestants_live_on_while_they_are_kept_and_a_failure_ends_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    interpreter = program(tmp_path, """echo '{"warm": true}'; read x""")
    monkeypatch.setattr(running.Environments, "python", lambda self, name: interpreter)
    with running.running(tmp_path) as them:
        first, second = them.contestants("a", "b")
        assert them.contestants("b", "c")[0] is second
        them.keep({"a"})
        assert them.contestants("a")[0] is first
        assert them.contestants("b")[0] is not second
        them.failed(Failed("b", "why"))
        assert them.contestants("a")[0] is not first


def test_a_contestant_that_failed_three_times_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    begun = tmp_path / "begun"
    interpreter = program(tmp_path, f"echo once >> {begun}; exit 1")
    monkeypatch.setattr(running.Environments, "python", lambda self, name: interpreter)
    them = Running(tmp_path)
    for _ in range(5):
        with pytest.raises(Failed, match="a: ended with 1") as raised:
            them.contestants("a")
        them.failed(raised.value)
    assert begun.read_text().splitlines() == ["once"] * 3
