"""Benchmarks beside the peers, in the same run on the same machine.

    python -m tests.bench [--quick] [--only TEXT] [--json FILE]

    steps         what a contestant is: a generator that brings up its server and takes batches
    contestants   what runs, by name; those of W4 stand in state_trainers and state_peers, other
                  peers in torch_peers and grain_peers
    environments  the interpreter of each: some peers need versions of their own
    window        one contestant in a process of its own, timed, with all its children
    crowds        several trainers of one feed
    running       contestants that run; one that fails or says nothing ends, and not the run
    pairs         two contestants in turn; what counts is the ratio of each pair
    comparisons   which pairs there are, and what is aimed at
    report        table, JSON

``tests.bench.remote`` measures remote files, ``tests.bench.ranks`` how equal the work of ranks is.

Nothing here passes or fails by a figure: absolute times belong to the machine and the hour.
"""
