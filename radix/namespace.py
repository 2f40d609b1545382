"""Who may share a cache with whom."""

from __future__ import annotations

from typing import NamedTuple


class Namespace(NamedTuple):
    """Each namespace has a root of its own: what is cached under one can never be matched under another.

    A typed tuple, never a joined string: no tenant can be named so that it collides with another's salt.
    """

    tenant: str = ""
    salt: str = ""
    adapter: str = ""
    fingerprint: str = ""
    """Numerics of the stored KV: no KV crosses fingerprints."""
