"""The blocks and the buffers in which states go to their server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.batches.saving import Saving
from headrace.connection.state_block import BlockMaker, FreeBuffers, StateBuffer
from headrace_proto.segment_layout import State
from headrace_proto.state_buffers import file_bytes

MAKER = BlockMaker({"a": State("a", "float32", (3,))})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trainer-1"
    with path.open("wb") as file:
        file.truncate(file_bytes(2, 64))
    return path


def test_a_buffer_is_free_again_when_nothing_refers_to_it(file: Path):
    buffers = FreeBuffers(str(file), 64, bytes(16))
    first, second = buffers.take(64), buffers.take(1)
    assert first is not None and second is not None
    assert {first.number, second.number} == {0, 1} and first.owner is buffers
    assert buffers.take(64) is None
    number = second.number
    del second
    again = buffers.take(64)
    assert again is not None and again.number == number


def test_there_is_none_where_another_session_has_taken_the_name_of_the_file(file: Path):
    """As after the death of an owner, whose next life numbers its sessions anew."""
    buffers = FreeBuffers(str(file), 64, bytes(16))
    file.unlink()
    file.write_bytes(b"16 other bytes.." + bytes(file_bytes(2, 64) - 16))
    assert buffers.take(64) is None
    assert FreeBuffers(str(file), 64, b"16 other bytes..").take(64) is not None


def test_states_go_into_a_buffer_once_the_session_has_sent_a_batch_by_reference(file: Path):
    """Before that the owner may not have made the session's file long enough for buffers."""
    buffers = FreeBuffers(str(file), 64, bytes(16))
    session = SimpleNamespace(buffers=buffers, mapped=SimpleNamespace(last=0))
    saving: Any = SimpleNamespace(_maker=MAKER, _link=SimpleNamespace(session_of=lambda _: session))
    batch: Any = SimpleNamespace(partition=0, rows=2)
    for session.mapped.last in (0, 1):
        _, block = Saving._upload(saving, SimpleNamespace(), batch).finish({})
        assert isinstance(block, StateBuffer) is (session.mapped.last == 1)
