"""The content that is on the disk when a file has its name."""

from __future__ import annotations

import os
from typing import Any

from headrace_server.files.durable_file import write_durably


def test_a_small_file_is_the_old_or_the_new_one(tmp_path, monkeypatch):
    """The new bytes are on the disk before they get the name, and then the name."""
    steps: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "replace")}

    def fsync(fd: int) -> None:
        steps.append(f"fsync {os.path.basename(os.readlink(f'/proc/self/fd/{fd}'))}")
        real["fsync"](fd)

    def replace(*args: Any) -> None:
        steps.append("replace")
        real["replace"](*args)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_durably(tmp_path / "x", "new")
    assert steps == ["fsync x.part", "replace", f"fsync {tmp_path.name}"]
    assert (tmp_path / "x").read_text() == "new"
