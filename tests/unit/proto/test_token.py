"""The form of a snapshot's token, and refusals of others."""

import json

import pytest

from headrace_proto.token import Token

NAME = "20260102T030405Z-0123456789ab"


@pytest.mark.parametrize("url", ["", "s3://bucket/snapshots"])
def test_a_token_survives_json(url):
    token = Token("speech", NAME, url)
    plain = json.loads(json.dumps(token.to_plain()))
    assert Token.from_plain("resume", plain) == token
    assert Token.from_plain("resume", json.dumps(plain)) == token
