"""Where a model's description comes from, and what a reader of any answer about it must know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

OriginKind = Literal["catalogue", "file", "hub", "cache", "object"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a model was read from.

    Args:
        kind: the catalogue, a file, the Hub, its cache, or an object that a program has built.
        name: as it was asked for.
        used: what was read: a catalogue name, a file, or a repository.
        revision: commit of the repository; empty elsewhere.
        native_precision: data types of the weights, as a label.
        warnings: what makes the description uncertain: assumptions, differences to the checkpoint.
    """

    kind: OriginKind
    name: str
    used: str
    revision: str = ""
    native_precision: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """One line for readers; empty where the name says it all."""
        match self.kind:
            case "object":
                return ""
            case "catalogue":
                if self.name == self.used:
                    return ""
                where = "catalogue"
            case "file":
                where = "file"
            case "hub":
                where = "Hugging Face Hub"
            case "cache":
                where = "cache of the Hugging Face Hub"
            case _:
                assert_never(self.kind)
        at = f" at {self.revision[:12]}" if self.revision else ""
        types = f", weights in {self.native_precision}" if self.native_precision else ""
        return f"{self.name}: {self.used}{at} ({where}{types})"
