"""Write fitted training stacks as catalogue files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rackline.errors import InputError
from rackline.files import rounded, toml_text, write_text
from rackline.plain import plain
from rackline.training.stack import IDEAL, TrainingStack

_TABLES = ("gemm_slowdown", "expert_slowdown")
_RARE = (
    "forwards_tokens",
    "graphed_mixtures",
    "interleaves_unstated",
    "hybrid_shards",
    "optimizer",
    "dispatch_bytes",
    "activation_input_bytes",
    "attention_output_bytes",
    "numbers_of",
    "stated",
)
_DESCRIBES = ("is_default", "default_on", "stands_for", "own")
"""Fields that describe the record itself and are not fitted."""
"""Properties that a file states only if they differ from the defaults."""
_HABITS = (
    "name",
    "kernels",
    "flash_attention",
    "sequence_parallel",
    "flash_since_hopper",
    "pipeline_exposed",
    "gradient_bytes",
    "zero",
    "fixed_s",
    "schedules",
    *_RARE,
)

_CITATION = (
    "fitted to published training steps of dgxc-benchmarking, Megatron-Bridge, Megatron-LM, LLM Foundry, MaxText and "
    "tpu-recipes; "
    "see docs/accuracy.md"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotWritten:
    """A stack whose file could not be written.

    Args:
        file: its file name.
        reason: why it could not be written.
        toml: its content.
    """

    file: str
    reason: str
    toml: str


def write_stacks(stacks: Mapping[str, TrainingStack], folder: Path) -> tuple[list[Path], list[NotWritten]]:
    """Write one file per stack, with the fitted parameters replaced and everything else kept.

    Args:
        folder: an existing folder.

    Returns:
        The files, and those that could not be written, with their content, because a fit takes minutes.
    """
    written: list[Path] = []
    failed: list[NotWritten] = []
    for name, stack in stacks.items():
        path, text = folder / f"{name}.toml", stack_toml(stack)
        try:
            write_text(path, text, what="--write-stacks")
            written.append(path)
        except InputError as error:
            failed.append(NotWritten(file=str(path), reason=str(error), toml=text))
    return written, failed


def stack_toml(stack: TrainingStack) -> str:
    """The file of a stack."""
    data: dict[str, Any] = {
        "name": stack.name,
        "full_name": stack.full_name,
        "aliases": stack.aliases,
        "kernels": stack.kernels,
    }
    for habit in _HABITS[2:]:
        if habit not in _RARE or getattr(stack, habit) != getattr(IDEAL, habit):
            data[habit] = getattr(stack, habit)
    described = {key: plain(getattr(stack, key)) for key in _DESCRIBES}
    data |= {key: value for key, value in described.items() if value}
    fitted = [f"{table}.*" for table in _TABLES]
    for table in _TABLES:
        entries: Mapping[tuple[str, str], float] = getattr(stack, table)
        data[table] = [
            {"generation": generation, "dtype": dtype, "ratio": rounded(ratio)}
            for (generation, dtype), ratio in entries.items()
        ]
    for one in fields(TrainingStack):
        if one.name not in data and one.name not in (*_HABITS, *_DESCRIBES, "sources"):
            data[one.name] = rounded(getattr(stack, one.name))
            if one.name not in stack.stated:
                fitted.append(one.name)
    kept = [source for source in stack.sources if not set(source.fields) & set(fitted)]
    data["sources"] = [source.model_dump(mode="json", exclude_none=True, exclude_defaults=True) for source in kept]
    data["sources"].append({"fields": fitted, "kind": "derived", "citation": _CITATION})
    comment = "Written by `rackline validate --write-stacks`; change the cases or the fit, not this file."
    return toml_text(data, [comment])
