"""Write fitted training stacks as catalogue files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path

from rackline.catalog import training_stack_record
from rackline.files import write_text
from rackline.training.stack import IDEAL, TrainingStack

_TABLES = ("gemm_slowdown", "expert_slowdown")
_RARE = (
    "forwards_tokens",
    "optimizer",
    "dispatch_bytes",
    "activation_input_bytes",
    "attention_output_bytes",
    "numbers_of",
    "stated",
)
"""Habits that a file states only where they are not the common ones."""
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


def write_stacks(stacks: Mapping[str, TrainingStack], folder: Path) -> list[Path]:
    """Write one file a stack; habits and their sources are kept as they are, fitted numbers are replaced.

    Args:
        folder: an existing folder.
    """
    written: list[Path] = []
    for name, stack in stacks.items():
        path = folder / f"{name}.toml"
        write_text(path, stack_toml(stack), what="--write-stacks")
        written.append(path)
    return written


def stack_toml(stack: TrainingStack) -> str:
    """The file of a stack."""
    record = training_stack_record(stack.name)
    lines = [
        "# Written by `rackline validate --write-stacks`; change the cases or the fit, not this file.",
        f'name = "{stack.name}"',
        f'full_name = "{record.full_name}"',
        f"aliases = [{_quoted(record.aliases)}]",
        f'kernels = "{stack.kernels}"',
    ]
    for habit in _HABITS[2:]:
        if habit in _RARE and getattr(stack, habit) == getattr(IDEAL, habit):
            continue
        lines.append(f"{habit} = {_value(getattr(stack, habit))}")
    fitted: list[str] = []
    for table in _TABLES:
        entries = getattr(stack, table)
        fitted.append(f"{table}.*")
        lines.append(f"{table} = [")
        lines += [
            f'    {{generation = "{generation}", dtype = "{dtype}", ratio = {ratio:.4g}}},'
            for (generation, dtype), ratio in entries.items()
        ]
        lines.append("]")
    for one in fields(TrainingStack):
        if one.name in (*_HABITS, *_TABLES):
            continue
        if one.name not in stack.stated:
            fitted.append(one.name)
        lines.append(f"{one.name} = {getattr(stack, one.name):.4g}".replace("e-0", "e-"))
    kept = [source for source in record.sources if not set(source.fields) & set(fitted)]
    for source in kept:
        lines += ["", "[[sources]]", f"fields = [{_quoted(source.fields)}]"]
        lines += [f'kind = "{source.kind.value}"']
        keys = [key for key in ("citation", "url", "accessed", "note") if getattr(source, key)]
        lines += [f'{key} = "{getattr(source, key)}"' for key in keys]
    lines += [
        "",
        "[[sources]]",
        f"fields = [{_quoted(fitted)}]",
        'kind = "derived"',
        'citation = "fitted to published training steps of dgxc-benchmarking, Megatron-Bridge, Megatron-LM and LLM '
        'Foundry; see docs/accuracy.md"',
    ]
    return "\n".join(lines) + "\n"


def _value(value: bool | float | str | tuple[str, ...]) -> str:
    """A habit as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{_quoted(value)}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
