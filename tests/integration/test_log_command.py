"""``headrace log``: what people do with logs of a running server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from headrace_server.cli import main
from tests.patience import eventually

from .serving import connect
from .test_live import batched, numbers, produce


@pytest.fixture
def log(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command at a server; returns its exit code, its output and its errors."""

    def run(server: hs.Server, *words: str) -> tuple[int, str, str]:
        monkeypatch.setenv("HEADRACE_ADDRESS", server.address)
        capfd.readouterr()
        code = main(["log", *words])
        said = capfd.readouterr()
        return code, said.out, " ".join(said.err.split())

    return run


def test_a_file_of_examples_is_appended_and_the_log_listed_and_closed(log: Any, tmp_path: Path):
    file = tmp_path / "examples.jsonl"
    examples = [{"x": [float(n)] * (n % 3 or 3), "key": f"{n}"} for n in range(1, 7)]
    file.write_text("\n".join(map(json.dumps, examples)))
    feeds = {"one": batched(), "two": batched()}
    with hs.run(feeds, partitions=2) as server:
        found = log(server, "append", "episodes", str(file))
        assert found == (0, "6 examples are stored in log 'episodes'\n", "")
        assert log(server, "close", "episodes")[0] == 0
        with connect(server, feed="one") as feed:
            assert sorted(n for batch in feed for n in numbers(batch)) == [1, 2, 3, 4, 5, 6]
        code, lines, _ = log(server, "list")
        assert code == 0 and [line.split()[-1] for line in lines.splitlines()[1:]] == ["closed"] * 2
        assert "the log is closed" in log(server, "append", "episodes", str(file))[2]


def test_a_bad_line_is_named_and_those_before_it_are_stored(log: Any, tmp_path: Path):
    for number, (line, fault) in enumerate({
        '{"x": [1.0]}': "line 2: the columns ['x'] were given, and the log has ['key', 'x']",
        '{"x": [1.0], "key": 3}': "line 2: column 'key' has 3, and is of byte strings",
        "[1": "line 2: Expecting ',' delimiter",
    }.items()):  # fmt: skip
        file = tmp_path / f"{number}.jsonl"
        file.write_text('{"x": [1.0], "key": "a"}\n' + line)
        with hs.run(batched()) as server:
            code, _, error = log(server, "append", "episodes", str(file))
            assert code == 1 and fault in error, error
            assert "the first 1 examples are stored" in error


def test_a_log_is_inspected_and_its_resting_sequences_are_ended(log: Any):
    with hs.run(batched(), partitions=2) as server, produce(server) as out:
        sequence = out.open("rests", {"key": "a"})
        sequence.extend({"x": [1.0, 2.0]})
        out.flush()
        (row,) = [one for one in json.loads(log(server, "inspect", "episodes", "--json")[1])
                  if one["resting"]]  # fmt: skip
        assert row["resting"][0][:3] == ["rests", "actor", 2]
        assert row["feeds"]["default"]["open"] == 1 and row["feeds"]["default"]["bytes"] > 0
        assert log(server, "inspect", "episodes")[1].splitlines()[-1].split()[1:4] == [
            "rests", "actor", "2",
        ]  # fmt: skip
        assert log(server, "trim", "episodes", "--idle", "3600")[1].startswith("0 sequences")
        assert log(server, "trim", "episodes", "--idle", "0")[1].startswith("1 sequence ended")
        with pytest.raises(headrace.DataError, match="it is not open"):
            eventually(lambda: sequence.append({"x": 3.0}) and out.flush())
        code, _, error = log(server, "trim", "episode", "--idle", "0")
        assert code == 2 and "there is no log 'episode'" in error and "'episodes'" in error
