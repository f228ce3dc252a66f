"""Desks and trainers in a simulated world, whose laws are checked at each event."""
