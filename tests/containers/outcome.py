"""The outcome of each check, and the table of all."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Outcomes", "Skip"]

RAN, VALIDATED, SKIPPED, FAILED = "ran", "validated", "skipped", "failed"


class Skip(Exception):
    """A check can not be made here; the text says why."""


@dataclass
class Outcomes:
    """All outcomes so far: (kind, name, text)."""

    lines: list[tuple[str, str, str]] = field(default_factory=list)

    def ran(self, name: str, check: Callable[[], str]) -> bool:
        """Run a check, which returns its observation; return whether it succeeded."""
        return self._take(RAN, name, check)

    def validated(self, name: str, check: Callable[[], str]) -> bool:
        """A check that only reads a file; whether it succeeded."""
        return self._take(VALIDATED, name, check)

    def skipped(self, name: str, reason: str) -> None:
        self._note(SKIPPED, name, reason)

    def _take(self, kind: str, name: str, check: Callable[[], str]) -> bool:
        started = time.monotonic()
        try:
            text = check()
        except Skip as reason:
            self._note(SKIPPED, name, str(reason))
            return False
        except Exception as error:
            traceback.print_exc()
            self._note(FAILED, name, f"{type(error).__name__}: {error}".splitlines()[0][:200])
            return False
        self._note(kind, name, f"{text} ({time.monotonic() - started:.1f} s)")
        return True

    def _note(self, kind: str, name: str, text: str) -> None:
        self.lines.append((kind, name, text))
        print(f"{kind:9}  {name}: {text}", flush=True)

    def table(self) -> str:
        width = max(len(name) for _, name, _ in self.lines)
        rows = [f"{kind:9}  {name:{width}}  {text}" for kind, name, text in self.lines]
        count = {k: sum(kind == k for kind, _, _ in self.lines) for k in (RAN, VALIDATED, SKIPPED)}
        total = ", ".join(f"{number} {kind}" for kind, number in count.items())
        return "\n".join([*rows, f"{total}, {self.failures} failed"])

    @property
    def failures(self) -> int:
        return sum(kind == FAILED for kind, _, _ in self.lines)
