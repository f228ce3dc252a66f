"""Trials: figures for the promises, one trial for each, at any size.

    python -m tests.trials NAME …  ──► one Result each ──► a table, and a line of JSON in a file

A trial says what it counted, how long it took and what it saw that must not be.  Its full size
is ``--scale 1``; the tests run each at a small part of it.  What can not be run here says so.
"""
