"""What a trainer exchanges with servers: messages, the memory of batches, and states."""
