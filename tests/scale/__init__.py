"""How cost grows: with workers, servers and sequences.

    python -m tests.trials NAME … ──► curves: points of (x, figures), laws

A curve is measured over real processes.  What it promises is a *law*: a ratio of processor time or
of memory that may not pass a limit.  Rates depend on the machine and on who else uses it; laws are
said of ratios within one run.
"""
