"""A contestant runs in the interpreter that suits it, or the report gives the reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench import environments
from tests.bench.contestants import CONTESTANTS
from tests.bench.environments import REQUIREMENTS, Absent, Environments


def test_every_environment_is_of_a_contestant():
    for name in REQUIREMENTS:
        assert any(contestant.startswith(name) for contestant in CONTESTANTS)


def test_headrace_and_its_peers_in_tensorflow_run_in_the_environment_of_the_benchmark(
    tmp_path: Path,
):
    for name in ("headrace shm tf", "tf.data service", "Barrier in the graph"):
        assert Environments(tmp_path).python(name) == sys.executable


def test_an_environment_is_made_once_and_made_anew_for_other_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    commands = []

    def run(*command: str) -> None:
        commands.append(command)
        if command[1:3] == ("-m", "venv"):
            Path(command[3]).mkdir(parents=True)

    monkeypatch.setattr(environments, "run_command", run)
    python = Environments(tmp_path).python("Grain, 2 workers")
    assert python == str(tmp_path / "environments" / "Grain" / "bin" / "python")
    assert [command[0] for command in commands] == [sys.executable, python]
    assert "grain==0.2.18" in commands[1]
    Environments(tmp_path).python("Grain images, 1 worker")
    assert len(commands) == 2
    monkeypatch.setitem(REQUIREMENTS, "Grain", ("grain==0.1",))
    Environments(tmp_path).python("Grain, 2 workers")
    assert len(commands) == 4


def test_an_earlier_headrace_is_taken_from_the_history_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    commands = []
    monkeypatch.setattr(environments, "run_command", lambda *command: commands.append(command))
    them = Environments(tmp_path)
    assert them.packages("headrace tcp tf") == []
    home = tmp_path / "environments" / environments.EARLIER_COMMIT
    found = [home / package for package in ("client", "server", "proto")]
    assert them.packages("earlier headrace tcp tf") == found
    assert [command[0] for command in commands] == ["git", "tar"]
    assert environments.EARLIER_COMMIT in commands[0]
    assert them.packages("earlier headrace arrival tcp") == found
    assert len(commands) == 2


def test_without_the_history_an_earlier_headrace_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(environments, "_ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(Absent, match="not a git repository"):
        Environments(tmp_path).packages("earlier headrace tcp tf")


def test_a_package_that_pip_refuses_is_absent_with_the_error_of_pip_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tried = []

    def run(*command: str) -> None:
        tried.append(command)
        raise Absent("ERROR: No matching distribution")

    monkeypatch.setattr(environments, "run_command", run)
    them = Environments(tmp_path)
    for _ in range(2):
        with pytest.raises(Absent, match=r"dm-reverb.* can not be installed: ERROR: No matching"):
            them.python("Reverb images")
    assert len(tried) == 1


def test_the_last_error_of_a_command_is_its_word():
    code = "import sys; sys.exit('ERROR: first\\nERROR: second\\nhint')"
    with pytest.raises(Absent, match=r"^ERROR: second$"):
        environments.run_command(sys.executable, "-c", code)


def test_a_module_that_is_not_there_makes_its_contestant_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(environments.MODULES, "torch", "no_such_module")
    with pytest.raises(Absent, match="no_such_module is not installed"):
        Environments(tmp_path).python("torch DataLoader, 2 workers")
