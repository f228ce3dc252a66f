"""Refusals are counted, and the log has each of them once in a minute."""

from headrace_server.net.refusals import Refusals


def test_a_peer_that_tries_again_and_again_has_one_line_in_a_minute(caplog):
    refusals = Refusals()
    for second in range(30):
        refusals.add("unknown_key", "refused a trainer at 10.0.0.1", float(second))
    refusals.add("no_keys", "refused a trainer without keys", 30.0)
    assert caplog.messages == ["refused a trainer at 10.0.0.1", "refused a trainer without keys"]
    assert refusals.counts == {"unknown_key": 30, "no_keys": 1}
    caplog.clear()
    refusals.tick(61.0)
    assert caplog.messages == ["29 more were refused (unknown_key)"]
    refusals.add("unknown_key", "refused a trainer at 10.0.0.1", 62.0)
    assert caplog.messages[1:] == ["refused a trainer at 10.0.0.1"]
