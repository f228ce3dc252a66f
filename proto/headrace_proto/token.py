"""A snapshot's token, which a trainer keeps beside its model and later resumes from.

    {"headrace": 1, "feed": "speech", "snapshot": "20260102T030405Z-0123456789ab"}

Plain JSON data.  It names a snapshot and contains none of it; ``url`` tells an operator where
copies are; no server fetches from a URL that a trainer brings.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_FORMAT = 1
#: The name of a snapshot: its time, and a random part.
SNAPSHOT = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{12}")
#: The form of the time in it.
STAMP = "%Y%m%dT%H%M%SZ"
_EXAMPLE = '{"headrace": 1, "feed": …, "snapshot": …}'


def new_snapshot() -> str:
    """Return a name for a snapshot that is made now."""
    return f"{datetime.now(UTC).strftime(STAMP)}-{secrets.token_hex(6)}"


@dataclass(frozen=True, slots=True)
class Token:
    """A snapshot of one feed."""

    feed: str
    snapshot: str
    url: str = ""

    def to_plain(self) -> dict[str, Any]:
        plain = {"headrace": _FORMAT, "feed": self.feed, "snapshot": self.snapshot}
        return {**plain, "url": self.url} if self.url else plain

    @classmethod
    def from_plain(cls, argument: str, value: object) -> Token:
        """Return the token of a mapping or of JSON text.

        TypeError or ValueError names the argument.
        """
        plain = value
        if isinstance(value, (str, bytes)):
            try:
                plain = json.loads(value)
            except ValueError:
                raise ValueError(f"{argument}={value!r:.120} is not JSON: {_EXAMPLE}") from None
        if not isinstance(plain, Mapping):
            raise TypeError(f"{argument}={value!r:.120} is not a snapshot's token: {_EXAMPLE}")
        if "headrace" not in plain:
            raise ValueError(f"{argument}={value!r:.120} is not a snapshot's token: {_EXAMPLE}")
        if plain["headrace"] != _FORMAT:
            raise ValueError(
                f"{argument}: a token of format {plain['headrace']!r:.40}, of another release of "
                f"headrace; this one knows format {_FORMAT}"
            )
        feed, snapshot, url = (plain.get(name, "") for name in ("feed", "snapshot", "url"))
        if not isinstance(feed, str) or not feed:
            raise ValueError(f"{argument}: the token's feed is {feed!r:.80}")
        if not isinstance(snapshot, str) or not SNAPSHOT.fullmatch(snapshot):
            raise ValueError(f"{argument}: {snapshot!r:.80} is not the name of a snapshot")
        if not isinstance(url, str):
            raise ValueError(f"{argument}: the token's url is {url!r:.80}")
        return cls(feed, snapshot, url)
