"""A Ray cluster in one process: actors are objects; a lost one is made again on another node."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Call:
    """A method of an actor; ``remote`` calls it at once, and returns its result or error."""

    def __init__(self, of: Callable[[], Any], name: str) -> None:
        self._of, self._name = of, name

    def remote(self, *values: Any) -> Any:
        try:
            return getattr(self._of(), self._name)(*values)
        except Exception as error:
            return error


class Handle:
    """An actor: its object, and how that is made again."""

    def __init__(self, cluster: RayStandIn, kind: type, values: tuple[Any, ...]) -> None:
        self.cluster, self._kind, self._values = cluster, kind, values
        self.start(again=False)

    def start(self, again: bool = True) -> None:
        self.node = self.cluster.node = f"node{next(self.cluster.nodes)}"
        self.cluster.reconstructed = again
        self.object = self._kind(*self._values)

    def __getattr__(self, name: str) -> Call:
        if name == "__ray_call__":
            return Call(lambda: self, "on_its_node")
        return Call(lambda: self.object, name)

    def on_its_node(self, function: Callable[[Any], Any]) -> Any:
        before, self.cluster.node = self.cluster.node, self.node
        try:
            return function(self.object)
        finally:
            self.cluster.node = before


class RayStandIn:
    """The parts of Ray that headrace uses."""

    def __init__(self) -> None:
        self.nodes = itertools.count()
        self.node = ""  # on which the next actor is made
        self.named: dict[tuple[str, str], Handle] = {}
        self.servers: list[Handle] = []
        self.reconstructed = False
        self.affinities: list[str] = []  # nodes that actors were to be made on

    def remote(self, kind: type) -> Any:
        cluster = self

        class Remote:
            def options(self, **options: Any) -> Any:
                self.given = options
                return self

            def remote(self, *values: Any) -> Handle:
                handle = Handle(cluster, kind, values)
                if "name" in self.given:
                    cluster.named[self.given["namespace"], self.given["name"]] = handle
                else:
                    cluster.servers.append(handle)
                return handle

        return Remote()

    @staticmethod
    def get(found: Any, timeout: float = 0) -> Any:
        for one in found if isinstance(found, list) else [found]:
            if isinstance(one, Exception):
                raise one
        return found

    def kill(self, handle: Handle) -> None:
        self.named = {name: one for name, one in self.named.items() if one is not handle}

    def get_actor(self, name: str, namespace: str = "") -> Handle:
        if (namespace, name) not in self.named:
            raise ValueError(f"no actor {name}")
        return self.named[namespace, name]

    def context(self) -> Any:
        return types.SimpleNamespace(
            get_node_id=lambda node=self.node: node,
            get_placement_group_id=lambda: None,
            was_current_actor_reconstructed=self.reconstructed,
        )

    def module(self) -> types.ModuleType:
        ray: Any = types.ModuleType("ray")
        ray.exceptions = types.SimpleNamespace(
            RayError=_RayError, RayActorError=_RayError, GetTimeoutError=_GetTimeoutError
        )
        ray.remote, ray.get, ray.kill, ray.get_actor = (
            *(self.remote, self.get, self.kill, self.get_actor),
        )
        ray.is_initialized = lambda: True
        ray.wait = lambda found, **_: (found, [])
        ray.nodes = lambda: [{"NodeID": "head", "Resources": {"node:__internal_head__": 1.0}}]
        ray.get_runtime_context = self.context
        ray.util = types.ModuleType("ray.util")
        ray.util.get_node_ip_address = lambda: "127.0.0.1"
        ray.util.placement_group = lambda *_, **__: types.SimpleNamespace(wait=lambda _: True)
        ray.util.remove_placement_group = lambda _: None
        ray.util.list_named_actors = lambda all_namespaces: [
            {"namespace": namespace, "name": name} for namespace, name in self.named
        ]
        strategies: Any = types.ModuleType("ray.util.scheduling_strategies")
        strategies.PlacementGroupSchedulingStrategy = lambda *_, **__: None
        strategies.NodeAffinitySchedulingStrategy = lambda node, **_: self.affinities.append(node)
        ray.util.scheduling_strategies = strategies
        ray.experimental = types.ModuleType("ray.experimental")
        ray.experimental.internal_kv = types.ModuleType("ray.experimental.internal_kv")
        return ray


class _RayError(Exception):
    """An error of Ray's own."""


class _GetTimeoutError(_RayError):
    """No answer in time."""


#: Modules that keep their imports of Ray.
_OURS = ("headrace.ray", "headrace_server.server.share_server")


@contextmanager
def ray_stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayStandIn]:
    """Have ``import ray`` give a cluster that is in this process."""
    cluster = RayStandIn()
    module: Any = cluster.module()
    with monkeypatch.context() as patch:
        for name, value in (
            ("ray", module),
            ("ray.util", module.util),
            ("ray.util.scheduling_strategies", module.util.scheduling_strategies),
            ("ray.experimental", module.experimental),
        ):
            patch.setitem(sys.modules, name, value)
        for name in _OURS:
            patch.delitem(sys.modules, name, raising=False)
        yield cluster
    for name in _OURS:
        sys.modules.pop(name, None)
