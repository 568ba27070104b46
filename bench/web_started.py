"""A server that scripts of this folder ask: started on any free port, stopped at the end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ADDRESS = re.compile(r"rackline web: (http://\S+/)")


@contextmanager
def started(workers: int) -> Iterator[tuple[str, int]]:
    """The address of a server that runs and the number of its process.

    Args:
        workers: processes that answer [count].
    """
    command = [sys.executable, "-m", "rackline", "web", "--port", "0", "--no-browser", "--workers", str(workers)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    if process.stderr is None:
        raise RuntimeError("no pipe")
    match = _ADDRESS.search(process.stderr.readline())
    if match is None:
        raise RuntimeError("the server did not start")
    try:
        yield match[1], process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
