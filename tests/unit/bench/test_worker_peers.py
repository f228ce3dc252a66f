"""Peers with worker processes hand over right batches, where they are installed."""

from __future__ import annotations

import itertools
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

from tests.bench import grain_peers, sequences, tensorpack_peers, torch_peers
from tests.bench.steps import LOADED, READY

from .w4 import small

_PEERS = {
    "torch": torch_peers.loader,
    "grain": grain_peers.workers,
    "tensorpack": tensorpack_peers.runner,
}


@pytest.mark.parametrize("module", _PEERS)
def test_a_peer_yields_batches_and_the_first_is_checked(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip(module, exc_type=ImportError)
    checked = []

    def check(batch: Any, directory: Path) -> None:
        checked.append(directory)
        sequences.check(batch)

    directory = small(tmp_path, monkeypatch)
    steps = _PEERS[module]("W2", 1, check)(directory)
    assert list(itertools.islice(steps, 6)) == [LOADED, READY, 1, 1, 1, 1]
    steps.close()
    resource_tracker._resource_tracker._stop()  # python's own, which Grain's shared memory began
    assert checked == [directory]
