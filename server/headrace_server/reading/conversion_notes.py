"""The notes of a conversion in its directory, from which another run resumes.

    conversion.json         what is converted, which parts are done, where reading goes on
    part-00000.arrow …      done, and noted; the last one may be there and not be noted yet
    *.part                  what a killed run was writing: removed

A flock reserves the directory.  A directory with other files is refused and left unchanged.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any, Final

import msgpack

from ..files.durable_file import held, whole, write_durably

_NAME: Final = "conversion.json"
_FORMAT: Final = 1


def part_name(number: int) -> str:
    return f"part-{number:05d}.arrow"


class Notes:
    """The notes of a directory, which is reserved until ``close``."""

    def __init__(self, directory: Path, of: dict[str, Any]) -> None:
        """``of`` is plain data that identifies what is converted.  ValueError where the directory
        holds the conversion of something else, or other files, or is held."""
        self.directory = directory
        self.parts: list[dict[str, Any]] = []
        self.position: Any = None  # where reading resumes, once there is a part
        self.read = 0
        self.dropped: dict[str, int] = {}
        self.complete = False
        self._of = of
        directory.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = held(directory, os.O_DIRECTORY)
        except BlockingIOError:
            raise ValueError(f"{directory}: another conversion is at work there") from None
        try:
            self._load()
            self._clear()
        except BaseException:
            self.close()
            raise

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part["rows"] for part in self.parts)

    def _load(self) -> None:
        path = self.directory / _NAME
        try:
            noted = json.loads(path.read_text())
            if noted["format"] != _FORMAT:
                raise ValueError(f"its format is {noted['format']!r}")
            if not noted["parts"]:
                return
            changed = [key for key, value in self._of.items() if noted["of"][key] != value]
            self.parts = list(noted["parts"])
            for part in self.parts:
                part.update(rows=whole(part["rows"]), bytes=whole(part["bytes"]))
            self.position = msgpack.unpackb(base64.b64decode(noted["position"]))
            self.read = whole(noted["read"])
            self.dropped = {str(why): whole(rows) for why, rows in noted["dropped"].items()}
            self.complete = bool(noted["complete"])
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged ({error}): give another directory") from None
        if changed:
            raise ValueError(
                f"{self.directory} holds the conversion of something else ({', '.join(changed)} "
                "differ), and nothing is overwritten: give another directory"
            )

    def _clear(self) -> None:
        """Remove the unfinished file of a killed run; refuse files that no run has written."""
        ours = {part["name"] for part in self.parts}
        if (self.directory / _NAME).exists():
            ours |= {_NAME, part_name(len(ours))}
        unfinished = {f"{name}.part" for name in (_NAME, *ours)}
        here = {entry.name for entry in self.directory.iterdir()}
        if strange := sorted(here - ours - unfinished):
            raise ValueError(
                f"{self.directory} holds {', '.join(strange[:3])}, and nothing is overwritten: "
                "give another directory"
            )
        for name in here & unfinished:
            (self.directory / name).unlink()
        if not self.parts:
            self.save()

    def save(self) -> None:
        """Write the notes to disk."""
        position = msgpack.packb(self.position)
        assert isinstance(position, bytes)
        notes = {
            "format": _FORMAT,
            "of": self._of,
            "parts": self.parts,
            "position": base64.b64encode(position).decode(),
            "read": self.read,
            "dropped": self.dropped,
            "complete": self.complete,
        }
        write_durably(self.directory / _NAME, json.dumps(notes, indent=1))

    def close(self) -> None:
        """Release the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
