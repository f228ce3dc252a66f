"""What a server shows of itself.  It reads only.

Supervisor.look() ─► Watch ─► status, history ─► verdict ─┬► metrics (Prometheus)
                                                          ├► status.json ─► page, commands
                                                          └► healthz, readyz
"""
