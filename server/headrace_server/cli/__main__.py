"""``python -m headrace_server.cli``: the command where no script is installed."""

import sys

from . import main

sys.exit(main())
