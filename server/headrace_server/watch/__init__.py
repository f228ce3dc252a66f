"""Status, metrics, verdict and page of a server.  This room reads only.

Supervisor.look() ─► Watch ─► status, history ─► verdict ─┬► metrics (Prometheus)
                                                          ├► status.json ─► page, commands
                                                          └► healthz, readyz
"""
