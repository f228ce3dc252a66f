"""The exchange between a trainer and servers: messages, memory of batches, states."""
