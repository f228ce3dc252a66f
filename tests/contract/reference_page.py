"""The generated parts of docs/reference.md, from signatures and docstrings.

    python -m tests.contract.reference_page      writes them anew

A part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; the rest is by hand.

    hs.read_csv      ─►  ### hs.read_csv      the signature: the docstring
    a class          ─►  the same, and a list of its members, each with its signature and docstring
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import headrace
import headrace_server as hs
from headrace_server.pipeline import sources

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"

#: Where a thing is, what readers call it, and, of a class: what they call one of its instances, and
#: which members are told of (none: all public ones of its own).
Entry = tuple[str, str, str, tuple[str, ...]]


def _steps() -> tuple[list[str], list[str]]:
    """The stages and the shapes: methods of a pipeline that give another one."""
    calls = {
        name: inspect.signature(member)
        for name, member in vars(hs.Pipeline).items()
        if name[0] != "_" and inspect.isfunction(member)
    }
    calls = {name: call for name, call in calls.items() if call.return_annotation == "Pipeline"}
    sized = {name: call.parameters.get("batch_size") for name, call in calls.items()}
    shapes = [name for name, size in sized.items() if size and size.default is not None]
    shapes.append("shape")
    return [name for name in calls if name not in shapes], shapes


_STAGES, _SHAPES = _steps()
_SOURCES = [
    name for name in vars(sources) if name in hs.__all__ and name[:5] in ("read", "read_", "from_")
]


def _functions(prefix: str, called: str, names: Iterable[str]) -> list[Entry]:
    return [(f"{prefix}{name}", f"{called}{name}", "", ()) for name in names]


def _methods(kind: str, *members: str) -> list[Entry]:
    return [(f"headrace_server:{kind}", f"hs.{kind}", kind.lower(), members)]


def _own(kind: type) -> tuple[str, ...]:
    """The public members that a class itself defines."""
    return tuple(name for name, member in vars(kind).items() if _is_told(name, member))


def _is_told(name: str, member: object) -> bool:
    return name[0] != "_" and (isinstance(member, property) or inspect.isroutine(member))


PARTS: dict[str, list[Entry]] = {
    "schema": _functions("headrace_server:", "hs.", ("scalar", "fixed", "sequence")),
    "sources": _functions("headrace_server:", "hs.", [*_SOURCES, "live", "mix"]),
    "stages": _functions("headrace_server:Pipeline.", ".", _STAGES),
    "own": [
        ("headrace_server:IndexedSource", "hs.IndexedSource", "source", ("streams", "take")),
        (
            *("headrace_server:StreamSource", "hs.StreamSource", "source"),
            ("read", "ready", "declared", "open", "close"),
        ),
        ("headrace_server:Opening", "hs.Opening", "", ()),
        ("headrace_server:Stage", "hs.Stage", "stage", ()),
        ("headrace_server:Shape", "hs.Shape", "shape", ()),
        ("headrace_server:RowShaper", "hs.RowShaper", "shaper", ()),
        ("headrace_server:Draft", "hs.Draft", "", ()),
        ("headrace_server:Part", "hs.Part", "", ()),
        ("headrace_server:Assembly", "hs.Assembly", "", ("fill",)),
        *_methods("Chunk", "of", "take", "with_columns", "with_fact"),
        *_methods("Ragged", "from_values", "row"),
        ("headrace_server:Field", "hs.Field", "", ()),
    ],
    "shapes": [
        *_functions("headrace_server:Pipeline.", ".", _SHAPES),
        *_functions("headrace_server:", "hs.", ("zeros",)),
    ],
    "declarations": [
        ("headrace_server:Pipeline", "hs.Pipeline", "pipeline", ("fields", "declaration")),
        ("headrace_server:Declaration", "hs.Declaration", "", ()),
        ("headrace_server:Feature", "hs.Feature", "feature", ("field",)),
    ],
    "servers": [
        *_functions("headrace_server:", "hs.", ("run",)),
        ("headrace_server:Server", "hs.Server", "server", ()),
        *_functions("headrace_server:", "hs.", ("on_ray",)),
        ("headrace_server:RayServers", "hs.RayServers", "servers", ()),
    ],
    "connect": _functions("headrace:", "headrace.", ("connect",)),
    "feed": [
        ("headrace:Feed", "headrace.Feed", "feed", ()),
        ("headrace:Field", "headrace.Field", "field", ("ragged_dims", "admits")),
    ],
    "batch": [("headrace:Batch", "headrace.Batch", "batch", ())],
    "segments": [
        ("headrace:SegmentBatch", "headrace.SegmentBatch", "batch", _own(headrace.SegmentBatch)),
    ],
    "produce": [
        *_functions("headrace:", "headrace.", ("produce",)),
        ("headrace:Producer", "headrace.Producer", "out", ()),
        ("headrace:OpenSequence", "headrace.OpenSequence", "sequence", ()),
    ],
    "keras": _functions(
        "headrace.keras:",
        "headrace.keras.",
        ("batches", "StatefulModel", "CommitTrained", "LogFeed"),
    ),
    "torch": [
        ("headrace.torch:FeedDataset", "headrace.torch.FeedDataset", "dataset", ()),
        *_functions("headrace.torch:", "headrace.torch.", ("broadcast",)),
    ],
    "jax": _functions("headrace.jax:", "headrace.jax.", ("global_arrays", "local_rows")),
    "lightning": _functions("headrace.lightning:", "headrace.lightning.", ("FeedDataModule",)),
    "transformers": _functions(
        "headrace.transformers:", "headrace.transformers.", ("FeedTrainer",)
    ),
}
#: Parts whose modules need a package that may be missing.
NEED = {
    "keras": "tensorflow",
    "torch": "torch",
    "jax": "jax",
    "lightning": "lightning",
    "transformers": "transformers",
}
_ERRORS = "errors"
NAMES = (*PARTS, _ERRORS)

_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH = 100
_OPTIONS = (
    "[`headrace serve`](commands.md#headrace-serve) lists the options, with defaults and bounds."
)


def generated(name: str) -> str:
    """The lines of a part."""
    if name == _ERRORS:
        return _errors()
    return "\n".join(["", *(line for entry in PARTS[name] for line in _entry(*entry)), ""])


def rewritten(page: str, names: tuple[str, ...] = NAMES) -> str:
    """The page with these of its generated parts as they should be."""

    def part(match: re.Match[str]) -> str:
        return f"{match[1]}{generated(match[2])}{match[3]}" if match[2] in names else match[0]

    return _PART.sub(part, page)


def _entry(where: str, name: str, short: str, members: tuple[str, ...]) -> Iterator[str]:
    module, _, path = where.partition(":")
    thing: Any = import_module(module)
    for step in path.split("."):
        thing = getattr(thing, step)
    paragraphs = _told(thing)
    call = "" if inspect.isclass(thing) else _call(name, thing)
    yield f"### `{name}`"
    if len(call) > _WIDTH or not call:
        yield from (*(["```text", _block(name, thing), "```", ""] if call else []), paragraphs[0])
    else:
        yield f"`{call}`: {paragraphs[0]}"
    for paragraph in paragraphs[1:]:
        yield from ("", paragraph)
    yield ""
    if not short:
        return
    others = _names(thing)
    for member in members or tuple(others):
        what = getattr(thing, member)
        written = f"{short}.{member}"
        called = _call(written, what, thing.__name__) if callable(what) else written
        also = " and ".join(f"`{short}.{other}`" for other in others[member])
        told = " ".join([*_told(what), *([f"The same as {also}."] if also else [])])
        yield f"* `{called}`: {told}"
    yield ""


def _names(kind: type) -> dict[str, list[str]]:
    """The members that a class and its bases here define, with the other names of the same."""
    first: dict[int, str] = {}
    names: dict[str, list[str]] = {}
    package = kind.__module__.partition(".")[0]
    bases = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == package]
    for name, member in chain.from_iterable(vars(base).items() for base in bases):
        if not _is_told(name, member):
            continue
        if id(member) in first:
            names[first[id(member)]].append(name)
        else:
            first[id(member)] = name
            names[name] = []
    return names


def _written(function: Callable[..., Any], of: str) -> tuple[list[str], str]:
    """The arguments of a function as its signature has them, and what it returns.

    ``of``: the class that ``Self`` stands for.
    """
    signature = inspect.signature(function)
    arguments = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    written: list[str] = []
    for argument in arguments:
        named = argument.kind is argument.KEYWORD_ONLY
        if named and not any(text.startswith("*") for text in written):
            written.append("*")
        written.append(_argument(argument))
    gives = re.sub(r"\bSelf\b", of, _type(signature.return_annotation))
    return written, f" -> {gives}" if gives not in ("", "None") else ""


def _call(name: str, function: Callable[..., Any], of: str = "Pipeline") -> str:
    """The signature on one line."""
    written, end = _written(function, of)
    return f"{name}({', '.join(written)}){end}"


def _block(name: str, function: Callable[..., Any]) -> str:
    """The signature on several lines."""
    written, end = _written(function, "Pipeline")
    lines = [f"{name}("]
    for i, text in enumerate(written):
        part = text + (", " if i < len(written) - 1 else "")
        if len(lines[-1] + part) > _WIDTH:
            lines.append("    ")
        lines[-1] += part
    return "\n".join(map(str.rstrip, lines)) + f"){end}"


def _argument(argument: inspect.Parameter) -> str:
    stars = {argument.VAR_POSITIONAL: "*", argument.VAR_KEYWORD: "**"}.get(argument.kind, "")
    kind = _type(argument.annotation)
    typed = f"{stars}{argument.name}" + (f": {kind}" if kind else "")
    default = argument.default
    named = argument.kind is argument.KEYWORD_ONLY
    if default is argument.empty or (default is ... and not named):
        return typed
    value = "..." if default is ... else repr(default).replace("'", '"')
    return f"{typed} = {value}" if kind else f"{typed}={value}"


def _type(annotation: Any) -> str:
    """An annotation as readers know it: empty where it says nothing."""
    text = "" if annotation is inspect.Parameter.empty else str(annotation)
    text = text.replace("'", '"')
    text = re.sub(r"Literal\[(.+?)\]", lambda m: m[1].replace(", ", " | "), text)
    text = re.sub(r"str \| os\.PathLike\[str\]", "Path", text)
    return "" if text == "Any" else text


def _told(thing: Any) -> list[str]:
    """A docstring as paragraphs of Markdown, the first two as one."""
    text = inspect.getdoc(thing)
    assert text, f"{thing} has no docstring"
    text = re.sub(
        r"The options, with their defaults and bounds:.*", _OPTIONS, text, flags=re.DOTALL
    )
    text = text.replace("``", "`")
    paragraphs = [" ".join(lines.split()) for lines in re.split(r"\n\n+", text)]
    return [" ".join(paragraphs[:2]), *paragraphs[2:]]


def _errors() -> str:
    errors = import_module("headrace_proto.errors")
    kinds = [
        kind for name, kind in vars(errors).items() if inspect.isclass(kind) and name[0] != "_"
    ]
    lines = ["", "| error | is also a | |", "| --- | --- | --- |"]
    for kind in kinds:
        bases = [b for b in kind.__bases__ if b not in (Exception, errors.HeadraceError)]
        named = ", ".join(f"`{base.__name__}`" for base in bases)
        lines.append(f"| `headrace.{kind.__name__}` | {named} | {' '.join(_told(kind))} |")
    return "\n".join([*lines, "", ""]).replace("|  |", "| |")


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
