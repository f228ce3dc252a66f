"""Reads and fills: sources, columns, stages, order, assembler, slab."""
