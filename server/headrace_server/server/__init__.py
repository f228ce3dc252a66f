"""A server of one host: `hs.run` starts the supervisor, which starts the locator and the workers.

Supervisor.look() ─► Watch ─► status, history ─► verdict ─┬► metrics (Prometheus)
                                                          ├► status.json ─► page, commands
                                                          └► healthz, readyz
"""
