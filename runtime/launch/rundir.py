"""The private directory of one runtime: its sockets, pulses and logs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from ramet.runtime.protocol.errors import RametError

SOCKET_PATH_LIMIT = 100
"""Of an ipc address: 108 bytes on Linux, 104 on macOS."""
TAIL_BYTES = 64 * 1024
"""Of a log that are looked at for its last lines."""
_LONGEST_NAME = "/frontend.sock"
_PREFIX = "ramet-"


class RunDir:
    """Made with mode 0700. Without ``wanted``, a new one under the system's temporary folder (or /tmp where that is too
    long for a socket), named after this process; what dead processes of this user left there is removed."""

    def __init__(self, wanted: str = "") -> None:
        self._made = True
        if wanted:
            self.path = Path(wanted).absolute()
            self._made = not self.path.exists()
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            base = _base()
            _remove_leftovers(base)
            self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))
        if len(os.fsencode(f"{self.path}{_LONGEST_NAME}")) > SOCKET_PATH_LIMIT:
            self.remove()
            raise RametError(
                f"the run directory {self.path} is too long for the sockets in it: at most "
                f"{SOCKET_PATH_LIMIT - len(_LONGEST_NAME)} bytes are possible; give a shorter run_dir"
            )

    def log(self, role: str) -> Path:
        return self.path / f"{role}.log"

    def last_lines(self, role: str, count: int = 20) -> str:
        """The end of a child's log, for an error message."""
        try:
            with self.log(role).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - TAIL_BYTES, 0))
                lines = file.read(TAIL_BYTES).decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-count:])

    def remove(self) -> None:
        """A directory that was there before is only emptied of what a runtime puts into it."""
        if self._made:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        for pattern in ("*.sock", "*.pulse", "*.log"):
            for file in self.path.glob(pattern):
                file.unlink(missing_ok=True)


def _base() -> Path:
    base = Path(tempfile.gettempdir())
    room = SOCKET_PATH_LIMIT - len(_LONGEST_NAME) - len(f"/{_PREFIX}4194304-12345678")
    return base if len(os.fsencode(base)) <= room else Path("/tmp")


def _remove_leftovers(base: Path) -> None:
    for folder in base.glob(f"{_PREFIX}[0-9]*-*"):
        pid = folder.name.removeprefix(_PREFIX).split("-", 1)[0]
        with contextlib.suppress(OSError, ValueError):
            if folder.stat().st_uid == os.getuid() and not _alive(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
