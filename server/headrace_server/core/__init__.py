"""Pure machines: events in, decisions out."""
