"""One word for one thing, and sentences that name their actor, in the code of all packages."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("client/headrace", "server/headrace_server", "proto/headrace_proto")

#: Words that no name of a variable says: they hold something, and do not say what.
_EMPTY = frozenset({"told", "about", "about_it", "them", "stuff", "thing"})
#: Words of things that were renamed: attributes and arguments bear the new ones.
_OLD = frozenset({"told", "door", "house", "notebook", "ways"})
#: A function's docstring does not begin so: it says what the function does, or what it returns.
_NO_VERB = frozenset(
    {"The", "A", "An", "Whether", "Why", "How", "Where", "When", "One", "This", "It"}
)
#: A sentence that begins so has a clause for its actor.
_NO_ACTOR = re.compile(
    r"(?:\A|[.:;]\s+|\n\n)((?:What|Whatever|Whoever|Whom|Who|Of|That which)\s[^.?]*)"
    r"(?=\.(?:\s|\Z)|:\n)"
)
#: Pages that nobody writes by hand, or that are records of their time.
_NOT_READ = {"docs/commands.md", "docs/log.md", "docs/reference.md", "docs/transitions.md"}

#: Modules of one name in two rooms, where both are about the same thing.
SAME_MODULE = {
    # A command bears its name.
    "bench",
    # The two sides of one thing: the server decides it, and the trainer has it.
    "requests",
}
#: Classes of one name in two packages, likewise.
SAME_CLASS = {"Batch", "Session"}


@cache
def _trees() -> dict[str, tuple[ast.Module, str]]:
    """Every module by its path, parsed, with its text."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text()
            found[str(path.relative_to(ROOT))] = ast.parse(text), text
    return found


def _sentences() -> Iterator[tuple[str, int, str]]:
    """Every docstring, and every comment that stands on lines of its own: path, line, text."""
    for path, (tree, text) in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                docstring = ast.get_docstring(node)
                if docstring:
                    yield path, node.body[0].lineno, docstring
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            above = lines[number - 2].strip() if number > 1 else ""
            comment = line.strip()
            if comment.startswith("#") and not above.startswith("#"):
                yield path, number, comment.lstrip("#: ")


def _pages() -> Iterator[tuple[str, int, str]]:
    """Every page without its blocks of code, as _sentences."""
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        name = str(path.relative_to(ROOT))
        if name not in _NOT_READ:
            yield name, 1, re.sub(r"```.*?```|^    .*?$", "", path.read_text(), flags=re.S | re.M)


def test_no_sentence_has_a_clause_for_its_actor() -> None:
    found = [
        f"{path}:{line}: {match[1]!r}"
        for path, line, text in [*_sentences(), *_pages()]
        for match in _NO_ACTOR.finditer(text)
    ]
    assert not found, "\n".join(found)


def test_no_variable_has_a_name_that_does_not_say_what_it_holds() -> None:
    found = [
        f"{path}:{node.lineno}: {node.id}"
        for path, (tree, _) in _trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in _EMPTY
    ]
    assert not found, "\n".join(found)


def test_no_attribute_bears_the_old_word_of_a_renamed_thing() -> None:
    found = [
        f"{path}:{getattr(node, 'lineno', 0)}: {name}"
        for path, (tree, _) in _trees().items()
        for node in ast.walk(tree)
        for name in (getattr(node, "attr", None), getattr(node, "arg", None))
        if isinstance(node, (ast.Attribute, ast.arg)) and name and _OLD & {*name.split("_")}
    ]
    assert not found, "\n".join(found)


def test_the_docstring_of_a_function_begins_with_its_verb() -> None:
    found = [
        f"{path}:{node.lineno}: {node.name}"
        for path, (tree, _) in _trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and not any("property" in ast.unparse(one) for one in node.decorator_list)
        and (ast.get_docstring(node) or "").partition(" ")[0] in _NO_VERB
    ]
    assert not found, "\n".join(found)


def test_no_tuple_is_unpacked_into_a_call_to_please_the_formatter() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path, (tree, _) in _trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and any(isinstance(a, ast.Starred) and isinstance(a.value, ast.Tuple) for a in node.args)
    ]
    assert not found, "\n".join(found)


def _modules() -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for path in _trees():
        if Path(path).stem not in ("__init__", "__main__"):
            places[Path(path).stem].append(path)
    return places


def _classes() -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for path, (tree, _) in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    return places


def test_no_two_modules_bear_one_name() -> None:
    twice = {name: paths for name, paths in _modules().items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in SAME_MODULE} == {}
    assert twice.keys() >= SAME_MODULE, "the list of exceptions is longer than it must be"


def test_no_two_classes_bear_one_name() -> None:
    twice = {name: paths for name, paths in _classes().items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in SAME_CLASS} == {}
    assert twice.keys() >= SAME_CLASS, "the list of exceptions is longer than it must be"


@pytest.mark.parametrize("text", ["What is kept.", "Of all rows the last.", "Whoever asks waits."])
def test_the_rule_would_find_such_sentences(text: str) -> None:
    assert _NO_ACTOR.match(text)
