"""What trains, and what of it: model, machines, framework, data types and batch; all but the layout, made once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from rackline.arch import AnyModel, Attention, LayerGroup, Model, Projection
from rackline.errors import InputError, require
from rackline.hardware import Cluster
from rackline.passes import Calibration, calibration, features as f
from rackline.passes.features import Array, as_array
from rackline.training.runs import Runs
from rackline.training.stack import (
    TrainingStack,
    TrainPrecision,
    default_training_stack,
    train_precision,
    training_stack,
    with_context,
    with_frozen,
)

LoraTargets = Literal["all", "attention", "qkv"]
LORA_TARGETS: tuple[LoraTargets, ...] = get_args(LoraTargets)
"""Products with adapters: all of attention and dense blocks, those of attention, or those that make queries, keys and
values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSystem:
    """Everything about a training run but its layout, put together once by `TrainingSystem.of`.

    Args:
        cluster: with links without latency where the kernels are ideal.
        stack: the framework around the kernels.
        calibration: numbers of its kernels on the chip.
        precision: data types, with what the stack sends and keeps in eight bits.
        global_batch_sequences: of a step [sequences].
        seq_len: [tokens].
        mtp_layers: multi-token-prediction layers, each with a head [count].
        expert_load: tokens of the busiest expert-parallel rank over the mean; 1 is balanced, and what a capacity factor
            drops is not counted [1].
        lora_rank: rank of adapters beside frozen weights; 0 trains all weights [count].
        lora_targets: products that have adapters.
        packed_len: length of the samples packed into a sequence, weighted by their tokens; attention stays within a
            sample. 0 for one sample a sequence [tokens].
    """

    model: Model
    cluster: Cluster
    stack: TrainingStack
    calibration: Calibration
    precision: TrainPrecision
    global_batch_sequences: int
    seq_len: int
    mtp_layers: int = 0
    expert_load: float = 1.0
    lora_rank: int = 0
    lora_targets: LoraTargets = "all"
    packed_len: float = 0.0

    @classmethod
    def of(  # noqa: PLR0913
        cls,
        model: AnyModel,
        cluster: Cluster,
        *,
        global_batch_sequences: int,
        seq_len: int,
        stack: TrainingStack | str = "",
        precision: TrainPrecision | str = "bf16",
        optimizer: str | None = None,
        frozen: str | None = None,
        mtp_layers: int | None = None,
        expert_load: float = 1.0,
        lora_rank: int = 0,
        lora_targets: LoraTargets = "all",
        packed_len: float = 0.0,
        context: str = "",
    ) -> TrainingSystem:
        """Put a system together.

        Args:
            stack: also by name or file; the default one on these chips where it is empty.
            precision: data types, or their label.
            optimizer: of `OPTIMIZERS`; that of the stack by default.
            frozen: of `FROZEN`; frozen weights are kept as they are multiplied by default.
            mtp_layers: those of the model by default [count].
            context: method of context parallelism; that of the stack where it is empty.

        Raises:
            InputError: a model of which only totals are known, or frozen weights without adapters.
            UnknownNameError, CatalogError: a stack that is not in the catalogue.
            PrecisionError: data types or an optimiser that are unknown.
        """
        if not isinstance(model, Model):
            raise InputError(
                what="model", given=model.name, allowed="a model whose layers are known, not only its totals"
            )
        require(
            lora_rank or (frozen is None and lora_targets == "all"),
            what="frozen" if frozen else "lora_targets",
            given=frozen or lora_targets,
            allowed="only with adapters, beside which the weights are frozen",
            nearest="lora = 16",
        )
        generation = cluster.chip.generation
        found = (
            stack if isinstance(stack, TrainingStack) else training_stack(stack or default_training_stack(generation))
        )
        found = with_context(found, context) if context else found
        numbers = calibration(found.kernels.calibration, cluster.chip)
        types = train_precision(precision, cluster.chip, optimizer, found) if isinstance(precision, str) else precision
        return cls(
            model=model,
            cluster=cluster.without_latency() if numbers.is_unit else cluster,
            stack=found,
            calibration=numbers,
            precision=with_frozen(types, frozen) if frozen else types,
            global_batch_sequences=global_batch_sequences,
            seq_len=seq_len,
            mtp_layers=model.mtp_layers if mtp_layers is None else mtp_layers,
            expert_load=expert_load,
            lora_rank=lora_rank,
            lora_targets=lora_targets,
            packed_len=packed_len,
        )

    def on(self, cluster: Cluster, global_batch_sequences: int) -> TrainingSystem:
        """This system on another number of chips of its kind, with another batch [sequences]."""
        links = cluster.without_latency() if self.calibration.is_unit else cluster
        return replace(self, cluster=links, global_batch_sequences=global_batch_sequences)

    @property
    def global_batch_tokens(self) -> float:
        """Tokens of a step [tokens]."""
        return float(self.global_batch_sequences * self.seq_len)

    @property
    def num_layers(self) -> int:
        """Layers with those that predict further tokens [count]."""
        return self.model.num_layers + self.mtp_layers

    @property
    def sample_len(self) -> float:
        """Tokens within which attention stays [tokens]."""
        return min(self.packed_len, self.seq_len) or float(self.seq_len)

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """Layers of the model; those that predict further tokens are like the last."""
        *before, last = self.model.layer_groups
        return (*before, replace(last, count=last.count + self.mtp_layers))

    def adapts(self, product: str) -> bool:
        """Whether the product of this name has an adapter."""
        attention = not product.startswith(("ffn", "shared"))
        adapted = {"all": True, "attention": attention, "qkv": attention and not product.endswith("out")}
        return adapted[self.lora_targets]


def attention_products(attention: Attention, d_model: int) -> tuple[Projection, ...]:
    """Matrix products around the cores of an attention kind, with the one that expands a latent."""
    expansion = attention.expansion()
    return (*attention.projections(d_model), *([expansion] if expansion else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One micro-batch of each of some runs."""

    system: TrainingSystem
    runs: Runs

    @property
    def sequences(self) -> Array:
        """Sequences of a micro-batch [sequences]."""
        return as_array(self.runs.micro_batch)

    @property
    def tokens(self) -> Array:
        """Tokens of a micro-batch on one chip [tokens]."""
        return self.sequences * self.system.seq_len / as_array(self.runs.cp)

    @property
    def spread(self) -> Array:
        """Chips that share activations between tensor-parallel blocks [count]."""
        return as_array(self.runs.tp) if self.system.stack.parallelism.sequence_parallel else np.ones(len(self.runs))

    @property
    def per_step(self) -> Array:
        """Micro-batches of a step on each replica [count]."""
        return as_array(self.runs.micro_batches(self.system.global_batch_sequences))

    def features(self) -> dict[str, Array]:
        """The features that the rows are linear in."""
        found: dict[str, Array] = {f.ONE: np.ones(len(self.runs)), f.TOKENS: self.tokens}
        seq_len, sample = self.system.seq_len, self.system.sample_len
        for label, kind in self.system.model.cores().items():
            pairs = as_array(kind.attention_pairs(sample, 0.0)) * (seq_len / sample)
            found[f.attention_pairs(label)] = self.sequences * pairs / as_array(self.runs.cp)
        found[f.EXPERT_TOKENS] = self.expert_tokens()
        return found

    def expert_tokens(self) -> Array:
        """Token-expert pairs on the busiest chip [tokens]; experts cut by expert_tp see the tokens of that group."""
        moe = self.system.model.moe()
        if moe is None:
            return np.zeros(len(self.runs))
        balanced = self.tokens * moe.experts_per_token * as_array(self.runs.expert_tp) / as_array(self.runs.tp)
        return balanced * self.system.expert_load
