"""The process with the public address: keys, connections, and the relay to the workers."""
