"""A trainer that hostile peers must not disturb."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S


@contextlib.contextmanager
def honest_trainer(
    server: hs.Server, rows: int, keys: str | None = None
) -> Iterator[headrace.Feed]:
    """Train slowly while the block lasts, then train the rest; check that each row came once."""
    seen: list[int] = []
    rushing = threading.Event()
    failures: list[BaseException] = []
    with headrace.connect(server.address, keys=keys, timeout=PATIENCE_S) as feed:

        def run() -> None:
            try:
                for batch in feed:
                    seen.extend(batch["i"].tolist())
                    rushing.wait(0.01)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield feed
        finally:
            rushing.set()
            thread.join(PATIENCE_S)
    assert not failures
    assert sorted(seen) == list(range(rows))
