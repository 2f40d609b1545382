"""Asking a running server."""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request
from typing import Any

from ramet.runtime.protocol.errors import RametError


def add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server (http://127.0.0.1:8000)")
    parser.add_argument("--api-key", default=None, help="where the server asks for one")


def fetch(arguments: argparse.Namespace, path: str) -> Any:
    """The JSON of GET ``path``. Raises RametError saying what to check."""
    headers = {"Accept": "application/json"}
    if arguments.api_key:
        headers["Authorization"] = f"Bearer {arguments.api_key}"
    url = arguments.url.rstrip("/").removesuffix("/v1") + path
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=15) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        hint = ": give --api-key" if error.code == 401 else ""
        raise RametError(f"{url} answers {error.code} {error.reason}{hint}") from error
    except (OSError, ValueError) as error:
        raise RametError(
            f"no server answers at {url} ({error}): start one with 'ramet serve', or give its --url"
        ) from error
