"""``headrace log``: logs of live data at running servers.

list, inspect, trim    ask the server, with the keys of a trainer
append, close          are what a producer does, with its keys: python -m headrace.append
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections import defaultdict

from headrace_proto.errors import UnknownFeed, near, one_line

from ..process.option import Option
from ..watch.statuses import LogStatus, StatusPart, added
from .asking import RESTART_S
from .frame import with_options
from .options import JSON
from .progress import count, counted, size, table
from .remote import KEYS, SERVERS, askers

#: Sequences that are shown; --json has more.
_MOST = 20
_DO = ("list", "inspect", "append", "trim", "close")


@with_options(
    Option("action", "text", choices=_DO, positional=True),
    Option("log", "text", metavar="NAME", default="", positional=True),
    Option("file", "path", metavar="FILE.jsonl", default="", positional=True),
    SERVERS,
    KEYS,
    Option("idle", "seconds", absent="must be given"),
    Option("wait", "seconds", default=RESTART_S, least=1),
    JSON,
)
def log(options: Namespace) -> int | None:
    """List the logs that the feeds of a server read, or inspect one: its partitions, and the open
    sequences that have had no news for longest.  Append the whole examples of a file of JSON lines
    to a log, each an object with the value of each column by name; sequences are lists of steps.
    Trim a log: end its sequences that have rested.  Close a log: no more will come, its open
    sequences end, and feeds end once all is trained.  Give keys of a producer for append and close.

    action: the subcommand
    log: the log
    file: the file to append, - for standard input
    idle: of trim: seconds without news after which a sequence ends
    wait: of append and close: how long each wait for the server and its feeds may take
    """
    needs = {"NAME": options.action != "list", "FILE.jsonl": options.action == "append"}
    given = {"NAME": options.log, "FILE.jsonl": options.file}
    for word, needed in needs.items():
        if bool(given[word]) != needed:
            fault = "is needed" if needed else f"{given[word]!r:.80} is one word too many"
            raise ValueError(f"log {options.action}: {word} {fault}")
    if (options.idle is None) == (options.action == "trim"):
        raise ValueError("--idle SECONDS goes with headrace log trim, which needs it")
    if options.action in ("append", "close"):
        names = ("log", "file", "address", "keys", "wait")
        words = json.dumps({name: getattr(options, name) for name in names})
        return subprocess.run([sys.executable, "-m", "headrace.append", words]).returncode
    servers = askers(options)
    logs: list[LogStatus] = [log for asker in servers for log in asker.ask("logs")]
    known = sorted({log["log"] for log in logs})
    if options.action != "list":
        if options.log not in known:
            listed = ", ".join(map(repr, known)) or "none"
            fault = f"there is no log {options.log!r:.120}; {options.address} has {listed}"
            raise UnknownFeed(fault + near(options.log, known))
        logs = [log for log in logs if log["log"] == options.log]
    if options.action == "trim":
        ended = 0
        for asker in servers:
            while some := int(asker.ask("trim", log=options.log, idle_s=options.idle)):
                ended += some
        print(f"{counted(ended, 'sequence')} ended that had no news for {options.idle:g} s")
    elif options.json:
        print(json.dumps(logs))
    else:
        logs.sort(key=lambda log: max((of[-1] for of in log["resting"]), default=0), reverse=True)
        print("\n".join(_lines(logs, options.action == "list")))
    return None


def _lines(logs: list[LogStatus], brief: bool) -> list[str]:
    """Return the table of logs (``brief``), or of the partitions of one, and what rests there."""
    parts: defaultdict[tuple[str, str], list[StatusPart]] = defaultdict(list)
    resting = list[list[str]]()
    for log in logs:
        place = log["log"] if brief else str(log["partition"])
        for feed, status in log["feeds"].items():
            parts[place, feed].append({**status, "closed": log["closed"]})
        for key, name, steps, silent_s in log["resting"]:
            resting.append([place, one_line(key), name, count(steps), f"{count(silent_s)} s"])
    rows = []
    for (place, feed), those in sorted(parts.items()):
        sums = added(those)
        counts = [count(sums[name]) for name in ("open", "ended", "aborted", "lost", "producers")]
        sizes = [size(sums[name]) for name in ("backlog_bytes", "bytes")]
        closed = "closed" if sums["closed"] == len(those) else ""
        rows.append([place, feed, *counts, *sizes, closed])
    place = "<log" if brief else "partition"
    found = table(
        [place, "<feed", "open", "ended", "aborted", "lost", "producers", "backlog", "bytes", "<"],
        rows,
    )
    if resting and not brief:
        heads = [place, "<open sequence", "<producer", "steps", "no news for"]
        found += ["", *table(heads, resting[:_MOST])]
    return found
