"""Token ids on the wire: little-endian int32 buffers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def pack_ids(ids: Sequence[int] | NDArray[np.int32]) -> bytes:
    return np.asarray(ids, dtype="<i4").tobytes()


def unpack_ids(data: bytes) -> list[int]:
    """Raises ValueError if the buffer is not a whole number of int32."""
    result: list[int] = np.frombuffer(data, dtype="<i4").tolist()
    return result
