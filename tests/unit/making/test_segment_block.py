"""Batches of segments in memory: windows, padding, contexts and facts of rows."""

from __future__ import annotations
