"""headrace server: declare pipelines and run them.

import headrace_server as hs

with hs.run(hs.from_examples([{"x": 1.0}] * 64).batch(8)) as server:
    print(server.address)

A name is imported at its first use: code that needs no numpy does not wait for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace_proto import __version__ as __version__

if TYPE_CHECKING:
    from headrace_proto.schema import Field as Field

    from .making.assemble import Assembly as Assembly
    from .making.shape import Shape as Shape
    from .pipeline.builder import Pipeline as Pipeline
    from .pipeline.declaration import Declaration as Declaration
    from .pipeline.declaration import Feature as Feature
    from .pipeline.mix import mix as mix
    from .pipeline.segment_options import zeros as zeros
    from .pipeline.sources import fixed as fixed
    from .pipeline.sources import from_examples as from_examples
    from .pipeline.sources import from_function as from_function
    from .pipeline.sources import from_indexed as from_indexed
    from .pipeline.sources import live as live
    from .pipeline.sources import read as read
    from .pipeline.sources import read_arrow as read_arrow
    from .pipeline.sources import read_csv as read_csv
    from .pipeline.sources import read_jsonl as read_jsonl
    from .pipeline.sources import read_npz as read_npz
    from .pipeline.sources import read_parquet as read_parquet
    from .pipeline.sources import read_tar as read_tar
    from .pipeline.sources import read_tfrecord as read_tfrecord
    from .pipeline.sources import read_tokens as read_tokens
    from .pipeline.sources import scalar as scalar
    from .pipeline.sources import sequence as sequence
    from .reading.chunk import Chunk as Chunk
    from .reading.columns import Ragged as Ragged
    from .reading.source import IndexedSource as IndexedSource
    from .reading.source import Opening as Opening
    from .reading.source import StreamSource as StreamSource
    from .reading.stage import Stage as Stage
    from .server.on_ray import RayServers as RayServers
    from .server.on_ray import on_ray as on_ray
    from .server.server import Server as Server
    from .server.server import run as run
    from .shaping.plan import Draft as Draft
    from .shaping.plan import Part as Part
    from .shaping.plan import RowShaper as RowShaper

#: The public names, by the modules that have them.
_NAMES = {
    "server.on_ray": "RayServers on_ray",
    "making.assemble": "Assembly",
    "making.shape": "Shape",
    "pipeline.builder": "Pipeline",
    "pipeline.declaration": "Declaration Feature",
    "pipeline.mix": "mix",
    "pipeline.segment_options": "zeros",
    "pipeline.sources": "fixed from_examples from_function from_indexed live read read_arrow "
    "read_csv read_jsonl read_npz read_parquet read_tar read_tfrecord read_tokens scalar sequence",
    "reading.chunk": "Chunk",
    "reading.columns": "Ragged",
    "reading.source": "IndexedSource Opening StreamSource",
    "reading.stage": "Stage",
    "server.server": "Server run",
    "shaping.plan": "Draft Part RowShaper",
}
_MODULES = {
    name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()
}
_MODULES["Field"] = "headrace_proto.schema"

__all__ = sorted([*_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_MODULES[name])
    found = globals()[name] = getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
