"""Stores of a worker over real files with their messages, and its partitions, for tests."""

from __future__ import annotations

import select
from pathlib import Path
from typing import Any

from headrace_server.files.manifest import resolve
from headrace_server.leasing.protocol import ANYONE
from headrace_server.making.slab import Slab
from headrace_server.pipeline.builder import Pipeline
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.worker_diary import Diary, DiaryFile
from headrace_server.worker.commits import Stores
from headrace_server.worker.partition_opening import Life, Opener

PATIENCE_S = 30


class Keeping:
    """One worker's stores, and the messages that they send."""

    def __init__(self, directory: Path, durability: str = "power", window: int = 64) -> None:
        self._failed: list[tuple[tuple[str, int], Exception]] = []
        self.stores = Stores(
            str(directory), durability, self._fail, lambda name, text: None, window=window
        )

    def _fail(self, name: tuple[str, int], error: Exception) -> None:
        self._failed.append((name, error))

    def settle(self, name: tuple[str, int]) -> None:
        """Wait until all changes of a partition are stored."""
        stored: list[bool] = []
        self.stores.then(name, lambda: stored.append(True))
        self.stores.write()
        while not stored:
            ready, _, _ = select.select([self.stores], [], [], PATIENCE_S)
            assert ready, "the stores say nothing"
            self.stores.call_stored()
        assert not self._failed


class House(Keeping):
    """One life of a worker with one feed, "f", of two partitions."""

    def __init__(
        self, pipeline: Pipeline, here: Path, directory: Path | None, durability: str = "power"
    ) -> None:
        """Without a state directory journals end with this life."""
        life = f"life{len(list(here.iterdir()))}"
        journals = (
            (here / life / "journals", "worker") if directory is None else (directory, durability)
        )
        super().__init__(*journals)
        declaration = pipeline.declaration()
        self.feed = FeedConfig("f", declaration, resolve(declaration.source.paths), 2)
        here = here / life
        here.mkdir()
        self.diary_file = DiaryFile(here / "diary")
        self.diary = Diary(self.diary_file.path)
        begun = Life(
            config=RunConfig((self.feed,), str(here), ()),
            worker=0,
            number=0,
            diary=self.diary,
            marks={"f": {"left_out": [], "suspects": []}},
        )
        self.slab = Slab(here, 0, 0, 1 << 20, 1 << 16)
        self.opener = Opener(begun, self.slab, self.stores)

    def open(self, partition: int = 0) -> Any:
        return self.opener.open(self.feed, partition)


def step(run: Any) -> Any:
    """Return the next batches of a partition, or why it makes none."""
    while (made := run.make(ANYONE, 1 << 62)) == []:
        pass
    return made
