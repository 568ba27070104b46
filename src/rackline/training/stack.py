"""A training stack: the overheads of a framework around its kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from rackline.catalog import names
from rackline.catalog.base import (
    CatalogueObject,
    Fraction,
    Name,
    NonNegative,
    Positive,
    Record,
    Text,
    stated,
    written_as,
)
from rackline.catalog.load import read_object
from rackline.errors import PrecisionError, UnknownNameError, nearest_name
from rackline.hardware import Chip
from rackline.training.contexts import ContextName, context_method
from rackline.training.runs import SCHEDULES, IntArray, Recompute, Runs, ScheduleName

Key = tuple[str, str]


Slowdown = Annotated[float, Field(ge=0.5, le=10.0)]


class SlowdownRecord(Record):
    """Time of products inside a training step over that of the same products measured alone.

    Args:
        generation: Generation of chips, or "*" for all.
        dtype: Data type of the products, or "*".
        ratio: Time over time [1].
    """

    generation: Text
    dtype: Text
    ratio: Slowdown


class StandsForRecord(Record):
    """Cases of a stack that this record describes in place of the record of that name.

    Args:
        stack: As cases name it.
        before: Versions below this one, such as "26.6"; all, and those that are not stated, when it is missing.
        generation: Chips of this generation; all when it is missing.
    """

    stack: Name
    before: Text | None = None
    generation: Text | None = None


class OwnNumberRecord(Record):
    """A number that is fitted for this stack by itself, where the others share one.

    Args:
        key: Its dotted key, such as kernels.elementwise.
        prior: Value that it is drawn to.
        spread: How far it may lie from the prior before that costs as much as one misfit, in ln.
        low, high: Bounds.
    """

    key: Text
    prior: Positive
    spread: Positive
    low: Positive
    high: Positive


def by_key(table: Iterable[SlowdownRecord]) -> dict[Key, float]:
    """(generation, data type) → time over time."""
    return {(one.generation, one.dtype): one.ratio for one in table}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingKernels:
    """The kernels of a training stack: which they are, and how much slower they run in a step than alone.

    Args:
        calibration: Calibration that the kernels start from.
        flash_attention: Whether attention is one fused kernel.
        eager: Whether every small operation is a kernel of its own that keeps its inputs, as in PyTorch without a
            compiler; else norms, rotations and activations are fused.
        gemm_slowdown: Products in a step over products alone, by generation and data type [1].
        expert_slowdown: The same for grouped products of experts, beyond gemm_slowdown, by generation [1].
        flash_forward: Fused attention in a step over the kernel of serving, forward, on chips before Hopper [1].
        flash_backward: The backward pass of fused attention over that, as its kernel reaches less of the peak [1].
        flash_since_hopper: The same from Hopper on: FlashAttention-2 over the newest kernels, as it does not use the
            asynchronous units; 1 for stacks that have the newest kernels [1].
        flash_since_blackwell: The same from Blackwell on, where it is no faster than on Hopper: it does not use the
            tensor memory [1].
        elementwise: Bytes of small kernels over those of perfectly fused ones [1].
        quantise: Bytes of casts over those of one pass [1].
        permute: Passes of routed tokens through memory [count].
        unfused: Passes of expert activations through memory where experts have biases [count].
        state: Time of recurrent layers over their products at the speed of a plain product [1].
    """

    calibration: Text = stated("unit")
    flash_attention: bool = True
    eager: bool = False
    gemm_slowdown: Mapping[Key, float] = written_as(tuple[SlowdownRecord, ...], by_key, {}, needed=True)
    expert_slowdown: Mapping[Key, float] = written_as(tuple[SlowdownRecord, ...], by_key, {})
    flash_forward: Positive = 1.0
    flash_backward: Positive = 1.0
    flash_since_hopper: Positive = 1.0
    flash_since_blackwell: Positive = 1.0
    elementwise: NonNegative = 1.0
    quantise: NonNegative = 1.0
    permute: NonNegative = 1.0
    unfused: NonNegative = 1.0
    state: NonNegative = 1.0

    def gemm(self, chip: Chip, dtype: str) -> float:
        """Return the slowdown of products of a data type on a chip [1]."""
        return lookup(self.gemm_slowdown, chip.generation, dtype)

    def experts(self, chip: Chip) -> float:
        """Return the further slowdown of grouped products of experts [1]."""
        return lookup(self.expert_slowdown, chip.generation, "*")

    def flash(self, chip: Chip) -> float:
        """Return how many times as long fused attention takes in a step as its kernel alone, forward [1]."""
        return self.flash_of(chip.generation)

    def flash_of(self, generation: str) -> float:
        """Return the same by generation: one kernel before Hopper under every stack, what each has since."""
        if generation in BEFORE_HOPPER:
            return self.flash_forward
        return self.flash_since_blackwell if generation in SINCE_BLACKWELL else self.flash_since_hopper


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCommunication:
    """How a training stack exchanges data between chips, and how much of that it does not hide behind compute.

    Args:
        tensor_exposed, context_exposed: Share of these collectives that does not hide behind compute [1].
        expert_inside, expert_outside: Time of the expert exchange over its bytes at the speed of the link, within and
            across scale-up domains [1].
        pipeline_exposed: Share of the sends between stages that does not hide behind other micro-batches [1].
        data_exposed: Visible time of the exchange of gradients that are not sharded (ZeRO-0 and 1), over the time of
            the links alone; above 1 where they are slower [1].
        shard_exposed: The same of sharded weights and gradients (ZeRO-2 and 3) [1].
        forwards_tokens: Whether a token crosses to a scale-up domain once, however many of its experts live there.
        dispatch_bytes: An element of a token on its way to experts whose products run in 8 bits [bytes].
    """

    tensor_exposed: Fraction = 1.0
    context_exposed: Fraction = 1.0
    expert_inside: NonNegative = 1.0
    expert_outside: NonNegative = 1.0
    pipeline_exposed: Fraction = 1.0
    data_exposed: NonNegative = 1.0
    shard_exposed: Fraction = 1.0
    forwards_tokens: bool = True
    dispatch_bytes: Positive = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingHost:
    """What the host of a training stack needs to launch a step.

    Args:
        dense_s, moe_s, expert_s, state_s: Time to launch a dense layer, a mixture layer, one local expert of it, a
            recurrent layer, forward and backward [s].
        grace_over_x86: The same times on chips whose host is a Grace CPU with graphs captured, over those of an x86
            host [1].
        fixed_s: Time of a step that nothing else explains: data loading, logging, synchronisation [s].
        graphed_mixtures: Labels of data types in which a whole step of a mixture is one captured graph, which the host
            launches once.
    """

    dense_s: NonNegative = 0.0
    moe_s: NonNegative = 0.0
    expert_s: NonNegative = 0.0
    state_s: NonNegative = 0.0
    grace_over_x86: Positive = 1.0
    fixed_s: NonNegative = 0.0
    graphed_mixtures: tuple[Text, ...] = ()

    def over_x86(self, chip: Chip) -> float:
        """Return how many times as long the host beside a chip takes as a plain x86 host [1]."""
        return self.grace_over_x86 if chip.grace else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingParallelism:
    """How a training stack spreads a model over chips.

    Args:
        schedules: Pipeline schedules that it has.
        sequence_parallel: Whether what lies between tensor-parallel blocks is spread over tp as well.
        context: How chips that share a sequence attend to it: ring, all-gather or ulysses.
        zero: What data parallelism shards by default.
        fsdp2: Whether it is built on PyTorch's FSDP2. Sharded weights are the fp32 ones that the optimiser updates;
            gradients are allocated by the backward pass and freed behind the update; in a pipeline, a stage gathers
            weights and scatters gradients once a step and holds both whole in between, and the last one keeps the
            logits of every micro-batch. Else bf16 weights stand beside those of the optimiser, the buffer of the
            gradients stays, and weights and gradients are exchanged in every micro-batch.
        hybrid_shards: Whether weights can be sharded over the replicas of one scale-up domain and copied to the others.
    """

    schedules: tuple[ScheduleName, ...] = stated(SCHEDULES)
    sequence_parallel: bool = True
    context: ContextName = "ring"
    zero: Annotated[int, Field(ge=0, le=3)] = 1
    fsdp2: bool = False
    hybrid_shards: bool = False

    def zero_between(self, runs: Runs) -> IntArray:
        """Return the ZeRO level between two micro-batches; under FSDP2 in a pipeline only optimiser states stay cut.

        Sources: torch/distributed/pipelining/stage.py @0138610, backward_maybe_with_nosync: neither gradients are
            reduced nor weights sharded again before the last backward pass; torchtitan @9dec370, parallelize_llama.py:
            nor are weights after a forward pass under a pipeline.
        """
        return np.where(self.fsdp2 & (runs.pp > 1), np.minimum(runs.zero, 1), runs.zero)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMemory:
    """What a training stack stores, in which sizes, and what it computes again instead.

    Args:
        optimizer: Optimiser by default, with the data type of its moments.
        gradient_bytes: A gradient as it is stored and exchanged [bytes].
        logit_bytes: What the loss holds at once of a logit, in all its copies [bytes].
        activation_input_bytes, attention_output_bytes: An element of what an activation function starts from, and of
            what attention puts out, as it is kept where products run in 8 bits [bytes].
        recompute: Kinds of recomputation that it has and that are usual with it, the cheapest first.
    """

    optimizer: Text = "adam"
    gradient_bytes: Positive = 4.0
    logit_bytes: Positive = 8.0
    activation_input_bytes: Positive = 2.0
    attention_output_bytes: Positive = 2.0
    recompute: tuple[Recompute, ...] = ("none", "selective", "modules", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEvidence:
    """Which published runs a training stack describes, and which of its numbers are fitted to them.

    Args:
        family: Stacks whose published runs went alike and are measured together (`rackline.training.practice`); none
            where the record describes the runs of one team, whose steps are as they were run, and on TPUs.
        trained: Models that its authors trained with it.
        stands_for: Cases of other names, versions or chips that it describes.
        interleaves_unstated: Whether a case whose source states no virtual_pp is taken to have had a part a layer; else
            it had none.
        numbers_of: Stack whose own fitted numbers it takes, where too few steps of its own are published to fit.
        stated: Dotted keys of numbers that its authors state, which no fit changes.
        own: Numbers that are fitted for it alone.
    """

    family: str = ""
    trained: tuple[Text, ...] = ()
    stands_for: tuple[StandsForRecord, ...] = ()
    interleaves_unstated: bool = True
    numbers_of: str = ""
    stated: tuple[Text, ...] = ()
    own: tuple[OwnNumberRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStack(CatalogueObject):
    """A training stack: its habits, and numbers fitted to published runs, in one record for each subject.

    Args:
        is_default: Whether it is taken where no stack is named; true for one.
        is_rl_default: Whether it is taken instead in steps of reinforcement learning; true for one.
        default_on: Families of chip generations on which it is taken instead.
        kernels: Its kernels, and how much slower they run in a step than alone.
        communication: Exchange between chips, and how much of it shows.
        host: Time of the host.
        parallelism: How it spreads a model over chips.
        memory: What it stores, in which sizes.
        evidence: Which published runs it describes, and how its numbers are fitted to them.
    """

    is_default: bool = False
    is_rl_default: bool = False
    default_on: tuple[Text, ...] = ()
    kernels: TrainingKernels = stated(TrainingKernels())
    communication: TrainingCommunication = TrainingCommunication()
    host: TrainingHost = TrainingHost()
    parallelism: TrainingParallelism = stated(TrainingParallelism())
    memory: TrainingMemory = TrainingMemory()
    evidence: TrainingEvidence = TrainingEvidence()

    def with_values(self, values: Mapping[str, object]) -> TrainingStack:
        """Return the stack with other values of its records.

        Args:
            values: by dotted key, such as host.dense_s.

        Raises:
            AttributeError, TypeError: a key that the stack does not have.

        >>> IDEAL.with_values({"host.dense_s": 1e-3, "memory.gradient_bytes": 2.0}).host.dense_s
        0.001
        """
        changes: dict[str, dict[str, object]] = {}
        for key, value in values.items():
            record, _, field = key.partition(".")
            changes.setdefault(record, {})[field] = value
        records = {record: replace(getattr(self, record), **fields) for record, fields in changes.items()}
        return replace(self, **records)

    def kinds_of_recompute(self, asked: Iterable[str] = ()) -> list[str]:
        """List the kinds that a search looks at, the cheapest first, without scores that no kernel writes out.

        Args:
            asked: in place of the stack's own.
        """
        kinds = list(asked) or self.memory.recompute
        return [name for name in kinds if name != "selective" or not self.kernels.flash_attention] or ["none"]


def with_context(stack: TrainingStack, name: str) -> TrainingStack:
    """Return the stack with another method of context parallelism.

    All of its time shows if the method does not run behind attention.

    Raises:
        InputError: the method is unknown.
    """
    method = context_method(name)
    shown = {} if method.hides else {"communication.context_exposed": 1.0}
    return stack.with_values({"parallelism.context": method.name, **shown})


BEFORE_HOPPER = ("volta", "ampere", "ada")
SINCE_BLACKWELL = ("blackwell", "blackwell-ultra", "rubin")
IDEAL = TrainingStack(name="ideal")
"""Every kernel at its peak, everything exposed: the roofline of a training step."""


def lookup(table: Mapping[Key, float], generation: str, dtype: str) -> float:
    """Most specific entry of a table by generation and data type; 1 if there is none."""
    for name in (generation, generation.split("-")[0], "*"):
        for key in ((name, dtype), (name, "*")):
            if key in table:
                return table[key]
    return 1.0


def training_stack(name: str = "") -> TrainingStack:
    """A stack by name or file, the default one without a name; "unit" is `IDEAL`.

    Raises:
        UnknownNameError: neither a name of the catalogue nor a file.
        CatalogError: a file that breaks the schema.
    """
    name = name or default_training_stack()
    known = names("training_stacks")
    if name == "unit":
        return IDEAL
    try:
        return read_object("training_stacks", TrainingStack, name)
    except UnknownNameError as error:
        near = nearest_name(name, (*known, "unit"))
        allowed = f"{', '.join(known)}, unit or a TOML file"
        if name.endswith(".toml"):
            raise
        raise UnknownNameError(what="stack", given=name, allowed=allowed, nearest=near) from error


def default_training_stack(generation: str = "", *, rl: bool = False) -> str:
    """Name of the stack that is taken where none is named, on chips of a generation.

    Args:
        rl: whether in steps of reinforcement learning.
    """
    stacks = [training_stack(name) for name in names("training_stacks")]
    on = [stack for stack in stacks if generation.split("-")[0] in stack.default_on]
    usual = [stack for stack in stacks if (stack.is_rl_default if rl else stack.is_default)]
    return (on or usual)[0].name


def stack_that_trained(model: str) -> str:
    """Name of the stack that the authors of a model trained it with; empty where none is known."""
    return next((name for name in names("training_stacks") if model in training_stack(name).evidence.trained), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPrecision:
    """Data types of one training run.

    Args:
        label: label that it was made from.
        gemm: data type of the products of linear layers; the head, router and attention run in bf16.
        quantised: whether inputs of products are cast from bf16 first.
        weight_bytes: a weight as the forward pass reads it [bytes].
        master_bytes: the copy of a weight that the optimiser updates; 0 if it updates the weight itself [bytes].
        moment_bytes: both moments of a weight [bytes].
        gather_bytes: a weight on the wire when sharded weights are gathered [bytes].
        dispatch_bytes, combine_bytes: an element of a token on its way to its experts and back; in the backward pass,
            of its gradient [bytes].
        activation_input_bytes: an input element of an activation function, as stored [bytes].
        attention_output_bytes: an element of the output of attention, as stored [bytes].
        frozen_bytes: a frozen weight as it is kept beside adapters (QLoRA), None where it is kept as it is multiplied
            [bytes].
    """

    label: str
    gemm: str = "bf16"
    quantised: bool = False
    weight_bytes: float = 2.0
    master_bytes: float = 4.0
    moment_bytes: float = 8.0
    gather_bytes: float = 2.0
    dispatch_bytes: float = 2.0
    combine_bytes: float = 2.0
    activation_input_bytes: float = 2.0
    attention_output_bytes: float = 2.0
    frozen_bytes: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def gemm_bytes(self) -> float:
        """Size of an element of a product's input [bytes]."""
        return {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "fp4": 0.5625}[self.gemm]

    @property
    def compute(self) -> str:
        """Peak that the products use."""
        return {"fp8_block": "fp8"}.get(self.gemm, self.gemm)

    @property
    def optimizer_bytes(self) -> float:
        """Master weight and moments of one weight [bytes]."""
        return self.master_bytes + self.moment_bytes


_LABELS = {
    "bf16": "bf16",
    "fp16": "bf16",
    "fp8": "fp8",
    "fp8-cs": "fp8",
    "fp8-tensor": "fp8",
    "fp8-mx": "mxfp8",
    "mxfp8": "mxfp8",
    "fp8-block": "fp8_block",
    "fp8_block": "fp8_block",
    "nvfp4": "fp4",
    "fp4": "fp4",
}
OPTIMIZERS = {"adam": 8.0, "adam-bf16": 4.0, "adam-8bit": 2.0, "momentum": 4.0, "muon": 4.0, "sgd": 0.0}
"""Bytes of the moments of one weight (ml-engineering, training/performance, section on memory)."""

FROZEN = {"nf4": 4.127 / 8.0}
"""Bytes of a frozen weight: NF4 in blocks of 64 with scales that are quantised again, 0.127 bits a weight (Dettmers et
al. 2023, QLoRA, arXiv:2305.14314, section 3)."""


def _check(what: str, name: str, known: Iterable[str], given: str) -> None:
    """Refuse a name that is not known, as it was given."""
    if name not in known:
        near = nearest_name(name, known)
        raise PrecisionError(what=what, given=given, allowed=", ".join(known), nearest=near)


def with_frozen(precision: TrainPrecision, frozen: str) -> TrainPrecision:
    """The precision with frozen weights kept in four bits: they are stored and gathered so, and products run in bf16.

    Args:
        frozen: of FROZEN.

    Raises:
        PrecisionError: the data type is unknown, or products do not run in bf16.
    """
    _check("frozen", frozen, FROZEN, frozen)
    if precision.quantised:
        raise PrecisionError(what="frozen", given=f"{frozen} with {precision.label}", allowed=f"{frozen} with bf16")
    return replace(precision, frozen_bytes=FROZEN[frozen], gather_bytes=FROZEN[frozen])


def train_precision(
    label: str, chip: Chip, optimizer: str | None = None, stack: TrainingStack = IDEAL
) -> TrainPrecision:
    """Data types of a label on a chip.

    Args:
        label: bf16, fp8 (one scale per tensor), fp8-block, mxfp8, nvfp4.
        optimizer: of OPTIMIZERS; that of the stack by default.
        stack: training stack, which determines what is sent and stored in eight bits if products run in eight bits.

    Raises:
        PrecisionError: the label or optimiser is unknown.

    mxfp8 and fp8 run on the same units at the same rate; block-scaled types need Blackwell, else they run as fp8 with
    scales of 128 × 128 weights (Hopper), else as bf16.
    """
    name = label.strip().lower()
    optimizer = optimizer or stack.memory.optimizer
    _check("precision", name, _LABELS, label)
    _check("optimizer", optimizer, OPTIMIZERS, optimizer)
    base = TrainPrecision(label=name, moment_bytes=OPTIMIZERS[optimizer])
    wanted = _LABELS[name]
    notes: list[str] = []
    if wanted == "fp4" and not chip.supports("fp4"):
        notes.append(f"{chip.name} has no fp4 multiply: products run in fp8")
        wanted = "fp8"
    if wanted == "mxfp8":
        wanted = "fp8" if chip.supports("fp4") or not chip.supports("fp8") else "fp8_block"
    if wanted != "bf16" and not chip.supports("fp8"):
        notes.append(f"{chip.name} has no fp8 multiply: products run in bf16")
        return replace(base, notes=tuple(notes))
    if wanted == "bf16":
        return base
    # with one scale a tensor the weights themselves are kept and gathered in eight bits
    stored = 1.0 if wanted == "fp8" and not name.startswith("mx") and name != "fp8-mx" else 2.0
    gather = 1.0 if wanted == "fp8" else 2.0
    return replace(
        base,
        gemm=wanted,
        quantised=True,
        weight_bytes=stored,
        gather_bytes=gather,
        dispatch_bytes=stack.communication.dispatch_bytes,
        activation_input_bytes=stack.memory.activation_input_bytes,
        attention_output_bytes=stack.memory.attention_output_bytes,
        notes=tuple(notes),
    )
