"""Reads: sources, columns, stages, order."""
