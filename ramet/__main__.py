"""``python -m ramet`` is the ``ramet`` command."""

from __future__ import annotations

import sys

from ramet.cli import main

if __name__ == "__main__":
    sys.exit(main())
