"""What shows a running server to people and to their tools; not there unless it is asked for.

Supervisor.look() ─► Watch ─► status, history ─► verdict ─┬► metrics (Prometheus)
                                                          ├► status.json ─► page, commands
                                                          └► healthz, readyz
"""
