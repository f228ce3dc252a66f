"""Ctrl-C strikes trainers of chaos amid the client's code, and not amid their own."""

from __future__ import annotations

import signal
from random import Random
from typing import Any

import pytest

from . import trainer
from .trainer import Interrupts


def test_ctrl_c_comes_amid_the_code_of_the_client_only(monkeypatch: pytest.MonkeyPatch) -> None:
    set_timer, struck = signal.setitimer, []

    def counted(which: int, seconds: float) -> Any:
        struck.append(seconds)
        return set_timer(which, seconds)

    monkeypatch.setattr(signal, "setitimer", counted)

    def spins() -> None:
        with interrupts.may_come():
            while len(struck) < 4 or __file__ in trainer._OURS:
                pass

    before = signal.getsignal(signal.SIGALRM)
    try:
        interrupts = Interrupts(Random(0), 1.0)
        spins()  # each time it came it was put off
        monkeypatch.setattr(trainer, "_OURS", (__file__,))
        with pytest.raises(KeyboardInterrupt):
            spins()
    finally:
        signal.signal(signal.SIGALRM, before)
