"""Records of a log as bytes.

    group    first position, the one before it, records, bytes, start of a table; its records
    record   head · key · data

A group is one record of a file (see files/journal_file.py), so it is written, checked and lost as
one.  The columns of a record's steps lie one after the other, each packed: a log knows the bytes of
a step in each column, and gives out any range of steps without a copy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

#: A position beyond all records, and a step beyond all steps.
NEVER = 1 << 62
#: At the start of a group: its first position, the last one before it, its records, its bytes; with
#: the last piece of a table the file and the place of the group in which that begins, else 0.
GROUP = struct.Struct("<qqIIII")
#: Bytes of key and data, then a Record up to its key.
RECORD = struct.Struct("<HIBBIIIqqqqd")


class Kind:
    """The content of a record."""

    OPENED = 0  # a sequence begins; data: its context, then the columns of its first steps, if any
    STEPS = 1  # data: the columns of further steps, if any
    REFUSED = 2  # an item was not taken; key: why
    JOINED = 3  # a process of a producer greeted; key: the name, version: its birth
    FORGET = 4  # a producer has left
    CARRY = 5  # copies of steps from an older file; key: which
    TABLE = 6  # a piece of the table of all that lives; first: whether it is the first one
    CLOSED = 7  # no item will come any more


class Close:
    """How a sequence goes on after a record."""

    GOING = 0
    END = 1
    ABORT = 2
    LOST = 3  # retention has taken it from a feed that needed it: no record says so


class Record(NamedTuple):
    kind: int
    close: int = Close.GOING
    context: int = 0  # bytes of the data that are context
    first: int = 0  # the step at which the data begin
    steps: int = 0
    of: int = -1  # position of the record that opened the sequence
    producer: int = -1  # position of the record with which it joined
    number: int = 0  # of the producer's item; 0: it is no item
    version: int = 0
    time: float = 0.0
    key: bytes = b""


#: Records in an array.
RECORDS = np.dtype([*zip(Record._fields, "BBIIIqqqqdO", strict=True)])


class Entry(NamedTuple):
    """A record of a file."""

    position: int
    record: Record
    file: int
    place: int  # of its data
    nbytes: int


class Copy(NamedTuple):
    """Bytes of another file, to be written in place of data."""

    file: int
    place: int
    nbytes: int


def entries(file: int, place: int, group: memoryview) -> Iterator[Entry]:
    """Yield the records of a group that lies there."""
    first, _, count, *_ = GROUP.unpack_from(group)
    at, new = GROUP.size, tuple.__new__  # half the time of a named tuple's own
    for position in range(first, first + count):
        key, nbytes, *fields = RECORD.unpack_from(group, at)
        at += RECORD.size + key
        fields.append(bytes(group[at - key : at]) if key else b"")
        yield new(Entry, (position, new(Record, fields), file, place + at, nbytes))
        at += nbytes
