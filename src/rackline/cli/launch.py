"""Options of the launch commands. Everything heavy is imported where it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rackline.errors import InputError, nearest_names

if TYPE_CHECKING:
    from rackline.search import Plan
    from rackline.search.launch import LaunchCommand

STACKS = ("auto", "vllm", "sglang", "trtllm")


def read_stack(text: str | None) -> str | None:
    """Read --launch. Raises InputError on an unknown stack."""
    if text is not None and text not in STACKS:
        near = nearest_names(text, STACKS, 1)
        raise InputError(what="--launch", given=text, allowed=", ".join(STACKS), nearest=near[0] if near else "auto")
    return text


def launch_commands(answer: Plan, model: str, stack: str) -> list[LaunchCommand]:
    """Commands of a plan; the model by its Hugging Face id where the catalogue knows one."""
    from rackline.search.launch import plan_commands

    return plan_commands(answer, hugging_face_id(model), answer.calibration.name if stack == "auto" else stack)


def hugging_face_id(model: str) -> str:
    """The id to load: what was given if it is one, else the first of the catalogue's aliases, else the text."""
    if "/" in model:
        return model.removesuffix("/config.json") if model.endswith(".json") else model
    from rackline.cli.options import read_model_record

    return next((alias for alias in read_model_record(model).aliases if "/" in alias), model)
