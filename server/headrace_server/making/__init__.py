"""Makes batches: shape, segments, states, bytes in the slab."""
