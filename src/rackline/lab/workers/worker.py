"""The other side of an engine in a process of its own: commands as lines of JSON, answers as lines of JSON.

It runs under the Python of the engine's environment, which need not have rackline; it uses the standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol


class Runs(Protocol):
    """What a worker's engine can do; lengths and counts are plain numbers."""

    versions: dict[str, str]

    def seconds(self, sequences: int, context_len: int, prompt_tokens: int) -> float:
        """Time of one pass [s]."""
        ...

    def serve(self, arrival_s: list[float], input_len: list[int], output_len: list[int]) -> dict[str, list[float]]:
        """Time to first and to last token of each request [s]."""
        ...


def answer_commands(start: Callable[[dict[str, Any]], Runs]) -> None:
    """Start the engine with what the first argument says, and answer until there are no more lines.

    What the engine prints goes to standard error; standard output holds the answers alone.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(what: dict[str, Any]) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    try:
        engine = start(json.loads(sys.argv[1]))
        say({"versions": engine.versions})
        for line in sys.stdin:
            command: dict[str, Any] = json.loads(line)
            if command.pop("serve", False):
                say(engine.serve(**command))
            else:
                say({"seconds": engine.seconds(**command)})
    except KeyboardInterrupt:
        pass
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})


class Clock:
    """Seconds that pass: on the wall, or of this process on its processor, where nobody else's work counts.

    With the second one waiting takes no time: the clock is put forward.
    """

    def __init__(self, *, cpu: bool) -> None:
        self.cpu = cpu
        self.skipped_s = 0.0

    def now(self) -> float:
        """Time since some moment [s]."""
        return time.process_time() + self.skipped_s if self.cpu else time.perf_counter()

    def wait_until(self, moment: float) -> None:
        """Wait for a time of this clock [s]."""
        while (left := moment - self.now()) > 0.0:
            if self.cpu:
                self.skipped_s += left
            else:
                time.sleep(left if left < 0.002 else left - 0.001)
