"""``python -m ramet.runtime.scheduler '<RuntimeConfig as JSON>'``"""

from __future__ import annotations

import logging
import sys

from ramet.runtime.protocol.config import RuntimeConfig

from .process import main

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s scheduler %(levelname)s %(message)s")
    if len(sys.argv) != 2:
        sys.exit("usage: python -m ramet.runtime.scheduler '<RuntimeConfig as JSON>'")
    main(RuntimeConfig.from_json(sys.argv[1]))
