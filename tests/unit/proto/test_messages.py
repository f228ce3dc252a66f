"""Every message survives the wire, and the document for other clients is correct."""

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_proto import checks, errors, limits
from headrace_proto.errors import ProtocolError
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
    Answered,
    Flush,
    Get,
    Given,
    Handed,
    Hello,
    Save,
    Welcome,
)

from .generated import KINDS, NAMES, of_kind, steady

DOCUMENT = Path(__file__).parents[3] / "docs" / "protocol.md"
WORDS = {
    get_args(alias)[1]: word
    for alias, word in (
        (checks.Count, "count"),
        (checks.Signed, "signed"),
        (checks.Rank, "rank"),
        (checks.World, "world"),
        (checks.RowCount, "rows"),
        (checks.Columns, "columns"),
        (checks.Counts, "counts"),
        (checks.Flag, "flag"),
        (checks.Text, "text"),
        (checks.Blob, "blob"),
        (checks.Seconds, "seconds"),
        (checks.Map, "map"),
        (checks.Plain, "plain"),
    )
}


@pytest.mark.parametrize(("registry", "kind"), KINDS, ids=NAMES)
@steady
@given(data=st.data())
def test_a_message_comes_out_as_it_went_in(registry, kind, data):
    message = data.draw(of_kind(kind))
    header = registry.encode(message)
    assert registry.decode(header) == message
    assert registry.decode(memoryview(header)) == message  # as a frame of ZeroMQ gives it


def test_the_wire_form_of_flushes_stays_as_it_is():
    flush = Flush(3, 1, 300, (0, 5), [[0, 64, [2, 8]]], True)
    assert FROM_TRAINER.encode(flush).hex() == "97080301cd012c920005" + "9193004092" + "0208" + "c3"
    answered = Answered(3, 1, None, "state", "no")
    assert FROM_SERVER.encode(answered).hex() == "96090301c0a57374617465a26e6f"


def test_an_error_names_message_record_and_field():
    wire = FROM_TRAINER.encode(Hello(7, "t", "f", b"", batches=(Handed(1, 0, 0, "x", 0, 1),)))
    with pytest.raises(ProtocolError, match=r"Hello\.batches: Handed\.epoch: 'x' is not a count"):
        FROM_TRAINER.decode(wire)
    welcome = Welcome(7, "f", [], 1.0, 64, properties=[1])  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match=r"Welcome\.properties: \[1\] is not a map"):
        FROM_SERVER.decode(FROM_SERVER.encode(welcome))


# docs/protocol.md


def described(kind: type) -> str:
    """Return the fields of a message as the document writes them."""
    parts = []
    hints = get_type_hints(kind, include_extras=True)
    for name, optional in fields_of(kind).items():
        hint = hints[name]
        type_, check = (get_args(hint) if get_origin(hint) is Annotated else (hint, None))[:2]
        word = WORDS.get(check) or f"list of {get_args(type_)[0].__name__}"
        word = word.replace("list of str", "list of text").replace("of float", "of number")
        parts.append(f"`{name}` {word}{' ?' if optional else ''}")
    return ", ".join(parts)


def fields_of(kind: Any) -> dict[str, bool]:
    """Return the fields of a record, or of a named tuple, and whether each may be missing."""
    if issubclass(kind, tuple):
        return {name: name in kind._field_defaults for name in kind._fields}
    none = dataclasses.MISSING
    return {
        field.name: (field.default, field.default_factory) != (none, none)
        for field in dataclasses.fields(kind)
    }


def rows(registry) -> list[str]:
    return [
        f"| {number} | `{kind.__name__}` | {described(kind)} |"
        for kind, number in sorted(registry.kinds.items(), key=lambda one: one[1])
    ]


@pytest.mark.parametrize("registry", [FROM_TRAINER, FROM_SERVER], ids=lambda r: r.name)
def test_the_document_lists_every_message_with_its_number_and_fields(registry):
    heading = f"## Messages of the {registry.name}"
    section = DOCUMENT.read_text().split(heading + "\n")[1].split("\n## ")[0]
    found = [line for line in section.splitlines() if re.match(r"\| \d", line)]
    assert found == rows(registry)


@pytest.mark.parametrize("record", [Get, Given, Handed, Save])
def test_the_document_lists_the_fields_of_a_record(record):
    text = " ".join(DOCUMENT.read_text().split())
    assert f"A `{record.__name__}` is the list {described(record)}." in text


def test_the_document_gives_every_limit_as_it_is():
    text = DOCUMENT.read_text()
    names = [name for name in vars(limits) if name.startswith("MAX_")]
    stated = dict(re.findall(r"^\| `(MAX_\w+)` \| ([\d,]+) \|", text, re.MULTILINE))
    assert {name: int(value.replace(",", "")) for name, value in stated.items()} == {
        name: getattr(limits, name) for name in names
    }
    assert f"This is version {limits.PROTOCOL}." in " ".join(text.split())


def test_the_document_lists_every_code_of_an_error():
    text = DOCUMENT.read_text()
    stated = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", text, re.MULTILINE))
    known = {
        errors.code_of(getattr(errors, name)("")): name
        for name in vars(errors)
        if name[0].isupper() and name not in ("FeedClosed", "ForkedProcess", "HeadraceError")
    }
    assert stated == known
