"""Progress of a long computation: silent unless a watcher is given."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Counted = Callable[[str, int, int], None]
Served = Callable[[int, int, float], None]


class Watch:
    """Watches nothing; the command line has one that draws bars."""

    def moving(self, what: str) -> AbstractContextManager[None]:
        """Work of unknown length."""
        return nullcontext()

    def counting(self, first: str, then: str) -> AbstractContextManager[Counted]:
        """Work in parts: call what is entered with (part, finished, all)."""
        return nullcontext(_ignore)

    def serving(self, what: str) -> AbstractContextManager[Served | None]:
        """Requests: call what is entered with (done, all, simulated seconds); None when nobody watches."""
        return nullcontext()


def _ignore(what: str, finished: int, total: int) -> None:
    pass
