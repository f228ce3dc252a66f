"""``headrace convert``: any source into Arrow files, which a feed maps and does not parse."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from ..files.extras import require
from ..files.manifest import resolve
from ..pipeline.builder import Pipeline
from ..pipeline.declaration import convertible
from ..process.option import Option
from .frame import with_options
from .options import JSON
from .pipelines import PIPELINE, load_one
from .progress import Progress, count, reporting_cache, size


@with_options(
    PIPELINE,
    Option("directory", "path", metavar="OUT_DIR", positional=True),
    Option("rows_per_file", "integer", default=100_000, least=1),
    JSON,
)
def convert(options: Namespace) -> None:
    """Write the examples of a source as Arrow IPC files, in the order of the source, after
    the stages that make the same of an example in every epoch: map, flat_map, unbatch,
    filter and select, up to the first that draws by chance.  Order, samplers and shape stay
    with the pipeline.

    directory: where the files go; existing files are never overwritten
    rows_per_file: examples of each file
    """
    require("pyarrow", "server", "headrace convert")
    from ..reading.conversion import Conversion

    _, pipeline = load_one(options.pipeline)
    declaration = _whole(pipeline).declaration()
    files = resolve(declaration.source.paths)
    applied, left = convertible(declaration.stages)
    conversion = Conversion(
        declaration,
        applied,
        files,
        Path(options.directory),
        options.rows_per_file,
        reporting_cache(files),
    )
    progress = Progress("converting", conversion.length, "examples")
    for read in conversion.steps():
        progress.to(read)
    result: dict[str, Any] = {
        "directory": options.directory,
        "pattern": str(Path(options.directory) / "part-*.arrow"),
        "rows": sum(part.rows for part in conversion.parts),
        "files": len(conversion.parts),
        "bytes": sum(part.nbytes for part in conversion.parts),
        "dropped": conversion.dropped,
        "columns": {name: str(field) for name, field in conversion.fields.items()},
        "applied": [stage.kind for stage in applied],
        "left": [stage.kind for stage in left],
    }
    print(json.dumps(result) if options.json else _text(result))


def _whole(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with a shape: a declaration needs one, a conversion does not."""
    try:
        pipeline.declaration()
    except ValueError:
        return pipeline.batch(1)
    return pipeline


def _text(result: dict[str, Any]) -> str:
    files = f"{result['files']} file{'s' * (result['files'] > 1)}"
    amount = f"{count(result['rows'])} rows, {size(result['bytes'])} in {files}"
    lines = [f"{amount}: {result['pattern']}"]
    lines += [f"{count(n)} examples left out: {reason}" for reason, n in result["dropped"].items()]
    if result["applied"]:
        lines.append(f"these stages are in the files: {', '.join(result['applied'])}")
    if result["left"]:
        lines.append(f"these stages stay with the pipeline: {', '.join(result['left'])}")
    lines.append(f"read them with hs.read_arrow({result['pattern']!r})")
    return "\n".join(lines)
