"""``hs.on_ray``: the servers of feeds as actors of a Ray cluster.

    hs.on_ray({"speech": …}, servers=4) ─► directory     an actor beside the head: addresses, keys
                                        ─► share 0 … 3   actors in a placement group, on four nodes
    headrace.connect("ray://speech")    ─► directory ─► all of them

Ray places the actors, notices the loss of a node and starts again what was there.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import zmq

from headrace_proto.address import RAY, RAY_NAMESPACE
from headrace_proto.errors import ServerError, rewording
from headrace_proto.keys import PUBLIC, SECRET, SERVER, public_text, secret_text
from headrace_proto.placement import MOST_SHARES

from ..files.extras import require
from ..net.keyring import TRAINERS
from ..pipeline.builder import Pipeline
from ..pipeline.function_names import packed
from ..process.option import Option
from ..process.settings import RunSettings, check_names
from ..watch.statuses import FeedStatus, joined_feed
from .arguments import declared, share_in

if TYPE_CHECKING:
    from .share_server import SharePlan

logger = logging.getLogger("headrace.server")

#: How long a close waits for the servers to end by themselves.
_CLOSE_S = 20.0
#: How long a server may take for an answer, and the same for those that have no node now.
_ANSWER_S = 10.0


class RayServers(contextlib.AbstractContextManager["RayServers"]):
    """The running servers of ``hs.on_ray``; a context manager, or closed by ``close``.

    They end, too, when the program that started them does.
    """

    def __init__(self, address: str, group: Any) -> None:
        self._address = address
        self._group = group
        self._directory: Any = None
        self._servers: list[Any] = []
        self._closed = False

    @property
    def address(self) -> str:
        """The address for ``headrace.connect``: ``ray://`` and the name of the first feed."""
        return self._address

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return counters of each feed, those of ``Server.stats()``, over all servers that answer.

        ``servers`` has the counters of each server, by share.
        """
        found: dict[str, dict[int, FeedStatus]] = {}
        for share, feeds in self._asked("stats").items():
            for feed, counters in feeds.items():
                found.setdefault(feed, {})[share] = counters
        return {feed: {**joined_feed([*of.values()]), "servers": of} for feed, of in found.items()}

    def drain(self, timeout_s: float) -> bool:
        """Hand out nothing more and wait for commits; return whether all came in time."""
        answers = self._asked("drain", timeout_s, timeout_s=timeout_s)
        return len(answers) == len(self._servers) and all(answers.values())

    def close(self) -> None:
        """Stop all servers, and remove their state where ``state_dir`` was not given."""
        if self._closed:
            return
        self._closed = True
        ray = require("ray", "ray", "hs.on_ray")
        if not ray.is_initialized():
            return
        with contextlib.suppress(ray.exceptions.RayError):
            if closing := [one.close.remote() for one in self._servers]:
                ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
        for actor in (*self._servers, self._directory):
            if actor is not None:
                ray.kill(actor)
        ray.util.remove_placement_group(self._group)

    def _asked(self, call: str, *values: object, timeout_s: float = 0.0) -> dict[int, Any]:
        """Return the answers of the servers that are there, by share."""
        ray = require("ray", "ray", "hs.on_ray")
        asked = {i: getattr(one, call).remote(*values) for i, one in enumerate(self._servers)}
        answers = {}
        for share, answer in asked.items():
            with contextlib.suppress(ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
                answers[share] = ray.get(answer, timeout=timeout_s + _ANSWER_S)
        return answers

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._servers)} servers"
        return f"<headrace_server.RayServers at {self._address}: {state}>"

    def __exit__(self, *_: object) -> None:
        self.close()


def on_ray(
    pipelines: Pipeline | Mapping[str, Pipeline],
    *,
    servers: int,
    workers: int = 1,
    partitions: int | None = None,
    resources: Mapping[str, float] | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    insecure: bool = False,
    **options: Any,
) -> RayServers:
    """Start servers that share feeds as actors of this Ray cluster.

    Trainers in any process of the cluster connect to ``ray://FEED``.  Each of the ``servers`` has
    ``workers`` and a share of the ``partitions``, ``servers * workers`` of them by default.  Ray
    places them on different nodes where it can.  Each reserves ``resources``, by default a CPU for
    each worker.

    Ray restarts a server whose node is lost on another node.  With a ``state_dir`` that all nodes
    share it goes on where it was.  Else its partitions go back to the last snapshot that all
    servers have put at ``snapshots``, or to the beginning, and trainers get ``FeedRewound``.

    ``runtime_env`` is Ray's, for the servers; without it they have that of this program.
    Trainers and servers have keys of their own unless ``insecure``.  ``state_dir`` must lie where
    all nodes see it.

    All further ``options`` are those of ``hs.run``.
    """
    _check(servers, insecure, options)
    settings = RunSettings(
        pipelines, workers=workers, partitions=partitions, share=(0, servers), **options
    )
    partitions = servers * workers if partitions is None else partitions
    share_in(settings.share, partitions)
    if settings.state_dir is None:  # on a node's own disk, which goes with the node
        options = {"durability": "process"} | options
    else:
        options["state_dir"] = os.path.abspath(settings.state_dir)
    if settings.state_dir is None and settings.snapshots is None:
        logger.warning(
            "hs.on_ray: without snapshots= or a state_dir= that all nodes share, a lost node costs "
            "the state of its partitions: they begin anew from the start"
        )
    declarations = declared(pipelines)
    ray = require("ray", "ray", "hs.on_ray")
    if not ray.is_initialized():
        ray.init(address="auto")
    from .share_server import SharePlan

    _check_free(declarations)
    plan = SharePlan(
        name=f"{next(iter(declarations))}-{secrets.token_hex(4)}",
        servers=servers,
        pipelines={name: packed(one) for name, one in declarations.items()},
        options={**options, "workers": workers, "partitions": partitions, "insecure": insecure},
        keys={} if insecure else _keys(),
    )
    given = resources or {"CPU": workers}
    needs = {name: float(amount) for name, amount in given.items()}
    return _started(plan, needs, runtime_env, settings.start_timeout_s)


def _check(servers: object, insecure: object, options: Mapping[str, object]) -> None:
    """Raise TypeError or ValueError for an argument that Ray does not check."""
    Option("", "integer", least=1, most=MOST_SHARES).check(servers, "servers")
    Option("", "flag").check(insecure, "insecure")
    for name in ("bind", "worker_ports", "keys", "share"):
        if name in options:
            raise TypeError(f"hs.on_ray() sets {name} of each server itself")
    with rewording(TypeError, "hs.on_ray(): ", TypeError):
        check_names(options, inspect.signature(RunSettings).parameters)
    if options.get("durability") == "off":
        raise ValueError("durability='off': a server on Ray keeps what is committed")


def _check_free(feeds: Iterable[str]) -> None:
    """ValueError where a feed of this name is served on this cluster."""
    import ray

    for named in ray.util.list_named_actors(all_namespaces=True):
        taken = {*feeds} & {*named["name"].split(",")}
        if named["namespace"] == RAY_NAMESPACE and taken:
            raise ValueError(f"another hs.on_ray serves feed {min(taken)!r} on this cluster")


def _keys() -> dict[str, str]:
    """Return new keys: the files of the server's directory, by path, and the trainers' secret."""
    server, server_secret = (key.decode() for key in zmq.curve_keypair())
    trainer, trainer_secret = (key.decode() for key in zmq.curve_keypair())
    return {
        SERVER + SECRET: secret_text(SERVER, server_secret),
        SERVER + PUBLIC: public_text(SERVER, server),
        f"{TRAINERS}/ray{PUBLIC}": public_text("ray", trainer),
        f"ray{SECRET}": secret_text("ray", trainer_secret),
    }


def _started(
    plan: SharePlan,
    needs: dict[str, float],
    runtime_env: Mapping[str, object] | None,
    timeout_s: float,
) -> RayServers:
    """Start the actors, and wait until every server has its sources open."""
    import ray
    from ray.util.scheduling_strategies import (
        NodeAffinitySchedulingStrategy,
        PlacementGroupSchedulingStrategy,
    )

    from .share_server import Directory, ShareServer

    group = ray.util.placement_group([needs] * plan.servers, strategy="SPREAD")
    if not group.wait(timeout_s):
        ray.util.remove_placement_group(group)
        raise ServerError(
            f"start_timeout_s={timeout_s:g}: this Ray cluster has no room for {plan.servers} "
            f"servers with resources={needs}; it has {ray.available_resources()}"
        )
    running = RayServers(f"{RAY}{next(iter(plan.pipelines))}", group)
    environment = {} if runtime_env is None else {"runtime_env": dict(runtime_env)}
    lasting: dict[str, object] = {"max_restarts": -1, **environment}
    of_servers = {
        "num_cpus": needs.pop("CPU", 0),
        "num_gpus": needs.pop("GPU", 0),
        "resources": needs,
        "max_concurrency": 4,  # a drain holds up no question for the counters
        **lasting,
    }
    try:
        running._directory = (
            ray.remote(Directory)
            .options(
                name=plan.directory,
                namespace=RAY_NAMESPACE,
                num_cpus=0,
                max_task_retries=-1,
                # with soft=True it was elsewhere
                scheduling_strategy=NodeAffinitySchedulingStrategy(_head(), soft=False),
                **lasting,
            )
            .remote(plan.servers, plan.keys)
        )
        server = ray.remote(ShareServer)
        for share in range(plan.servers):
            place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=share)
            placed = server.options(scheduling_strategy=place, **of_servers)
            running._servers.append(placed.remote(plan, share))
        ray.get([one.started.remote() for one in running._servers], timeout=timeout_s)
    except BaseException as error:
        running.close()
        if not isinstance(error, ray.exceptions.GetTimeoutError):
            raise
        raise ServerError(
            f"start_timeout_s={timeout_s:g}: not all {plan.servers} servers have opened their "
            "sources on this Ray cluster; their logs tell how far they are"
        ) from None
    return running


def _head() -> str:
    """Return the node of the head: the cluster ends with it."""
    import ray

    nodes = ray.nodes()
    return str(
        next((n for n in nodes if "node:__internal_head__" in n["Resources"]), nodes[0])["NodeID"]
    )
