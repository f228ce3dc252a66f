"""The page: one file that loads nothing from elsewhere, and the policy that keeps it so.

The policy names the script and the style of the file by their hashes.  So no text of a feed, an
error or a trainer can become a script, even where the page should fail to escape it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("page.html")


@cache
def page() -> bytes:
    """Return the file."""
    return _FILE.read_bytes()


def _hashes(tag: str) -> str:
    """Return the hashes, as in the policy, of the contents of all elements of a kind."""
    found = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), page(), re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(text).digest()).decode() for text in found)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


PAGE_POLICY = (
    f"default-src 'none'; script-src {_hashes('script')}; style-src {_hashes('style')}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
