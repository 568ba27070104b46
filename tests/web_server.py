"""A real server on a loopback address, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

_ADDRESS = re.compile(r"rackline web: (http://\S+/)")


PATIENCE_S = 240.0  # the machine may be busy with other work
PATIENT = "quick_wait_s=240.0, long_wait_s=240.0, answer_s=3000.0"
"""Limits under which no answer depends on how busy the machine is."""


def wait_for(true: Callable[[], bool]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@dataclass
class Server:
    """A server that runs.

    Args:
        process: of the server.
        address: where it listens.
        client: asks it.
    """

    process: subprocess.Popen[str]
    address: str
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.address, timeout=1200)

    def workers(self) -> list[int]:
        """Worker processes: children of the process that its workers are copies of."""
        first = [child for child in children(self.process.pid) if is_forkserver(child)]
        return [worker for one in first for worker in children(one)]


def children(pid: int) -> list[int]:
    """Processes whose parent is this one, from /proc."""
    found: list[int] = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid and fields[0] != "Z":
                    found.append(int(place.name))
    return found


def is_forkserver(pid: int) -> bool:
    """Whether a process is the one that copies of are workers."""
    with contextlib.suppress(OSError):
        return b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@contextlib.contextmanager
def running(*options: str, limits: str = "") -> Iterator[Server]:
    """Start a server and stop it at the end.

    Args:
        options: of the command.
        limits: arguments of `Limits`, where they differ from the usual ones.
    """
    code = "from rackline.cli.main import run; import sys; sys.exit(run(sys.argv[1:]))"
    if limits:
        usual = "s.Settings.__init__.__kwdefaults__['limits']"
        code = f"import rackline.web.asked as s; {usual} = s.Limits({limits}); {code}"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "web", "--port", "0", "--no-browser", *options],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        said, match = "", None
        for line in process.stderr:
            said += line
            match = _ADDRESS.search(line)
            if match is not None:
                break
        assert match is not None, said
        found = Server(process, match[1])
        with found.client:
            yield found
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(120)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
