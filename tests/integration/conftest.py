"""Fixtures of integration tests."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.patience import PATIENCE_S


@pytest.fixture
def over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers of this process do not find the server's memory, as on another host."""

    def unseen(directory: str, session_file: str) -> None:
        raise FileNotFoundError(session_file)

    monkeypatch.setattr("headrace.connection.Attachment", unseen)


@pytest.fixture(params=["shared memory", "tcp"])
def way(request: pytest.FixtureRequest) -> str:
    """Run a test with either transport of batches."""
    if request.param == "tcp":
        request.getfixturevalue("over_tcp")
    return str(request.param)


@pytest.fixture(scope="session")
def tf() -> Any:
    """TensorFlow, loaded when the first test asks for it."""
    return pytest.importorskip("tensorflow")


@pytest.fixture(scope="session")
def elsewhere() -> list[str]:
    """Return the head of a command that runs without access to this machine's shared memory."""
    command = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$0" "$@"']
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True, timeout=PATIENCE_S)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no mount namespace can be made here: {error}")
    return command
