"""``python -m ramet.runtime.worker '<RuntimeConfig as JSON>'``"""

from __future__ import annotations

import logging
import sys

from ramet.runtime.protocol.config import RuntimeConfig
from ramet.runtime.protocol.errors import RametError

from .process import main

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s worker %(levelname)s %(message)s")
    if len(sys.argv) != 2:
        sys.exit("usage: python -m ramet.runtime.worker '<RuntimeConfig as JSON>'")
    try:
        main(RuntimeConfig.from_json(sys.argv[1]))
    except RametError as error:
        sys.exit(f"the worker cannot start: {error}")
