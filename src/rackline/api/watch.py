"""What happens while a question is answered: progress, the models that were read, what the answer must say of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rackline.late import late

with late:
    from rackline import arch


Counted = Callable[[str, int, int], None]
Computed = Callable[[int, int, int], None]
Served = Callable[[int, int, float], None]


class Watch:
    """Notes what was read and draws nothing; the command line has one that draws bars.

    Args:
        found: models by what was asked for, so that one question reads each once.
        origins: what models were read from, in order.
        warnings: what the answer must say beside its numbers.
        defaults: what was taken where the question says nothing.
        media: images and sound of each request.
        adapter: that all tokens go through.
    """

    def __init__(self) -> None:
        self.found: dict[tuple[str, ...], arch.FoundModel] = {}
        self.origins: list[arch.Origin] = []
        self.warnings: list[str] = []
        self.defaults: list[str] = []
        self.media: tuple[arch.MediaPart, ...] = ()
        self.adapter: arch.AppliedAdapter | None = None

    def uses(self, model: arch.AnyModel) -> None:
        """Note where a model comes from and what is to be said of it, once."""
        if model.origin is not None and model.origin not in self.origins:
            self.origins.append(model.origin)
            for text in model.origin.warnings:
                self.warn(text)

    def warn(self, text: str) -> None:
        """Note what the answer must say, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def takes(self, text: str) -> None:
        """Note what is taken where the question says nothing, once."""
        if text not in self.defaults:
            self.defaults.append(text)

    def agrees(self, what: str) -> bool:
        """Ask whether something that costs may be done; nobody is asked here, so it may not."""
        return False

    def announces(self, what: str) -> None:
        """Say what is about to be done."""

    def estimated(self, result: Any) -> None:
        """Take the result by estimates, before it is simulated."""

    def moving(self, what: str) -> AbstractContextManager[None]:
        """Work of unknown length."""
        return nullcontext()

    def counting(self, first: str, then: str) -> AbstractContextManager[Counted]:
        """Work in parts: call what is entered with (part, finished, all)."""
        return nullcontext(_ignore)

    def serving(self, what: str) -> AbstractContextManager[Served | None]:
        """Requests: call what is entered with (done, all, simulated seconds); None when nobody watches."""
        return nullcontext()

    def computing(self, what: str) -> AbstractContextManager[Computed]:
        """Points: call what is entered with (done, all, failed)."""
        return nullcontext(_ignore_points)


def _ignore_points(done: int, total: int, failed: int) -> None:
    pass


def _ignore(what: str, finished: int, total: int) -> None:
    pass
