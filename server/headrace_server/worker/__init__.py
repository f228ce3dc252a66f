"""One worker process: it owns partitions, leases their batches and takes their commits."""
