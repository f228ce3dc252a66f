"""Peers with worker processes hand over right batches, where they are installed.

Not Grain: what it leaves running until its process ends is taken for a leak by every test.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.bench import sequences, tensorpack_peers, torch_peers
from tests.bench.steps import LOADED, READY

from .w4 import small

_PEERS = {
    "torch": torch_peers.loader,
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
    assert checked == [directory]
