"""The form of a snapshot's token, and refusals of others."""

from __future__ import annotations

import json

import pytest

from headrace_proto.token import Token

NAME = "20260102T030405Z-0123456789ab"


@pytest.mark.parametrize("url", ["", "s3://bucket/snapshots"])
def test_a_token_survives_json(url: str):
    token = Token("speech", NAME, url)
    plain = json.loads(json.dumps(token.to_plain()))
    assert Token.from_plain("resume", plain) == token
    assert Token.from_plain("resume", json.dumps(plain)) == token


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (3, TypeError, "resume=3"),
        ("{", ValueError, "not JSON"),
        ("[]", TypeError, "not a snapshot's token"),
        ({}, ValueError, "not a snapshot's token"),
        ({"headrace": 2}, ValueError, "format 2"),
        ({"headrace": 1, "snapshot": NAME}, ValueError, "feed is ''"),
        ({"headrace": 1, "feed": "f", "snapshot": "../../etc"}, ValueError, "name of a snapshot"),
        ({"headrace": 1, "feed": "f", "snapshot": NAME + "\n"}, ValueError, "name of a snapshot"),
        ({"headrace": 1, "feed": "f", "snapshot": NAME, "url": 3}, ValueError, "url is 3"),
    ],
)
def test_an_invalid_token_is_refused_by_name(value: object, kind: type, text: str):
    with pytest.raises(kind, match=text.replace("[", r"\[")):
        Token.from_plain("resume", value)
