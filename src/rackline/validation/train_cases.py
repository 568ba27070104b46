"""Training cases: their layouts, the parts of all steps as arrays, and predicted step times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from rackline.arch import LayerGroup, Model
from rackline.catalog import names
from rackline.errors import InputError, LayoutError, RacklineError, unknown_name
from rackline.passes.features import Array
from rackline.serving.stack import version_numbers
from rackline.training.memory import cheapest_recompute, train_memory
from rackline.training.runs import RECOMPUTE, Runs, TrainLayout
from rackline.training.stack import TrainingStack, lookup, training_stack
from rackline.training.step import StepParts, Times, step_parts, step_time
from rackline.training.system import LORA_TARGETS, MicroBatch, TrainingSystem
from rackline.validation.cases import Case
from rackline.validation.resolve import Resolver, layout_parts, model_key

_COUNTS = ("tp", "pp", "virtual_pp", "cp", "ep", "expert_tp", "moe_tp", "dp", "fsdp")
SHARDING = {"full-shard": 3, "fsdp": 3, "shard-grad-op": 2, "zero-3": 3, "zero-2": 2, "zero-1": 1, "none": 0}
WIDE_EXPERTS = 16
"""Most experts per layer, each as wide as a dense block, for which tensor parallelism still splits experts."""


def train_stack_name(case: Case, generation: str) -> str:
    """Catalogue name of the training stack of a case, by stack, release and chip generation."""
    name = case.stack.lower().replace(" ", "-").replace("_", "-")
    given = version_numbers(case.stack_version)
    for known in names("training_stacks"):
        for one in training_stack(known).evidence.stands_for:
            if one.stack != name or (one.generation is not None and one.generation != generation):
                continue
            if one.before is None or (given and given < version_numbers(one.before)):
                return known
    return name


def train_layout(case: Case, model: Model, *, interleaves: bool = True) -> TrainLayout:
    """The layout of a case.

    A missing virtual_pp is the number of layers or none; a missing micro_batch is 1; an unknown recompute is none
    until memory is counted; a missing expert_tp is tp for few wide experts, else 1; dp follows from the chips.

    Args:
        interleaves: whether a run whose virtual_pp is not stated had one.

    Raises:
        LayoutError: parts contradict each other or do not fit the chips.
    """
    parts = layout_parts(case, _COUNTS, ("sharding",))
    tp, pp, cp = parts.get("tp", 1), parts.get("pp", 1), parts.get("cp", 1)
    if case.num_chips % (tp * pp * cp):
        raise LayoutError(
            what="layout",
            given=f"tp={tp},pp={pp},cp={cp}",
            allowed=f"tp·pp·cp = {tp * pp * cp} to divide num_chips={case.num_chips}",
        )
    dp = case.num_chips // (tp * pp * cp)
    moe = model.moe()
    wide = moe is not None and moe.num_experts <= WIDE_EXPERTS and moe.d_expert >= model.d_model
    virtual_pp = parts.get("virtual_pp", max(1, model.num_layers // pp) if interleaves else 1)
    return TrainLayout(
        tp=tp,
        pp=pp,
        virtual_pp=virtual_pp if pp > 1 else 1,
        cp=cp,
        ep=parts.get("ep", 1) if moe else 1,
        expert_tp=parts.get("expert_tp", parts.get("moe_tp", tp if wide else 1)) if moe else 1,
        dp=dp,
        zero=_zero(case, parts),
        fsdp=parts["fsdp"] if 1 < parts.get("fsdp", 1) < dp else 0,
        micro_batch=case.whole("micro_batch", 1),
        recompute=_recompute(case),
    )


def _zero(case: Case, parts: dict[str, int]) -> int:
    sharding = case.layout.get("sharding")
    if sharding is None:
        return 3 if parts.get("fsdp", 1) > 1 else 1
    name = str(sharding).lower().replace("_", "-")
    if name not in SHARDING:
        raise unknown_name("layout.sharding", sharding, SHARDING, LayoutError)
    return SHARDING[name]


def _recompute(case: Case) -> str:
    name = case.text("recompute", "unknown").lower()
    if name not in (*RECOMPUTE, "unknown"):
        raise unknown_name("recompute", name, (*RECOMPUTE, "unknown"))
    return "none" if name == "unknown" else name


def truncated(model: Model, num_layers: int) -> Model:
    """The model with fewer or more layers: a proxy that papers and recipes measure instead of the whole.

    Leading layers are kept; additional layers are like the last one.
    """
    groups: list[LayerGroup] = []
    left = num_layers
    last = len(model.layer_groups) - 1
    for index, group in enumerate(model.layer_groups):
        count = left if index == last else min(group.count, left)
        if count > 0:
            groups.append(replace(group, count=count))
        left -= count
    return replace(model, layer_groups=tuple(groups))


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
        peak_bytes: predicted peak of what is allocated on the fullest chip, without driver and fragments, (cases,)
            [bytes].
    """

    cases: tuple[Case, ...]
    stacks: tuple[str, ...]
    parts: StepParts
    generations: tuple[str, ...]
    dtypes: tuple[str, ...]
    grace: Array
    measured_s: Array
    peak_bytes: Array

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
                [lookup(stack.kernels.gemm_slowdown, g, d) for g, d in zip(self.generations, self.dtypes, strict=True)]
            ),
            "head": np.array([lookup(stack.kernels.gemm_slowdown, g, "bf16") for g in self.generations]),
            "experts": np.array([lookup(stack.kernels.expert_slowdown, g, "*") for g in self.generations]),
            "flash": np.array([stack.kernels.flash_of(g) for g in self.generations]),
            "host": np.where(self.grace, stack.host.grace_over_x86, 1.0),
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
            peak_bytes=self.peak_bytes[rows],
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
    plain = (
        "scatter",
        "gather",
        "shard_gather",
        "copies",
        "optimizer",
        "hop",
        "micro_batches",
        "layers",
        "gather_bytes",
    )
    plain += ("trained_bytes",)
    return StepParts(
        runs=runs,
        chip=first.chip,
        dtype=first.dtype,
        seconds=table([p.seconds for p in all_parts]),
        again={name: table([p.again[name] for p in all_parts]) for name in first.again},
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


def prepare_training(resolver: Resolver, cases: Sequence[Case]) -> tuple[TrainCases | None, dict[int, RacklineError]]:
    """(prepared cases, None if there are none; `id` of each case that cannot be predicted, with the reason)."""
    lost: dict[int, RacklineError] = {}
    systems: dict[tuple[object, ...], TrainingSystem] = {}
    groups: dict[tuple[object, ...], list[tuple[Case, TrainLayout, float]]] = {}
    for case in cases:
        try:
            key = _system_key(resolver, case)
            system = systems.get(key) or _system(resolver, case, find_stack(str(key[0])))
            ready = (
                case,
                _layout(case, system),
                measured_step_s(case),
            )  # refused before it has a group
            groups.setdefault(key, []).append(ready)
            systems[key] = system
        except RacklineError as error:
            lost[id(case)] = error
    if not groups:
        return None, lost
    flat = [(systems[key], str(key[0]), *one) for key, group in groups.items() for one in group]
    chips = [system.cluster.chip for system, *_ in flat]
    batches = [
        MicroBatch(system=systems[key], runs=Runs.of([layout for _, layout, _ in group]))
        for key, group in groups.items()
    ]
    found = TrainCases(
        cases=tuple(case for _, _, case, _, _ in flat),
        stacks=tuple(stack for _, stack, _, _, _ in flat),
        parts=joined([step_parts(batch) for batch in batches]),
        generations=tuple(chip.generation for chip in chips),
        dtypes=tuple(system.precision.gemm for system, *_ in flat),
        grace=np.array([chip.grace for chip in chips]),
        measured_s=np.array([measured_s for *_, measured_s in flat]),
        peak_bytes=np.concatenate([train_memory(batch).allocated for batch in batches]),
    )
    return found, lost


def _system_key(resolver: Resolver, case: Case) -> tuple[object, ...]:
    """What cases of one system have in common; the name of its training stack comes first."""
    return (
        "unit" if resolver.calibration_name == "unit" else train_stack_name(case, resolver.chip_of(case).generation),
        model_key(case),
        resolver.cluster_of(case),
        case.precision,
        case.text("variant"),
        *(case.number(key) for key in ("seq_len", "global_batch")),
        *(case.values.get(key) for key in ("num_layers", *_TUNED)),
    )


def _system(resolver: Resolver, case: Case, stack: TrainingStack) -> TrainingSystem:
    model = resolver.model(case)
    if isinstance(model, Model) and case.values.get("num_layers"):
        model = truncated(model, int(case.number("num_layers")))
    targets = case.text("lora_targets", "all")
    if targets not in LORA_TARGETS:
        raise InputError(what="lora_targets", given=targets, allowed=", ".join(LORA_TARGETS))
    return TrainingSystem.of(
        model,
        resolver.cluster_of(case),
        stack=stack,
        precision=case.precision,
        frozen=case.text("frozen") or None,
        global_batch_sequences=case.whole("global_batch"),
        seq_len=case.whole("seq_len"),
        # those of the model, unless the case says otherwise
        mtp_layers=0 if {"mtp", "w/o"} <= {*case.text("variant").lower().split()} else None,
        lora_rank=case.whole("lora_rank"),
        lora_targets=targets,
        packed_len=case.number("packed_len", 0.0),
    )


def _layout(case: Case, system: TrainingSystem) -> TrainLayout:
    """The layout of a case, with the cheapest recomputation that fits by the memory model where none is stated."""
    layout = train_layout(case, system.model, interleaves=system.stack.evidence.interleaves_unstated)
    if case.text("recompute", "unknown").lower() != "unknown":
        return layout
    batch = MicroBatch(system=system, runs=Runs.of([layout]))
    return replace(layout, recompute=cheapest_recompute(batch, system.cluster.chip.hbm_bytes)[0])


def find_stack(name: str) -> TrainingStack:
    """A training stack of the catalogue; the default one if the name is unknown."""
    return training_stack(name if name in ("unit", *names("training_stacks")) else "")


def predict_training(resolver: Resolver, cases: Sequence[Case]) -> list[dict[str, float] | RacklineError]:
    """Step time of each case under its own training stack [s], as which every measured time and rate is scored, and its
    peak [bytes]."""
    ready, lost = prepare_training(resolver, cases)
    if ready is None:
        return [lost[id(case)] for case in cases]
    rows = zip(ready.cases, shipped_steps(ready), ready.peak_bytes.tolist(), strict=True)
    found = {id(case): {"step_s": step, "peak_bytes": peak} for case, step, peak in rows}
    return [lost[id(case)] if id(case) in lost else found[id(case)] for case in cases]


def shipped_steps(ready: TrainCases) -> list[float]:
    """Predictions under the stacks of the catalogue [s]."""
    return [float(value) for value in ready.predict({name: find_stack(name) for name in dict.fromkeys(ready.stacks)})]
