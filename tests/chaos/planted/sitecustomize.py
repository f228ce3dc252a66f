"""Python imports this by itself where it finds it: how a bug gets into each process of a server.

Only the driver puts this directory into a server's path, and only when a bug is to be planted.
"""

import os

if os.environ.get("HEADRACE_TEST_BUG"):
    from tests.chaos.bugs import plant

    plant(os.environ["HEADRACE_TEST_BUG"])
