"""Keeps state on disk or in shared memory: journals, snapshots, the state directory."""
