"""Ctrl-C while an answer is put together: what is there is finished first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Held:
    """Whether an interruption came while it was held.

    Args:
        pressed: whether it did.
    """

    pressed: bool = False


@contextlib.contextmanager
def held() -> Generator[Held]:
    """Hold one interruption until the block has ended; a second one ends it at once.

    Outside of the main thread, or where a program handles interruptions itself, nothing changes.

    Yields:
        What says afterwards whether there was one.

    Raises:
        KeyboardInterrupt: the second interruption.
    """
    hold = Held()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield hold
        return

    def press(*_: Any) -> None:
        if hold.pressed:
            raise KeyboardInterrupt
        hold.pressed = True

    signal.signal(signal.SIGINT, press)
    try:
        yield hold
    finally:
        signal.signal(signal.SIGINT, before)
