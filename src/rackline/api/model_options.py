"""What a question says of its model beside its name: images and sound, a low-rank adapter, a draft model."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from rackline.api.answer import Watch
from rackline.api.groups import OnCluster
from rackline.api.question import (
    MaybeNumber,
    MaybeWhole,
    ModelLike,
    Number,
    Option,
    Whole,
    group,
    option,
    shared,
    whole,
)
from rackline.api.resolve import Lookup, lookup_of
from rackline.errors import ConfigError, HubError, InputError, require
from rackline.files import is_file
from rackline.late import late

with late:
    from rackline import arch, hub
    from rackline.arch import lookup as arch_lookup
    from rackline.hub import checkpoint
    from rackline.search import launch_plan


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


@group
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


def media_of(question: MediaQuestion, watch: Watch) -> arch.Media | None:
    """What the images and sound of a request become, noted for the answer; None without any.

    Raises:
        InputError: a model without a tower for them, or one that was not given by name.
        HubError, ConfigError, UnknownNameError: its configuration cannot be read.
    """
    images, audio_s = question.images, question.audio
    if not images and audio_s is None:
        return None

    name = question.model
    if not isinstance(name, str):
        allowed = "a config.json, its folder, or a Hugging Face id"
        raise InputError(what="images", given=f"a model object {getattr(name, 'name', name)}", allowed=allowed)
    wide, high = _size(question.image_size)
    towers = arch.find_towers(name, offline=question.offline)
    wanted = {"vision": bool(images), "audio": audio_s is not None}
    parts = [
        arch.MediaPart(tower=tower, view=tower.image(wide, high), items=images)
        if tower.kind == "vision"
        else arch.MediaPart(tower=tower, view=tower.sound(audio_s or 0.0), items=1)
        for tower in towers
        if wanted[tower.kind]
    ]
    missing = [kind for kind, asked in wanted.items() if asked and kind not in {part.tower.kind for part in parts}]
    if missing:
        what, given, other = ("images", images, "audio") if "vision" in missing else ("audio", audio_s, "images")
        if not towers:
            raise InputError(what=what, given=name, allowed="a model with a tower that is known")
        allowed = f"`{other}` alone, which the {towers[0].kind} tower of {name} reads"
        raise InputError(what=what, given=given, allowed=allowed)
    watch.media = tuple(parts)
    return arch.Media(parts=watch.media)


def with_media(model: arch.AnyModel, media: arch.Media | None, prompt_len: float | None = None) -> arch.AnyModel:
    """The model with the images and sound of its requests.

    Args:
        media: None for none.
        prompt_len: tokens of a prompt, theirs included; None where only the memory of the towers counts [tokens].

    Raises:
        InputError: an aggregate model.
    """
    if media is None:
        return model
    if not isinstance(model, arch.Model):
        raise InputError(what="images", given=model.name, allowed="a model whose layers are known")
    return arch.with_media(model, replace(media, prompt_len=prompt_len))


def media_tokens(media: arch.Media | None) -> int:
    """Tokens that images and sound add to a prompt [tokens]."""
    return 0 if media is None else media.tokens


def _size(text: str) -> tuple[int, int]:
    """Read WIDTHxHEIGHT.

    Raises:
        InputError: another text, or a side that no image has.
    """
    found = re.fullmatch(r"\s*(\d{1,6})\s*[x×]\s*(\d{1,6})\s*", text)
    sides = (int(found[1]), int(found[2])) if found else (0, 0)
    require(
        all(1 <= side <= MOST_PIXELS for side in sides) and max(sides) <= 200 * min(sides),
        what="image_size",
        given=text,
        allowed=f"WIDTHxHEIGHT in pixels, sides of 1 to {MOST_PIXELS:,}",
        nearest="1024x1024",
    )
    return sides


@group
class AdapterQuestion(MediaQuestion):
    """A question whose tokens may all go through a low-rank adapter."""

    adapter: str | None = option(
        "text",
        "low-rank adapter (LoRA) that every token goes through: its folder, adapter_config.json or Hugging Face id",
        default=None,
        group="Model by name",
    )
    adapters: Whole = whole(
        "number of adapters of this shape, of which each request uses one; all are in memory unless "
        "`resident_adapters` says how many",
        default="1",
        group="Model by name",
    )
    resident_adapters: MaybeWhole = whole(
        "adapters that memory holds at a time; the others are transferred from the host when a request needs them, "
        "in place of the least recently used",
        default=None,
        group="Model by name",
    )
    adapter_popularity: Number = option(
        "count",
        "how requests choose adapters: exponent of Zipf's law, 0 for all alike, 1 for shares of 1, 1/2, 1/3, ...",
        default="0",
        unit="1",
        zero=True,
        maximum=5.0,
        group="Model by name",
    )
    adapter_link: MaybeNumber = option(
        "rate",
        "bandwidth of an adapter's transfer from the host, per chip; by default that of the chip's PCIe or "
        "superchip link",
        default=None,
        unit="B/s",
        group="Model by name",
    )

    def check_options(self) -> None:
        """Refuse options of several adapters without as many.

        Raises:
            InputError: such options.
        """
        several = ("resident_adapters", "adapter_popularity", "adapter_link")
        if self.adapter is None:
            self.refuse("adapters", *several, allowed="only with `adapter`, which says their shape")
        if self.adapters == 1:
            self.refuse(*several, allowed="only with `adapters`, of several")
        require(
            self.resident_adapters is None or self.resident_adapters <= self.adapters,
            what="resident_adapters",
            given=self.resident_adapters,
            allowed=f"up to {self.adapters}, all adapters",
        )
        super().check_options()


def with_adapter(model: arch.AnyModel, question: AdapterQuestion, watch: Watch) -> arch.AnyModel:
    """The model with the adapter of a question; a warning where the adapter says that it belongs to another one.

    Raises:
        InputError: an aggregate model.
        ConfigError, HubError: the adapter cannot be read, or changes modules that the model does not have.
    """
    number, resident = question.adapters, question.resident_adapters
    if question.adapter is None:
        return model
    if not isinstance(model, arch.Model):
        raise InputError(what="adapter", given=question.adapter, allowed="a model whose layers are known")
    adapter = hub.read_adapter(question.adapter, offline=question.offline)
    if adapter.base and not arch_lookup.is_called(model, adapter.base):
        watch.warn(f"the adapter {adapter.name} was made for {adapter.base}, not for {model.name}")
    built = arch.apply_adapter(model, adapter)
    if number > 1 and built.adapter is not None:
        require(
            not any(module.copies > 1 for module in built.adapter.modules),
            what="adapters",
            given=number,
            allowed="1 where experts have adapters",
        )
        several = replace(
            built.adapter,
            number=number,
            resident=resident or number,
            popularity=question.adapter_popularity,
            link_bytes_per_s=question.adapter_link,
        )
        built = replace(built, adapter=several)
    watch.adapter = built.adapter
    return built


def adapter_of_folder(name: str) -> hub.Adapter | None:
    """The adapter of a file, or of a folder that holds one and no model; None for everything else."""
    path = Path(name).expanduser()
    found = is_file(path / checkpoint.ADAPTER) and not is_file(path / "config.json")
    found = found or (path.name == checkpoint.ADAPTER and is_file(path))
    return hub.read_adapter(str(path)) if found else None


def adapter_of_repository(name: str, *, offline: bool) -> hub.Adapter | None:
    """The adapter of a repository of the Hub; None where there is none."""
    try:
        return hub.read_adapter(name, offline=offline)
    except (HubError, ConfigError):
        return None


_LIKE = 0.02  # relative difference of vocabularies that are one tokenizer's, padded in unlike ways


@group
class DraftQuestion(AdapterQuestion):
    """A question whose tokens may be drafted by another model."""

    draft: str | None = option(
        "text",
        "draft model of speculative decoding: catalogue name, Hugging Face id, file or folder, of a small model or "
        "of an EAGLE head; by default the model's own layer for multi-token prediction, or one like its last",
        default=None,
        group="Model by name",
    )


def with_draft(model: arch.AnyModel, question: DraftQuestion, speculate: str | None, watch: Watch) -> arch.AnyModel:
    """The model with the draft model of a question, which is noted for the answer.

    Raises:
        InputError: a draft model without speculation, or of which only the totals are known.
        RacklineError: as `rackline.arch.find_model`.
    """
    if question.draft is None:
        if speculate is not None and isinstance(model, arch.Model) and not model.mtp_layers:
            watch.warn(
                f"{model.name} has no layer for multi-token prediction: drafts are made as by a head of one layer like "
                "its last; `draft` names another one"
            )
        return model
    if speculate is None:
        raise InputError(what="draft", given=question.draft, allowed="together with `speculate`")
    draft = lookup_of(question, watch).model(question.draft)
    if not isinstance(draft, arch.Model) or not isinstance(model, arch.Model):
        raise InputError(what="draft", given=question.draft, allowed="a model whose layers are known, for such a model")
    if draft.num_layers > 1 and abs(draft.vocab_size / model.vocab_size - 1.0) > _LIKE:
        watch.warn(
            f"{draft.name} has a vocabulary of {draft.vocab_size:,} tokens, {model.name} {model.vocab_size:,}: engines "
            "refuse drafts of another tokenizer"
        )
    if "=" not in speculate:
        watch.warn(
            f"tokens per step are those measured with heads made for their models, not with {draft.name}; give them "
            "with `speculate`, such as 3=2.4"
        )
    return replace(model, draft=draft)


_STORED = ("-nvfp4", "-fp8", "-fp4", "-bf16")
_TUNED = ("-instruct", "-it", "-chat", "-hf")


def checkpoints_of(model: ModelLike, lookup: Lookup) -> launch_plan.Checkpoints:
    """What an engine can load for a model: the id that was given, else the alias that fits the name best.

    An alias that ends in Instruct, it or Chat stands before the base model of the same name.
    """
    if not isinstance(model, str):
        return launch_plan.Checkpoints(released=str(getattr(model, "name", model)))
    found = lookup.find(model)
    stored = {one.id: (one.native_precision or "").partition(",")[0] for one in found.record.checkpoints}
    quantised = {name: dtype.removesuffix("_block") for name, dtype in stored.items() if dtype}
    if found.origin.kind in ("hub", "cache"):
        released = found.origin.used
    elif "/" in model or model.endswith((".json", ".toml")):
        released = model.removesuffix("/config.json")
    else:
        ids = [alias for alias in found.record.aliases if "/" in alias and alias not in quantised]
        same = [alias for alias in ids if _plain_name(alias) == _plain_name(model)] or ids
        tuned = [alias for alias in same if alias.lower().endswith(_TUNED)]
        released = next(iter(tuned or same), model)
    return launch_plan.Checkpoints(
        released=released,
        others={dtype: name for name, dtype in quantised.items() if _plain_name(name) == _plain_name(released)},
    )


def _plain_name(name: str) -> str:
    """Without organisation, data type and what says that it was tuned.

    >>> _plain_name("meta-llama/Llama-3.1-70B-Instruct") == _plain_name("llama-3.1-70b")
    True
    """
    found = name.rpartition("/")[2].lower().removeprefix("meta-").removeprefix("nvidia-")
    for ending in (*_STORED, *_TUNED):
        found = found.removesuffix(ending)
    return found
