"""A worker's post: the end of a hung process, and the description of a death."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace_proto.clock import AwakeClock
from headrace_server.process.child import Child
from headrace_server.process.worker_diary import Diary
from headrace_server.server import liveness as module
from headrace_server.server.liveness import Patience, Post, end_of, obituary
from tests.patience import PATIENCE_S

PATIENCE = Patience(worker_timeout_s=8, opening_timeout_s=20)
#: A child that waits for the end of its input or of itself.
CODE = "import sys\nsys.stdin.buffer.read()\n"


class Place(Post):
    """A post whose worker is a process that does nothing, with the worker's end of its diary."""

    def __init__(self, path: Path) -> None:
        super().__init__(3, path / "diary-3", PATIENCE)
        (path / "idler.py").write_text(CODE)
        self.begin()
        environment = {"PYTHONPATH": str(path)}
        self.child = Child("idler", self.name, b"", lambda child, event: None, environment)
        self.worker = Diary(self.diary_file.path)

    def looks(self, since: float, until: float) -> None:
        """As the supervisor looks."""
        now = since
        while now <= until:
            self.look(now)
            now += PATIENCE.look_s

    @property
    def code(self) -> int | None:
        assert self.child is not None
        return self.child.wait(PATIENCE_S)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    one = Place(tmp_path)
    child = one.child
    assert child is not None
    yield one
    child.kill()
    child.wait(PATIENCE_S)
    child.close()


def alive(place: Place) -> bool:
    assert place.child is not None
    return place.child.wait(0) is None


def test_a_worker_whose_diary_gets_no_beat_is_ended_with_a_log_entry(
    place: Place, caplog: pytest.LogCaptureFixture
):
    place.worker.begin("speech", 1)
    place.worker.reading(np.array([5]), "a file")
    place.looks(100, 107)
    assert alive(place)
    place.worker.beat()
    place.looks(108, 115)
    assert alive(place)
    place.looks(116, 116)
    assert place.code == -signal.SIGABRT
    text = (
        "made no progress for 8 s (worker_timeout_s bounds that) and was ended; "
        "it was working on feed 'speech', partition 1, at a file"
    )
    assert place.end(-signal.SIGABRT) == text and f"worker-3-0 {text}" in caplog.messages
    place.looks(117, 140)
    assert len(caplog.messages) == 1, "it is ended once"


def test_the_log_names_once_a_function_in_which_a_worker_makes_no_progress(
    place: Place, caplog: pytest.LogCaptureFixture
):
    place.worker.begin("speech", 1, opening=True)
    place.worker.enter("feeds:augment")
    place.looks(100, 104)
    assert not caplog.messages
    place.looks(105, 107)
    where = "it was opening feed 'speech', partition 1, in `augment`"
    assert caplog.messages == [f"worker-3-0 has made no progress for 5 s; {where}"]
    place.worker.beat()
    place.looks(108, 114)
    assert len(caplog.messages) == 1, "a slow function is named once in a life"
    place.worker.enter("feeds:mirror")
    place.looks(115, 116)
    assert "in `mirror`" in caplog.messages[-1]


def test_a_worker_is_not_ended_because_its_observer_slept(place: Place):
    """1. Both stand still for an hour; 2. the observer looks first; 3. the worker has its time."""
    machine = [100.0]
    clock = AwakeClock(2 * PATIENCE.look_s, lambda: machine[0])
    place.worker.begin("speech", 1)
    place.look(clock())
    machine[0] += 3600
    place.look(clock())
    for _ in range(5):
        machine[0] += PATIENCE.look_s
        place.look(clock())
    assert alive(place)
    machine[0] += PATIENCE.look_s
    place.look(clock())
    assert place.code == -signal.SIGABRT and "no progress for 8 s" in place.end(None)


def test_a_worker_has_longer_while_it_opens_its_sources(place: Place):
    place.worker.begin("speech", 1, opening=True)
    place.looks(100, 119)
    assert alive(place)
    place.looks(120, 120)
    assert place.code == -signal.SIGABRT
    assert "made no progress for 20 s (start_timeout_s bounds that)" in place.end(None)


def test_a_kill_may_be_the_kernels_for_want_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kills = [7]
    monkeypatch.setattr(module, "kills_for_memory", lambda: kills[0])
    post = Post(0, tmp_path / "diary", PATIENCE)
    post.begin()
    assert post.end(-signal.SIGKILL) == "was killed by SIGKILL"
    kills[0] = 9
    assert post.end(-signal.SIGKILL) == (
        "was killed by SIGKILL, and the kernel killed 2 while it lived because memory had run out"
    )
    assert post.end(-signal.SIGTERM) == "was killed by SIGTERM"
    post.begin()
    assert post.end(-signal.SIGKILL) == "was killed by SIGKILL"


def test_an_obituary_has_the_report_of_a_dying_child_or_else_its_last_output(tmp_path: Path):
    (tmp_path / "talker.py").write_text("import sys\nsys.exit('the last line')\n")
    path = {"PYTHONPATH": str(tmp_path)}
    child = Child("talker", "c", b"", lambda child, event: None, path)
    end = end_of(child.wait(PATIENCE_S))
    child.close()
    assert obituary(child, end) == "c ended with exit code 1; its last words were:\nthe last line"
    child.last_words.clear()
    assert obituary(child, end) == "c ended with exit code 1"
    child.reason = "it hurts"
    assert obituary(child, end) == "c ended with exit code 1: it hurts"
