"""Digests of a feed's functions, stored beside the state that these functions made.

    worker: imports them ─► compared with those on disk ─► refused, or the supervisor notes them

Only a worker knows the code that it imported: the process that declared the pipeline may have
imported it long before.  The supervisor compares the digests of later lives with those of the
first.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files.durable_file import read_json, write_durably
from ..pipeline.fingerprint import PYTHON, changes
from .statedir import ConfigChanged

logger = logging.getLogger("headrace.server")

FUNCTIONS = "functions.json"
_FORMAT = 1


def noted_functions(directory: Path) -> Any:
    """Return the digests that lie beside a feed's state; None where there are none."""
    remedy = "Remove it to go on without a comparison of the functions"
    return read_json(directory / FUNCTIONS, _functions, remedy)


def _functions(known: Any) -> Any:
    if known["format"] != _FORMAT:
        return None
    return {"python": str(known["python"]), "functions": dict(known["functions"])}


def check_functions(feed: str, known: Any, now: Mapping[str, Any], allow_change: bool) -> None:
    """Raise ConfigChanged where a function is not the one that is noted.

    Digests of another version of Python are not compared.
    """
    if known is None:
        return
    if known["python"] != PYTHON:
        logger.info(
            "feed %r: its state was made under another version of Python, so it is not known "
            "whether its functions were changed",
            feed,
        )
        return
    code, values = changes(known["functions"], now)
    if values:
        logger.warning("feed %r: since its state was made, %s", feed, _listed(values))
    if code and not allow_change:
        raise ConfigChanged(
            f"feed {feed!r} is not what its state is of: {_listed(code)}.  Undo that, use another "
            "state_dir, or give allow_config_change=True to go on with the states that there are"
        )
    if code:
        logger.warning("feed %r goes on though %s", feed, _listed(code))


def _listed(texts: list[str]) -> str:
    more = f"; and {len(texts) - 5} more" if len(texts) > 5 else ""
    return "; ".join(texts[:5]) + more


def changed_functions(first: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how the digests of a later worker differ from the first, for people; "" if equal."""
    code, values = changes(first, now)
    return _listed([*code, *values])


def note_functions(directory: Path, functions: Mapping[str, Any]) -> None:
    """Write the digests beside the feed's state, if they are not there already."""
    plain = {"format": _FORMAT, "python": PYTHON, "functions": functions}
    text = json.dumps(plain, indent=1, sort_keys=True)
    file = directory / FUNCTIONS
    if not file.exists() or file.read_text() != text:
        write_durably(file, text)
