"""What questions about a model have in common: how its description is found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rackline.api.option import option
from rackline.api.question import Question

if TYPE_CHECKING:
    from rackline.api.option import Texts

_GROUP = "Model by name"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQuestion(Question):
    """A question whose model may be any on the Hugging Face Hub."""

    assume: Texts | None = field(
        default=None,
        metadata=option(
            "text",
            "how to interpret an unknown config.json: a model family such as llama, or KEY=VALUE for one of its "
            "keys; may be repeated; answers mention it",
            several=True,
            repeated=True,
            group=_GROUP,
        ),
    )
    offline: bool = field(
        default=False,
        metadata=option(
            "switch", "read models only from the catalogue, files and the Hugging Face cache", group=_GROUP
        ),
    )
