"""What a process that answers questions from outside may touch: its own folder and the program, no more.

The questions themselves are refused paths (`rackline.web.asked`); this is the second lock, which does not depend on
knowing every option that reads a file. Python's audit events tell of each file that is opened, each connection and
each process, before it happens.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from rackline.errors import InputError

_SYSTEM = ("/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system", "/usr/share/zoneinfo", "/dev/null",
           "/dev/urandom", "/etc/localtime")  # fmt: skip
_LISTED = ("os.listdir", "os.scandir")
_CHANGED = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.chown",
            "os.truncate", "os.utime")  # fmt: skip
_NEVER = (
    "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg",
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Sandbox:
    """Locks the process that it is closed in.

    Args:
        folder: the only one that may be written to, and whose files questions may name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.realpath(folder)
        paths = sysconfig.get_paths()
        program = [str(Path(__file__).resolve().parents[1]), sys.prefix, sys.base_prefix]
        program += [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        program += [one for one in sys.path if one]
        self._read = (self._folder, *(os.path.realpath(one) for one in program), *_SYSTEM)

    def close(self) -> None:
        """Lock the process, for as long as it lives."""
        sys.dont_write_bytecode = True
        sys.addaudithook(self.check)

    def check(self, event: str, given: tuple[Any, ...]) -> None:
        """Refuse what the process may not do.

        Args:
            event: of Python's audit.
            given: its arguments.

        Raises:
            InputError: a file is read that came neither with the question nor with the program.
            PermissionError: anything else that is locked.
        """
        if event == "open":
            path, mode, flags = given
            if isinstance(path, int):
                return
            writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & _WRITING)
            if writes:
                self._check_written(path, event)
            elif not self._is_in(path, self._read):
                raise InputError(
                    what="file",
                    given=os.fsdecode(path),
                    allowed="a name of the catalogue, or a file that comes with the question (`uploads`)",
                )
        elif event in _LISTED:
            if given[0] is not None and not isinstance(given[0], int) and not self._is_in(given[0], self._read):
                raise PermissionError(13, "folders of the server are not listed", os.fsdecode(given[0]))
        elif event in _CHANGED:
            self._check_written(given[0], event)
        elif event in _NEVER:
            raise PermissionError(13, f"{event} is locked while questions are answered")

    def _check_written(self, path: Any, event: str) -> None:
        if not isinstance(path, int) and not self._is_in(path, (self._folder, "/dev/null")):
            raise PermissionError(13, f"{event} is locked outside of the folder of the question", os.fsdecode(path))

    @staticmethod
    def _is_in(path: Any, roots: tuple[str, ...]) -> bool:
        real = os.path.realpath(os.fsdecode(path))
        return any(real == root or real.startswith(f"{root}{os.sep}") for root in roots)
