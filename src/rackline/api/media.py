"""Images and sound of each request: the options that questions share, and what becomes of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from rackline.api.groups import OnCluster
from rackline.api.option import Option, option, shared
from rackline.api.question import question
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.api.option import MaybeNumber, Whole
    from rackline.api.watch import Watch
    from rackline.arch import AnyModel, Media, MediaPart

MOST_PIXELS = 100_000
_GROUP = "Images and audio"
IMAGES = Option(
    kind="whole",
    help="images per request; their tokens are added to the prompt length",
    unit="count",
    minimum=0,
    maximum=1000,
    zero=True,
    group=_GROUP,
)


@question
class MediaQuestion(OnCluster):
    """A question whose requests may bring images and sound."""

    images: Whole = shared(IMAGES, default="0")
    image_size: str = option("text", "size of each image in pixels, WIDTHxHEIGHT", default="1024x1024", group=_GROUP)
    audio: MaybeNumber = option(
        "seconds",
        "length of the audio clip of each request, such as 30s",
        default=None,
        unit="s",
        maximum=86400.0,
        group=_GROUP,
    )


def media_of(question: MediaQuestion, watch: Watch) -> Media | None:
    """What the images and sound of a request become, noted for the answer; None without any.

    Raises:
        InputError: a model without a tower for them, or one that was not given by name.
        HubError, ConfigError, UnknownNameError: its configuration cannot be read.
    """
    images, audio_s = question.images, question.audio
    if not images and audio_s is None:
        return None
    from rackline.arch import Media, MediaPart, find_towers

    name = question.model
    if not isinstance(name, str):
        allowed = "a config.json, its folder, or a Hugging Face id"
        raise InputError(what="images", given=f"a model object {getattr(name, 'name', name)}", allowed=allowed)
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
