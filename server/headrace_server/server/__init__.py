"""A server of one host: `hs.run` starts the supervisor, which starts locator and workers."""
