"""The servers of ``hs.on_ray``, found by the name of a feed from any process of the Ray cluster.

    connect("ray://speech") ─► the actor whose name lists "speech" ─► addresses of all servers, keys
    a session without its server, once a second ─► the same actor  ─► the address it has moved to

That actor is their directory.  No other module of the client imports Ray.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import zmq

from headrace_proto.address import RAY, RAY_NAMESPACE
from headrace_proto.clock import Deadline
from headrace_proto.credentials import Keys
from headrace_proto.errors import ConnectionLost
from headrace_proto.keys import parse_public, parse_secret

try:
    import ray
    from ray.experimental import internal_kv
except ImportError as error:
    raise ImportError("an address ray://FEED needs Ray: pip install ray") from error

#: Maximum time of one question to the directory, which answers from memory.
_ANSWER_S = 2.0
#: Time between two questions for servers that are not all there.
_LOOK_S = 0.2


class RayDirectory:
    """The directory of the servers of one feed."""

    def __init__(self, feed: str) -> None:
        self.feed = feed
        self._actor: Any = None
        self._known: dict[int, str] = {}  # by share: the address that the trainer uses
        self._lacking = "no hs.on_ray serves it"
        if not ray.is_initialized():
            try:
                ray.init(address="auto", log_to_driver=False)
            except ConnectionError as error:
                raise ConnectionLost(
                    f"{RAY}{feed} is a feed of a Ray cluster, and this process is in none: {error}"
                ) from None

    def find(self, timeout_s: float) -> str:
        """Wait until all servers are there; return their addresses, with commas between them."""

        def found(at_most_s: float) -> bool:
            self._known = self._asked()
            if not self._known:
                time.sleep(min(_LOOK_S, at_most_s))
            return bool(self._known)

        if not Deadline(timeout_s, gap_s=2 * _ANSWER_S).wait(found):
            raise ConnectionLost(
                f"waited timeout={timeout_s:g} s for the servers of feed {self.feed!r} on this Ray "
                f"cluster: {self._lacking}"
            )
        return ",".join(self._known[share] for share in sorted(self._known))

    def moved(self) -> dict[str, str]:
        """Return the new addresses of servers that have moved, by the ones they had."""
        with contextlib.suppress(ConnectionLost):
            now = self._asked()
            before, self._known = self._known, now or self._known
            return {before[one]: now[one] for one in now if before.get(one) != now[one]}
        return {}

    def keys(self) -> Keys | None:
        """Return the keys of trainers on this cluster; None where the servers have none."""
        try:
            texts = ray.get(self._actor.trainer_keys.remote(), timeout=_ANSWER_S)
        except ray.exceptions.RayError as error:
            raise ConnectionLost(
                f"the directory of feed {self.feed!r} on this Ray cluster does not answer: {error}"
            ) from None
        if not texts:
            return None
        source = f"{RAY}{self.feed}"
        secret = parse_secret(texts["secret"], source)
        public = zmq.curve_public(secret.text.encode()).decode()
        return Keys(source, "ray", public, parse_public(texts["server"], source), secret)

    def _asked(self) -> dict[int, str]:
        """Return the addresses of all servers by share; empty while one of them is missing."""
        try:
            self._actor = self._actor or _actor_of(self.feed)
            if self._actor is None:
                return {}
            addresses, self._lacking = ray.get(self._actor.addresses.remote(), timeout=_ANSWER_S)
            return dict(addresses)
        except (ray.exceptions.RayError, ValueError) as error:  # it restarts, or is closed
            self._actor, self._lacking = None, f"their directory does not answer: {error}"
            return {}


def run_of_attempt() -> int:
    """Return when the first worker of this attempt of Ray Train came here; 0 outside of one."""
    group = ray.get_runtime_context().get_placement_group_id()
    if group is None:
        return 0
    key = f"headrace/run/{group}".encode()
    now = str(time.time_ns() // 1_000_000).encode()
    internal_kv._internal_kv_put(key, now, overwrite=False)
    return int(internal_kv._internal_kv_get(key))


def _actor_of(feed: str) -> Any:
    """Return the actor whose name lists the feed; None where there is none."""
    for named in ray.util.list_named_actors(all_namespaces=True):
        if named["namespace"] == RAY_NAMESPACE and feed in named["name"].split(","):
            return ray.get_actor(named["name"], namespace=RAY_NAMESPACE)
    return None
