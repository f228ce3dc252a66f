"""A process has one name, and its fork another."""

from __future__ import annotations

import os

from headrace_proto.process import process_name


def test_a_process_has_one_name_and_its_fork_another():
    mine = process_name()
    assert process_name() == mine and len(mine) == 16
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, process_name())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) not in (mine, b"")
    os.close(read), os.close(write)
