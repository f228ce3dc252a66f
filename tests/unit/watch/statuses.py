"""Statuses as a server tells them, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

__all__ = ["feed", "server", "trainer", "worker"]


def trainer(number: int = 1, **more: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"trainer": number, "host": f"there:{number}", "local": True, "name": ""}
    told |= {"id": f"id{number}", "awaited_s": 0.5, "wire_batches": 0, "wire_bytes": 0}
    told |= {"silent_s": 0.5, "rank": -1, "requests": 1, "leases": 2, "batches": 5, "rows": 20}
    told |= {"bytes": 640, "committed": 3, "stale": 0, "refused": {}, "blocked_s": 1.0}
    return {**told, "busy_s": 3.0, "rates": {}, **more}


def feed(**more: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"batches": 3, "rows": 12, "redelivered": 0, "stale": 0, "expired": 0}
    told["sent"] = {"batches": {"shm": 3, "wire": 1}, "bytes": {"shm": 300, "wire": 100}}
    told |= {"made": {"batches": 6, "rows": 24, "bytes": 768}, "refused": {}, "dropped": {}}
    told |= {"padding": {}, "classes": {}, "state": "open", "failure": None, "waiting": "nothing"}
    told |= {"standing": {"ready": 1, "leased": 2, "saving": 0}, "read": 30}
    told["partitions"] = [{"partition": 0, "worker": 0, "open": True, "done": False, "waits": ""}]
    told |= {"trainers": [trainer()], "trainers_more": 0, "rates": {}}
    told["pipeline"] = {"source": "npz", "stages": ["shuffle"], "shape": "batch", "partitions": 1}
    told["verdict"] = {"level": "good", "where": "trainers", "text": "Trainers are fed."}
    return {**told, **more}


def worker(number: int = 0, **more: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"worker": number, "pid": 77, "restarts": 0, "doing": "it was starting"}
    told |= {"slab_bytes": 4096, "slab_limit_bytes": 65536, "work_s": 6.0, "queued_s": 0.0}
    told["remote_bytes"] = {"store": 3000, "disk": 5000}
    return {**told, "shares": {}, "rests_s": {"trainers": 4.0, "states": 0.0, "slab": 0.0}, **more}


def server(at: float = 100.0, *, workers: Any = None, **feeds: Any) -> dict[str, Any]:
    return {
        "state": "serving",
        "why": "",
        "version": "0.1.0",
        "at": at,
        "uptime_s": 60.0,
        "addresses": ["tcp://127.0.0.1:5557"],
        "draining": False,
        "disk": None,
        "share": [0, 1],
        "access": {"keys": False, "known": [], "present": {}, "refused": {"garbage": 2}},
        "feeds": feeds,
        "workers": [worker()] if workers is None else workers,
        "events": [],
    }
