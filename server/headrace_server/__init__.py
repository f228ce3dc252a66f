"""headrace server: declare pipelines and run them.

import headrace_server as hs

with hs.run(hs.from_examples([{"x": 1.0}] * 64).batch(8)) as server:
    print(server.address)
"""

from headrace_proto import __version__

from . import pipeline as _pipeline
from .pipeline import *  # noqa: F403  (its __all__ is the builder's public face)
from .run import Server, run

__all__ = ["Server", "__version__", "run", *_pipeline.__all__]
