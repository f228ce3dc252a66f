"""A crowd yields the number of the trainer for each batch that one of them took."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest

from tests.bench import crowds
from tests.bench.steps import LOADED, READY


class Board:
    """On which trainers have taken more whenever it is looked at."""

    all_here = True

    def __init__(self, file: str, trainers: int) -> None:
        self.looks = -1

    def start(self) -> None:
        pass

    @property
    def batches(self) -> list[int]:
        self.looks += 1
        return [self.looks, 2 * self.looks]


class Trainer:
    code: int | None = None

    def poll(self) -> int | None:
        return self.code


@contextlib.contextmanager
def entered(value: object):
    yield value


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(crowds, "Board", Board)
    monkeypatch.setattr(crowds, "helper", lambda *_: entered(None))
    monkeypatch.setattr(crowds, "last_line", lambda _: "tcp://nowhere")
    monkeypatch.setattr(crowds, "_trainers", lambda *_: entered([Trainer()]))
    return crowds.crowd(2)(tmp_path)


def test_each_batch_is_a_step_of_its_trainer(steps):
    assert list(itertools.islice(steps, 8)) == [LOADED, READY, 1, 2, 2, 1, 2, 2]


def test_a_trainer_that_ends_is_an_error(steps, monkeypatch: pytest.MonkeyPatch):
    assert list(itertools.islice(steps, 3)) == [LOADED, READY, 1]
    monkeypatch.setattr(Trainer, "code", 1)
    with pytest.raises(RuntimeError, match="a trainer has ended"):
        list(steps)
