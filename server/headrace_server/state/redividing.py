"""A snapshot that n servers took of their shares, for a server that is one of another number.

    0-of-4/  1-of-4/  2-of-4/  3-of-4/ ─► the stores of the partitions of share 1/2
                                       ─► feed.json with that share
                                       ─► the rows that any of them leaves out

The store of a partition is the same whichever server owns it, so nothing in it changes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from headrace_proto.errors import ServerError
from headrace_proto.placement import WHOLE, Share

from ..files.durable_file import read_json
from .left_out_file import LEFT_OUT, LeftOutRows, left_out_rows, write_left_out
from .statedir import SHARE, SUFFIX


def redivide(parts: Iterable[Path], share: Share, into: Path) -> None:
    """Move a share's partitions from the snapshots of all shares of another number of servers."""
    left_out: LeftOutRows = {}
    for part in parts:
        for path in sorted(part.iterdir()):
            if path.suffix == SUFFIX:
                if int(path.stem) % share[1] == share[0]:
                    os.rename(path, into / path.name)
            elif path.name == LEFT_OUT:
                left_out.update(left_out_rows(path))
            elif path.name in ("feed.json", "functions.json"):
                os.replace(path, into / path.name)
    write_left_out(into / LEFT_OUT, left_out)
    file = into / "feed.json"
    noted = read_json(file, lambda plain: {n: plain[n] for n in plain.keys() - {SHARE}})
    if noted is None:
        raise ServerError(f"the snapshot lacks {file}")
    if share != WHOLE:
        noted[SHARE] = share
    file.write_text(json.dumps(noted, indent=1, sort_keys=True))
