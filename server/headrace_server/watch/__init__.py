"""Shows a running server to people and to their tools, where HTTP is asked for.

Supervisor.look() ─► Watch ─► status, history ─► verdict ─┬► metrics (Prometheus)
                                                          ├► status.json ─► page, commands
                                                          └► healthz, readyz
"""
