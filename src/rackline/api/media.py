"""Images and sound of each request: the options that questions share, and what becomes of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, assert_never

from rackline.api.model_question import ModelQuestion
from rackline.api.option import Quantity, count, option, si, whole
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.api.watch import Watch
    from rackline.arch import AnyModel, Media, MediaPart

MOST_PIXELS = 100_000
_GROUP = "Images and audio"
IMAGES = whole("images per request; their tokens are added to the prompt length", minimum=0, maximum=1000, group=_GROUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaQuestion(ModelQuestion):
    """A question whose requests may bring images and sound."""

    images: Quantity = field(default="0", metadata=IMAGES)
    image_size: str = field(
        default="1024x1024", metadata=option("text", "size of each image in pixels, WIDTHxHEIGHT", group=_GROUP)
    )
    audio: Quantity | None = field(
        default=None,
        metadata=option(
            "seconds", "length of the audio clip of each request, such as 30s", unit="s", maximum=86400.0, group=_GROUP
        ),
    )


def media_of(question: MediaQuestion, watch: Watch) -> Media | None:
    """What the images and sound of a request become, noted for the answer; None without any.

    Raises:
        InputError: a model without a tower for them, or one that was not given by name.
        HubError, ConfigError, UnknownNameError: its configuration cannot be read.
    """
    images, audio_s = count(question.images), si(question.audio)
    if not images and audio_s is None:
        return None
    from rackline.arch import Media, MediaPart, find_towers

    name: Any = getattr(question, "model")  # noqa: B009 - every such question has one
    if not isinstance(name, str):
        allowed = "a config.json, its folder, or a Hugging Face id"
        raise InputError(what="images", given=f"a model object {name.name}", allowed=allowed)
    wide, high = _size(question.image_size)
    towers = find_towers(name, offline=question.offline)
    parts: list[MediaPart] = []
    for tower in towers:
        match tower.kind:
            case "vision":
                parts += [MediaPart(tower=tower, view=tower.image(wide, high), items=images)] if images else []
            case "audio":
                parts += [MediaPart(tower=tower, view=tower.sound(audio_s), items=1)] if audio_s is not None else []
            case _:
                assert_never(tower.kind)
    wanted = {"vision": bool(images), "audio": audio_s is not None}
    missing = [kind for kind, asked in wanted.items() if asked and kind not in {part.tower.kind for part in parts}]
    if missing:
        kinds = " and ".join(tower.kind for tower in towers)
        allowed = f"images or `audio` for its {kinds} tower alone" if kinds else "a model with a tower that is known"
        raise InputError(what="audio" if missing == ["audio"] else "images", given=name, allowed=allowed)
    watch.media = tuple(parts)
    return Media(parts=watch.media)


def with_media(model: AnyModel, media: Media | None, prompt_len: float | None = None) -> AnyModel:
    """The model with the images and sound of its requests.

    Args:
        media: None for none.
        prompt_len: tokens of a prompt, theirs included; None where only the memory of the towers counts [tokens].

    Raises:
        InputError: an aggregate model.
    """
    from rackline.arch import Model
    from rackline.arch import with_media as of_model

    if media is None:
        return model
    if not isinstance(model, Model):
        raise InputError(what="images", given=model.name, allowed="a model whose layers are known")
    return of_model(model, replace(media, prompt_len=prompt_len))


def media_tokens(media: Media | None) -> int:
    """Tokens that images and sound add to a prompt [tokens]."""
    return 0 if media is None else media.tokens


def _size(text: str) -> tuple[int, int]:
    """Read WIDTHxHEIGHT.

    Raises:
        InputError: another text, or a side that no image has.
    """
    found = re.fullmatch(r"\s*(\d{1,6})\s*[x×]\s*(\d{1,6})\s*", text)
    sides = (int(found[1]), int(found[2])) if found else (0, 0)
    if not all(1 <= side <= MOST_PIXELS for side in sides) or max(sides) > 200 * min(sides):
        raise InputError(
            what="image_size",
            given=text,
            allowed=f"WIDTHxHEIGHT in pixels, sides of 1 to {MOST_PIXELS:,}",
            nearest="1024x1024",
        )
    return sides
