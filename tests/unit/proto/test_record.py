import dataclasses

import pytest

from headrace_proto.record import record


@record
class Point:
    x: int
    y: int = 0
    names: list[str] = dataclasses.field(default_factory=list)


@record
class Named:
    name: str


@record
class Other:
    name: str


@record
class Nothing:
    """Has no field."""


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (Point(1, y=2), Point(1, 2), Point(1, 3)),
        (Named("a"), Named("a"), Named("b")),
        (Named("a"), Named("a"), Other("a")),
        (Nothing(), Nothing(), Named("")),
    ],
)
def test_records_of_one_kind_are_equal_when_all_fields_are(one, same, other):
    assert one == same
    assert one != other


def test_a_record_prints_as_it_is_made():
    assert repr(Point(1)) == "Point(x=1, y=0, names=[])"
    assert repr(Named("a")) == "Named(name='a')"
    assert repr(Nothing()) == "Nothing()"
