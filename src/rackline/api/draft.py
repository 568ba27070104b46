"""The draft model of speculative decoding by name: a small model, or a head of one layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rackline.api.adapter import AdapterQuestion
from rackline.api.option import option
from rackline.api.question import question
from rackline.api.resolve import lookup_of
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.api.watch import Watch
    from rackline.arch import AnyModel

_LIKE = 0.02  # relative difference of vocabularies that are one tokenizer's, padded in unlike ways


@question
class DraftQuestion(AdapterQuestion):
    """A question whose tokens may be drafted by another model."""

    draft: str | None = option(
        "text",
        "draft model of speculative decoding: catalogue name, Hugging Face id, file or folder, of a small model or "
        "of an EAGLE head; by default the model's own layer for multi-token prediction, or one like its last",
        default=None,
        group="Model by name",
    )


def with_draft(model: AnyModel, question: DraftQuestion, speculate: str | None, watch: Watch) -> AnyModel:
    """The model with the draft model of a question, which is noted for the answer.

    Raises:
        InputError: a draft model without speculation, or of which only the totals are known.
        RacklineError: as `rackline.arch.find_model`.
    """
    from rackline.arch import Model

    if question.draft is None:
        if speculate is not None and isinstance(model, Model) and not model.mtp_layers:
            watch.warn(
                f"{model.name} has no layer for multi-token prediction: drafts are made as by a head of one layer like "
                "its last; `draft` names another one"
            )
        return model
    if speculate is None:
        raise InputError(what="draft", given=question.draft, allowed="together with `speculate`")
    draft = lookup_of(question, watch).model(question.draft)
    if not isinstance(draft, Model) or not isinstance(model, Model):
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
