"""Benchmarks beside the peers, in the same run on the same machine.

    python -m tests.bench [--quick] [--only TEXT] [--log]

    steps         what a contestant is: a generator that brings up its server and takes batches
    contestants   what runs, by name; those of W4 stand in state_trainers and state_peers
    window        one contestant in a process of its own, timed, with all its children
    pairs         two contestants in turn; what counts is the ratio of each pair
    comparisons   which pairs there are, and what ratio is aimed at
    report        table, JSON, the entry in docs/log.md

Nothing here passes or fails by a figure: absolute times belong to the machine and the hour.
"""
