"""headrace server: declare pipelines and run them.

import headrace_server as hs

with hs.run(hs.from_examples([{"x": 1.0}] * 64).batch(8)) as server:
    print(server.address)

A name is imported at its first use: code that needs no numpy does not wait for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace_proto import __version__

if TYPE_CHECKING:
    from .cluster.on_ray import RayServers, on_ray
    from .pipeline.builder import Pipeline
    from .pipeline.by_source import by_source
    from .pipeline.carried import final_state, from_pool
    from .pipeline.declaration import Declaration, Feature
    from .pipeline.initial import zeros
    from .pipeline.sources import (
        fixed,
        from_examples,
        from_function,
        read_arrow,
        read_csv,
        read_jsonl,
        read_npz,
        read_parquet,
        read_tar,
        read_tfrecord,
        read_tokens,
        scalar,
        sequence,
    )
    from .pipeline.state_saver import SequenceQueueingStateSaver
    from .replay_server import replay
    from .server import Server, run

__all__ = [
    "Declaration",
    "Feature",
    "Pipeline",
    "RayServers",
    "SequenceQueueingStateSaver",
    "Server",
    "__version__",
    "by_source",
    "final_state",
    "fixed",
    "from_examples",
    "from_function",
    "from_pool",
    "on_ray",
    "read_arrow",
    "read_csv",
    "read_jsonl",
    "read_npz",
    "read_parquet",
    "read_tar",
    "read_tfrecord",
    "read_tokens",
    "replay",
    "run",
    "scalar",
    "sequence",
    "zeros",
]


#: Where a name is found; all others in ``pipeline.sources``.
_ELSEWHERE = {
    "Declaration": "pipeline.declaration",
    "Feature": "pipeline.declaration",
    "Pipeline": "pipeline.builder",
    "RayServers": "cluster.on_ray",
    "SequenceQueueingStateSaver": "pipeline.state_saver",
    "Server": "server",
    "by_source": "pipeline.by_source",
    "final_state": "pipeline.carried",
    "from_pool": "pipeline.carried",
    "on_ray": "cluster.on_ray",
    "replay": "replay_server",
    "run": "server",
    "zeros": "pipeline.initial",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _ELSEWHERE.get(name, "pipeline.sources")
    found = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
