"""Positions with numbers are as a dict that is sorted."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace_server.shaping.positions import Positions


@pytest.mark.parametrize("seed", range(5))
def test_positions_come_go_and_come_back_as_in_a_dict(seed):
    chance, known, found = random.Random(seed), dict[int, int](), Positions()
    for _ in range(500):
        position = chance.randrange(60)
        if position not in known:
            known[position] = found[position] = chance.randrange(1000)
        elif chance.random() < 0.7:
            del known[position], found[position]
        assert [*found.items()] == sorted(known.items()) and len(found) == len(known)
        numbers = [known.get(one, -1) for one in range(60)]
        assert [found.get(one) for one in range(60)] == numbers
        assert found.find(np.arange(60)).tolist() == numbers
    with pytest.raises(KeyError):
        del found[60]
