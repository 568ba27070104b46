"""Prepared training cases: the parts of all steps as arrays, so that prediction and fit are array arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rackline.arch import Model
from rackline.errors import InputError, RacklineError
from rackline.hardware import Cluster
from rackline.passes import Calibration, calibration
from rackline.passes.features import Array
from rackline.training.adapters import LORA_TARGETS, LoraTargets
from rackline.training.memory import cheapest_recompute
from rackline.training.precision import TrainPrecision, train_precision, with_frozen
from rackline.training.runs import Runs, TrainLayout, replaced
from rackline.training.stack import (
    IDEAL,
    TrainingStack,
    default_training_stack,
    lookup,
    training_stack,
)
from rackline.training.step import StepParts, Times, step_parts, step_time
from rackline.training.work import MicroBatch
from rackline.validation.cases import Case, Unsupported
from rackline.validation.resolve import Resolver
from rackline.validation.train_layouts import mtp_layers, train_layout, train_stack_name, truncated


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCases:
    """Training cases that can be predicted, as columns.

    Args:
        cases: the cases, in the order of `parts`.
        stacks: name of the training stack of each case.
        parts: parts of one step of each case, before any parameter of a stack.
        generations, dtypes: chip generation and data type of matrix products, for slowdowns.
        grace: whether the host is a Grace CPU, by case.
        measured_s: measured step time, (cases,) [s].
    """

    cases: tuple[Case, ...]
    stacks: tuple[str, ...]
    parts: StepParts
    generations: tuple[str, ...]
    dtypes: tuple[str, ...]
    grace: Array
    measured_s: Array

    def predict(self, stacks: Mapping[str, TrainingStack]) -> Array:
        """Step time of each case under these stacks [s]."""
        found = np.empty(len(self.cases))
        for name in dict.fromkeys(self.stacks):
            rows = np.array([own == name for own in self.stacks])
            found[rows] = self.take(np.flatnonzero(rows)).predict_one(stacks[name])
        return found

    def predict_one(self, stack: TrainingStack) -> Array:
        """Step time of each case under one stack, whose numbers may be arrays over the cases [s]."""
        return step_time(self.parts, stack, self.scale(stack)).step

    def scale(self, stack: TrainingStack) -> dict[str, Array]:
        """Parameters that depend on chip and data type, by case."""
        return {
            "gemm": np.array(
                [lookup(stack.gemm_slowdown, g, d) for g, d in zip(self.generations, self.dtypes, strict=True)]
            ),
            "head": np.array([lookup(stack.gemm_slowdown, g, "bf16") for g in self.generations]),
            "experts": np.array([lookup(stack.expert_slowdown, g, "*") for g in self.generations]),
            "flash": np.array([stack.flash_of(g) for g in self.generations]),
            "host": np.where(self.grace, stack.host_grace, 1.0),
        }

    def take(self, rows: Array) -> TrainCases:
        """A selection of the cases."""
        index = [int(row) for row in rows]
        return TrainCases(
            cases=tuple(self.cases[i] for i in index),
            stacks=tuple(self.stacks[i] for i in index),
            parts=taken(self.parts, rows),
            generations=tuple(self.generations[i] for i in index),
            dtypes=tuple(self.dtypes[i] for i in index),
            grace=self.grace[rows],
            measured_s=self.measured_s[rows],
        )


def taken(parts: StepParts, rows: Array) -> StepParts:
    """A selection of the runs."""

    def pick(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value[rows]  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, Runs):
            return value.take(rows)
        if isinstance(value, Mapping):
            return {key: pick(one) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, tuple):
            return tuple(pick(one) for one in value)  # pyright: ignore[reportUnknownVariableType]
        return value

    return StepParts(**{f.name: pick(getattr(parts, f.name)) for f in fields(StepParts)})


def joined(all_parts: Sequence[StepParts]) -> StepParts:
    """The parts of several models, concatenated; parts that a model lacks take no time."""
    lengths = [len(parts.runs) for parts in all_parts]

    def column(values: Sequence[Any]) -> Array:
        return np.concatenate([np.broadcast_to(v, (n,)) for v, n in zip(values, lengths, strict=True)])

    def table(of: Sequence[Times]) -> Times:
        keys = dict.fromkeys(key for times in of for key in times)
        return {key: column([times.get(key, 0.0) for times in of]) for key in keys}

    runs = Runs(**{f.name: np.concatenate([getattr(p.runs, f.name) for p in all_parts]) for f in fields(Runs)})
    first = all_parts[0]
    plain = ("scatter", "gather", "shard_gather", "optimizer", "hop", "micro_batches", "layers", "gather_bytes")
    plain += ("trained_bytes",)
    return StepParts(
        runs=runs,
        chip=first.chip,
        dtype=first.dtype,
        seconds=table([p.seconds for p in all_parts]),
        core=table([p.core for p in all_parts]),
        modules=table([p.modules for p in all_parts]),
        ends=table([p.ends for p in all_parts]),
        host_layers=tuple(column([p.host_layers[i] for p in all_parts]) for i in range(4)),  # type: ignore[arg-type]
        **{name: column([getattr(p, name) for p in all_parts]) for name in plain},
    )


def measured_step_s(case: Case) -> float:
    """Step time from the measured quantity [s].

    FLOP per step follow the formulas with which the rates were published, with attention over the full square:
    model 72 B s L d² (1 + s/6d + V/12Ld), with full recompute 96 B s L d² (1 + s/6d + V/16Ld).

    Sources: Narayanan et al. 2021 (arXiv:2104.04473), equation 3.

    Raises:
        InputError: a FLOP rate was measured for a model that these formulas do not cover.
    """
    batch, seq, chips = case.number("global_batch"), case.number("seq_len"), case.num_chips
    if "step_s" in case.measured:
        return case.measured["step_s"]
    if "tokens_per_s_per_chip" in case.measured:
        return batch * seq / (case.measured["tokens_per_s_per_chip"] * chips)
    key = next(iter(case.measured))
    shape = case.architecture
    if shape is None or not all(isinstance(shape.get(k), int) for k in ("num_layers", "d_model", "vocab_size")):
        raise InputError(what=f"measured.{key}", given="a FLOP rate", allowed="only together with `architecture`")
    layers, width, vocab = (float(shape[k]) for k in ("num_layers", "d_model", "vocab_size"))  # type: ignore[arg-type]
    times, inner = (96.0, 16.0) if key.startswith("hardware") else (72.0, 12.0)
    flop = times * batch * seq * layers * width**2 * (1 + seq / (6 * width) + vocab / (inner * layers * width))
    return flop / (case.measured[key] * chips)


_TUNED = ("lora_rank", "lora_targets", "frozen", "packed_len")
"""Keys of fine-tuning, by which steps differ beside their layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    case: Case
    model: Model
    cluster: Cluster
    layout: TrainLayout
    precision: TrainPrecision
    stack: str
    measured_s: float


def prepare_training(resolver: Resolver, cases: Sequence[Case]) -> tuple[TrainCases | None, tuple[Unsupported, ...]]:
    """(prepared cases, None if there are none; cases that cannot be predicted, with the reason)."""
    ready: list[_Ready] = []
    unsupported: list[Unsupported] = []
    stacks: dict[str, TrainingStack] = {}
    for case in cases:
        try:
            ready.append(_ready(resolver, case, stacks))
        except RacklineError as error:
            unsupported.append(Unsupported.of(case, str(error), bad_input=True))
    groups: dict[tuple[object, ...], list[_Ready]] = {}
    for one in ready:
        case = one.case
        key = (
            case.model,
            one.model,
            one.cluster,
            one.precision,
            case.number("seq_len"),
            case.number("global_batch"),
            stacks[one.stack].kernels,
            stacks[one.stack].flash_attention,
            stacks[one.stack].sequence_parallel,
            stacks[one.stack].forwards_tokens,
            mtp_layers(case, one.model),
            *(case.values.get(key) for key in _TUNED),
        )
        groups.setdefault(key, []).append(one)
    numbers: dict[tuple[str, str], Calibration] = {}
    all_parts = [_group_parts(group, stacks, numbers) for group in groups.values()]
    flat = [one for group in groups.values() for one in group]
    if not flat:
        return None, tuple(unsupported)
    chips = [one.cluster.chip for one in flat]
    found = TrainCases(
        cases=tuple(one.case for one in flat),
        stacks=tuple(one.stack for one in flat),
        parts=joined(all_parts),
        generations=tuple(chip.generation for chip in chips),
        dtypes=tuple(one.precision.gemm for one in flat),
        grace=np.array([chip.grace for chip in chips]),
        measured_s=np.array([one.measured_s for one in flat]),
    )
    return found, tuple(unsupported)


def _ready(resolver: Resolver, case: Case, stacks: dict[str, TrainingStack]) -> _Ready:
    model = resolver.model(case)
    if not isinstance(model, Model):
        raise InputError(what="model", given=case.model, allowed="a model whose layers are known")
    if case.values.get("num_layers"):
        model = truncated(model, int(case.number("num_layers")))
    on = resolver.cluster_of(case)
    chip = on.chip
    name = "unit" if resolver.calibration_name == "unit" else train_stack_name(case, chip.generation)
    if name not in stacks:
        stacks[name] = find_stack(name)
    precision = train_precision(case.precision, chip, stack=stacks[name])
    if case.text("frozen"):
        precision = with_frozen(precision, case.text("frozen"))
    layout = train_layout(case, model)
    if case.text("recompute", "unknown").lower() == "unknown":
        layout = replaced(layout, recompute=_unknown_recompute(case, model, on, layout, precision, stacks[name]))
    return _Ready(
        case=case,
        model=model,
        cluster=on,
        layout=layout,
        precision=precision,
        stack=name,
        measured_s=measured_step_s(case),
    )


def _micro_batch(
    case: Case,
    model: Model,
    on: Cluster,
    layouts: Sequence[TrainLayout],
    precision: TrainPrecision,
    stack: TrainingStack,
) -> MicroBatch:
    return MicroBatch(
        model=model,
        runs=Runs.of(layouts),
        cluster=on,
        precision=precision,
        seq_len=int(case.number("seq_len")),
        flash=stack.flash_attention,
        sequence_parallel=stack.sequence_parallel,
        forwards_tokens=stack.forwards_tokens,
        mtp_layers=mtp_layers(case, model),
        lora_rank=int(case.number("lora_rank")) if case.values.get("lora_rank") else 0,
        lora_targets=_targets(case),
        packed_len=case.number("packed_len") if case.values.get("packed_len") else 0.0,
    )


def _targets(case: Case) -> LoraTargets:
    given = case.text("lora_targets", "all")
    for name in LORA_TARGETS:
        if name == given:
            return name
    raise InputError(what="lora_targets", given=given, allowed=", ".join(LORA_TARGETS))


def _unknown_recompute(
    case: Case, model: Model, on: Cluster, layout: TrainLayout, precision: TrainPrecision, stack: TrainingStack
) -> str:
    """The cheapest recomputation that fits by the memory model."""
    batch = _micro_batch(case, model, on, [layout], precision, stack)
    return cheapest_recompute(
        batch,
        global_batch_sequences=int(case.number("global_batch")),
        gradient_bytes=stack.gradient_bytes,
        hbm_bytes=batch.cluster.chip.hbm_bytes,
    )[0]


def find_stack(name: str) -> TrainingStack:
    """A training stack of the catalogue; the default one if the name is unknown."""
    from rackline.catalog import names

    if name == "unit":
        return IDEAL
    return training_stack(name if name in names("training_stacks") else default_training_stack())


def _group_parts(
    group: Sequence[_Ready],
    stacks: Mapping[str, TrainingStack],
    numbers: dict[tuple[str, str], Calibration],
) -> StepParts:
    first = group[0]
    chip = first.cluster.chip
    stack = stacks[first.stack]
    key = (stack.kernels, chip.name)
    if key not in numbers:
        numbers[key] = calibration(stack.kernels, chip)
    layouts = [one.layout for one in group]
    return step_parts(
        _micro_batch(first.case, first.model, first.cluster, layouts, first.precision, stack),
        calibration=numbers[key],
        global_batch_sequences=int(first.case.number("global_batch")),
    )
