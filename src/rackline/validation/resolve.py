"""The model, cluster, precision, layouts and calibration of a case, each built once."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeVar, cast

from rackline import arch
from rackline.arch import AnyModel, GroupedQueryAttention, Model
from rackline.catalog import (
    ModelRecord,
    measured_stacks,
    names,
    release_numbers,
)
from rackline.catalog.index import stack_name
from rackline.catalog.load import record_from_mapping
from rackline.errors import InputError, LayoutError, unknown_name
from rackline.hardware import (
    Chip,
    ChipRecord,
    Cluster,
    ClusterRecord,
    FabricLevel,
    chip,
    chip_from_record,
    chip_name_of,
    cluster,
    cluster_from_record,
    cluster_record,
)
from rackline.parallel import Deployment, Layout, Precision, precision
from rackline.parallel.layout import problem as layout_problem
from rackline.passes import Calibration, calibration
from rackline.serving.stack import IDEAL, Stack, stack, version_numbers
from rackline.system import System
from rackline.validation.cases import Case, launched_of, source_of

Kept = TypeVar("Kept")
# Parts of a training layout that serving does not have.
_OTHER_PARTS = ("virtual_pp", "fsdp", "sharding", "dp", "dcp")
_PARTS = ("tp", "pp", "ep", "moe_tp", "attention_dp", "cp")
_LAUNCHED = {
    "prompt_graph_tokens": "graphs.captured_prompt_tokens",
    "batch_wait_steps": "scheduler.batch_wait_steps",
}
"""Setting of a launch command → key of its stack."""
_LAUNCHED_AT_ANY_RATE = {**_LAUNCHED, "max_batched_tokens": "scheduler.max_batched_tokens"}
"""The same for runs at unlimited rate."""
_STATED: Mapping[str, tuple[str, type[int] | type[float]]] = {
    "max_num_seqs": ("scheduler.max_num_seqs", int),
    "max_num_batched_tokens": ("scheduler.max_batched_tokens", int),
    "memory_fraction": ("memory.memory_fraction", float),
}
"""Key of a case → key of its stack, and its type."""
_OF_DEPLOYMENT = attrgetter(
    "name",
    "experts.routing",
    "host.s_per_step",
    "host.gap_s_per_layer",
    "experts.untuned",
    "experts.untuned_slowdown",
    "experts.padded",
    "experts.padded_below_tp",
    "kernels.sample_bytes_per_logit",
)
_ARCHITECTURE_KEYS = (
    "num_layers",
    "d_model",
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "d_ff",
    "vocab_size",
    "attention",
    "ffn",
    "tied_embeddings",
)


@dataclass(slots=True)
class Resolver:
    """Builds and keeps what cases share.

    Args:
        calibration_name: "auto" (that of the case's own stack if there is one, else the best for the chip), or the name
            or file of one calibration for all cases.
        change: change of each stack.
    """

    calibration_name: str = "auto"
    change: Callable[[Stack], Stack] = lambda found: found
    _kept: dict[tuple[object, ...], Any] = field(default_factory=dict[tuple[object, ...], Any])

    def once(self, key: tuple[object, ...], make: Callable[[], Kept]) -> Kept:
        """What is made of a key, made once."""
        if key not in self._kept:
            self._kept[key] = make()
        return cast("Kept", self._kept[key])

    def model(self, case: Case) -> AnyModel:
        """The model of a case: described in the case itself, or by name.

        Raises:
            RacklineError: the name is unknown, or the config or architecture cannot be read.
        """
        return self.once(("model", model_key(case)), lambda: model_of(case))

    def chip(self, name: str) -> Chip:
        """A chip of the catalogue."""
        if name.endswith(".toml"):
            raise InputError(what="chip", given=name, allowed="a catalogue name")
        return self.once(("chip", name), lambda: chip(name))

    def chip_of(self, case: Case) -> Chip:
        """The chip of a case: described in the case itself, or by name."""
        given = records_of(case).get("chip")
        if given is None:
            return self.chip(case.chip)
        return self.once(
            ("described chip", json.dumps(given, sort_keys=True)),
            lambda: chip_from_record(record_from_mapping(ChipRecord, given, where=case.where)),
        )

    def cluster_of(self, case: Case) -> Cluster:
        """The cluster of a case: described in the case itself or named there, else the smallest that has enough of
        its chips; in slices where the case states their number.

        Raises:
            RacklineError: an unknown cluster or one of other chips, or too few chips.
        """
        named, given = case.text("cluster"), records_of(case).get("cluster")
        chip = self.chip_of(case)
        if named:
            if named.endswith(".toml") or (found := cluster(named)).chip.name != chip.name:
                raise InputError(what="cluster", given=named, allowed=f"a cluster of the catalogue with {chip.name}")
            found = found.with_num_chips(case.num_chips)
        elif given is None:
            found = self.cluster(chip, case.num_chips)
        else:
            record = record_from_mapping(ClusterRecord, given, where=case.where)
            found = cluster_from_record(record, chip).with_num_chips(case.num_chips)
        return found.in_slices(int(case.number("slices"))) if case.values.get("slices") else found

    def cluster(self, chip: Chip, num_chips: int) -> Cluster:
        """The smallest cluster of the catalogue with at least this number of these chips.

        Raises:
            InputError: no cluster is large enough.
        """
        return self.once(("cluster", chip.name, num_chips), lambda: self._find_cluster(chip, num_chips))

    def _find_cluster(self, chip: Chip, num_chips: int) -> Cluster:
        owners = self.once(("owners",), lambda: {one: chip_name_of(cluster_record(one)) for one in names("clusters")})
        known = [cluster(name) for name, owner in owners.items() if owner == chip.name]
        fitting = [option for option in known if option.max_chips >= num_chips]
        if fitting:
            # a cluster that has them all comes first, then the one that lacks the fewest
            best = min(fitting, key=lambda c: (c.num_chips < num_chips, abs(c.num_chips - num_chips), c.name))
            return best.with_num_chips(num_chips)
        if num_chips == 1:
            # alone it sends nothing: an infinite rate takes no time and makes up no number
            alone = FabricLevel(name="scale_up", size=1, bytes_per_s_each_way=math.inf, latency_s=0.0)
            return Cluster(name=chip.name, chip=chip, num_chips=1, levels=(alone,), sources=chip.sources)
        most = max((option.max_chips for option in known), default=1)
        raise InputError(
            what="num_chips",
            given=num_chips,
            allowed=f"at most {most}: no cluster of the catalogue joins more {chip.name}",
        )

    def precision(self, case: Case, model: AnyModel, chip: Chip) -> Precision:
        """Data types of the case's label, of what its benchmark's servers keep and of what it sets apart itself."""
        launched = (one.precision_detail for one in launched_of(case))
        parts = (case.precision or "native", source_of(case).precision_detail, *launched, case.precision_detail)
        return precision(",".join(part for part in parts if part), model, chip)

    def calibration(self, case: Case, chip: Chip) -> Calibration:
        """The calibration of the case's stack in its version, or the requested one."""
        name, version = self.calibration_name, ""
        if name == "auto":
            stack = stack_name(case.stack)
            if stack in names("calibrations") and stack in measured_stacks():
                name, version = stack, version_of(case)
        return self.once(("calibration", name, chip.name, version), lambda: self._calibration(name, chip, version))

    def _calibration(self, name: str, chip: Chip, version: str) -> Calibration:
        """The calibration of a version; that of the newest where none of its operations differs."""
        found = calibration(f"{name}={version}" if release_numbers(version) else name, chip)
        if not version or found.nearest:
            return found
        return self.once(("calibration", name, chip.name, ""), lambda: calibration(name, chip))

    def stack(self, case: Case) -> Stack:
        """The serving stack of the case; without overheads under the ideal roofline.

        Engine settings in the case replace the defaults of its version and chip.
        """
        found = _as_started(self._plain_stack(case), case)
        if self.calibration_name != "unit":
            return found
        scheduler = found.scheduler
        return IDEAL.with_values(
            {
                "scheduler.admission": scheduler.admission,
                "scheduler.max_batched_tokens": scheduler.max_batched_tokens,
                "scheduler.max_num_seqs": scheduler.max_num_seqs,
                "memory.memory_fraction": found.memory.memory_fraction,
            }
        )

    def _plain_stack(self, case: Case) -> Stack:
        """The stack that comes with the calibration that was asked for, else that of the case."""
        name, on = stack_name(case.stack), self.chip_of(case)
        if self.calibration_name not in ("auto", "unit"):
            numbers = self.calibration(case, on)
            if numbers.serving:
                return self.change(stack(numbers.serving, chip=on))
        known, version = name if name in names("stacks") else "generic", version_of(case)
        return self.once(
            ("stack", known, version, on.name, on.hbm_bytes),
            lambda: self.change(stack(known, version=version, chip=on)),
        )

    def _around(self, case: Case, found: Stack) -> tuple[object, ...]:
        """The part of the stack that belongs to a deployment: kernels and routing; the rest belongs to the engine."""
        return (*_OF_DEPLOYMENT(found), self.calibration(case, self.chip_of(case)).nearest)

    def pools(self, case: Case) -> tuple[Deployment, Deployment]:
        """The prefill and the decode pool of a case, parts of one cluster.

        Raises:
            RacklineError: names in the case are unknown or contradict each other, or the number of chips differs.
        """
        parts: list[Case] = []
        for name in ("prefill", "decode"):
            pool = cast("Mapping[str, Any]", case.values[name])
            layout = cast("Mapping[str, int | str]", pool["layout"])
            sizes = [layout.get(part, 1) for part in ("tp", "pp", "cp", "attention_dp")]
            each = math.prod(1 if isinstance(size, str) else int(size) for size in sizes)  # refused later
            parts.append(replace(case, layout=layout, num_chips=int(pool["workers"]) * each))
        prefill, decode = parts
        if prefill.num_chips + decode.num_chips != case.num_chips:
            raise InputError(
                what="num_chips",
                given=case.num_chips,
                allowed=f"{prefill.num_chips} of the prefill and {decode.num_chips} of the decode workers",
                nearest=str(prefill.num_chips + decode.num_chips),
            )
        whole = self.cluster(self.chip(case.chip), case.num_chips)
        return self.deployments(prefill, whole)[0], self.deployments(decode, whole)[0]

    def deployments(
        self, case: Case, within: Cluster | None = None, stack: Stack | None = None
    ) -> tuple[Deployment, ...]:
        """The deployment of a case; several if the source does not state the expert parallelism.

        Args:
            within: cluster that it is part of; by default the smallest that has enough chips.
            stack: serving stack around its kernels; by default that of the case.

        Raises:
            RacklineError: names in the case are unknown or contradict each other.
        """
        around = self.stack(case) if stack is None else stack
        key = (
            "deployments",
            case.kind == "max-throughput",  # the only kind with unstated layouts
            model_key(case),
            case.chip,
            case.num_chips,
            case.precision,
            case.precision_detail,
            case.stack,
            tuple(sorted(case.layout.items())),
            self._around(case, around),
            source_of(case),
            "" if within is None else within.name,
        )
        return self.once(key, lambda: self._build_deployments(case, within, around))

    def _build_deployments(self, case: Case, within: Cluster | None, around: Stack) -> tuple[Deployment, ...]:
        chip = self.chip_of(case)
        model = self.model(case)
        on = self.cluster_of(case) if within is None else within.with_num_chips(case.num_chips)
        types = self.precision(case, model, chip)
        numbers, top_p = self.calibration(case, chip), source_of(case).sampling == "top_p"
        layouts = layouts_of(case, model)
        model = padded(model, layouts[0].tp)

        def build(layout: Layout) -> Deployment:
            key = (
                model_key(case),
                on.name,
                case.num_chips,
                layout,
                types,
                numbers.name,
                self._around(case, around),
                top_p,
            )
            return self.once(
                ("deployment", model_key(case), *key),
                lambda: System.of(
                    model, on, calibration=numbers, stack=around, precisions=[types], top_p=top_p
                ).deployment(layout),
            )

        return tuple(build(layout) for layout in layouts)


def model_key(case: Case) -> str:
    """What says which model a case is about: its name, or what the case itself describes."""
    inline = inline_of(case)
    return case.model if inline is None else json.dumps(inline, sort_keys=True)


def model_of(case: Case) -> AnyModel:
    """The model of a case: described in the case itself, or by name; errors as `Resolver.model`."""
    name = case.model or case.case_id
    if case.config is not None:
        return arch.build_model(arch.record_from_hf(case.config, name, case.where))
    if case.architecture is not None:
        return arch.build_model(architecture_record(case.architecture, name, case.where))
    if "model" in records_of(case):
        return arch.build_model(record_from_mapping(ModelRecord, records_of(case)["model"], where=case.where))
    if case.model.endswith((".json", ".toml")):
        raise InputError(what="model", given=case.model, allowed="a catalogue name or Hugging Face id")
    return arch.model(case.model, offline=True)  # cases do not depend on the network


def version_of(case: Case) -> str:
    """Version of a case's stack; empty where its source states none, of single batches the one that papers measured."""
    # Dynamo images carry its own release numbers, not those of the engine inside
    version = "" if "ai-dynamo" in case.text("image") else case.stack_version
    if version and not version_numbers(version):
        tagged = re.search(rf"{re.escape(case.stack.casefold())}[-_:]v?(\d+(\.\d+)+)", version.casefold())
        version = tagged.group(1) if tagged else version
    if not version_numbers(version):  # none, or a nightly build
        version = source_of(case).newest_versions.get(case.stack, version)
    if case.kind == "static-batch" and not version:
        name = stack_name(case.stack)
        return stack(name if name in names("stacks") else "generic").static_batch_version
    return version


def records_of(case: Case) -> Mapping[str, Mapping[str, Any]]:
    """Records of the model, chip and cluster that a case itself describes, as files of the catalogue do."""
    return cast("Mapping[str, Mapping[str, Any]]", case.values.get("records") or {})


def inline_of(case: Case) -> Mapping[str, object] | None:
    """What a case itself describes of its model or its machine; None where all are names."""
    if case.config is not None or case.architecture is not None:
        return case.config if case.config is not None else case.architecture
    return records_of(case) or None


def _as_started(found: Stack, case: Case) -> Stack:
    """The stack with what a case or its benchmark states: graphs, sequences and tokens of a pass, memory."""
    launch, changes = launched_of(case), dict[str, Any]()
    for launched in launch:
        for name, key in (_LAUNCHED_AT_ANY_RATE if case.kind == "max-throughput" else _LAUNCHED).items():
            if (value := getattr(launched, name)) is not None:
                changes[key] = value
    for name, (key, number) in _STATED.items():
        if case.values.get(name) is not None:
            changes[key] = number(case.number(name))
    if case.values.get("offline", any(launched.offline for launched in launch)):
        found = replace(found, scheduler=found.scheduler.offline())
    return found.with_values(changes)


def layout_parts(case: Case, known: Sequence[str], others: Sequence[str] = ()) -> dict[str, int]:
    """Parts of the layout of a case.

    Args:
        known: parts that it may have.
        others: parts that it may have and that do not matter.

    Raises:
        LayoutError: another part, or one that is no number.
    """
    for key, value in case.layout.items():
        if key not in (*known, *others):
            raise unknown_name("layout", key, known, LayoutError)
        if key in known and isinstance(value, str):
            raise LayoutError(what=f"layout.{key}", given=value, allowed="a whole number of at least 1")
    return {key: int(value) for key, value in case.layout.items() if key in known}


def layouts_of(case: Case, model: AnyModel) -> tuple[Layout, ...]:
    """Possible layouts of a case on all of its chips; missing parts are 1, and replicas fill the chips.

    A dense model has no experts to shard, and its attention-dp ranks are replicas. moe_tp follows from the other parts.
    So does attention_dp, where it is missing or 1, if experts are sharded over more chips than attention (attention_dp
    = moe_tp · ep / tp), as in vLLM with data-parallel ranks, with or without expert parallelism. For max-throughput, a
    missing ep means all of its possible values.

    Raises:
        LayoutError: parts are unknown, contradict each other, or do not fit the model or the chips.
    """
    parts = layout_parts(case, _PARTS, _OTHER_PARTS)
    tp, pp, cp = parts.get("tp", 1), parts.get("pp", 1), parts.get("cp", 1)
    mixture = isinstance(model, Model) and model.is_moe
    # experts over more chips than attention: the others hold the attention of other sequences
    wide, left = divmod(parts.get("moe_tp", 1) * parts.get("ep", 1), tp)
    stated = parts.get("attention_dp", 1)
    attention_dp = (wide if stated == 1 and wide and not left else stated) if mixture else 1
    if mixture and attention_dp == 1 and source_of(case).attention_dp_of_mixtures:
        tp, attention_dp = 1, tp
    per_replica = tp * pp * cp * attention_dp
    if case.num_chips % per_replica:
        raise LayoutError(
            what="layout",
            given=", ".join(f"{key}={value}" for key, value in parts.items()),
            allowed=f"{per_replica} chips per replica to divide num_chips={case.num_chips}",
        )
    base = Layout(tp=tp, pp=pp, cp=cp, attention_dp=attention_dp, dp=case.num_chips // per_replica)
    if not mixture:
        return (base,)
    group = tp * attention_dp
    if "ep" in parts or case.kind != "max-throughput":
        ep = parts.get("ep", 1)
        return (replace(base, ep=ep, moe_tp=parts.get("moe_tp", group // ep if group % ep == 0 else 1)),)
    options = [replace(base, ep=ep, moe_tp=group // ep) for ep in range(1, group + 1) if group % ep == 0]
    possible = [option for option in options if layout_problem(option, model) is None]
    return tuple(possible or options[:1])


def padded(model: AnyModel, tp: int) -> AnyModel:
    """The model with query heads padded to a multiple of tp, if all share one KV head.

    Sources: Pope et al. 2022 (arXiv:2211.05102), section 4: PaLM 540B's 48 heads are padded to 64 on 64 chips.
    """
    if not isinstance(model, Model) or model.num_q_heads % tp == 0 or model.num_kv_heads != 1:
        return model
    groups = [
        replace(group, attention=replace(group.attention, num_q_heads=-(-group.attention.num_q_heads // tp) * tp))
        if isinstance(group.attention, GroupedQueryAttention)
        else group
        for group in model.layer_groups
    ]
    return replace(model, layer_groups=tuple(groups))


def architecture_record(given: Mapping[str, object], name: str, where: str) -> ModelRecord:
    """Model record of an architecture that a case describes.

    Args:
        given: num_layers, d_model, num_q_heads, d_ff, vocab_size, attention (mha, mqa or gqa), ffn; num_kv_heads for
            gqa; head_dim is d_model / num_q_heads unless given.

    Raises:
        InputError, CatalogError: a key is unknown, missing or invalid.
    """
    data = dict(given)
    for key in data:
        if key not in _ARCHITECTURE_KEYS:
            raise unknown_name("architecture", key, _ARCHITECTURE_KEYS, where=where)
    kind = data.get("attention", "mha" if "num_kv_heads" not in data else "gqa")
    heads = data.get("num_q_heads")
    kv_heads = data.get("num_kv_heads", {"mha": heads, "mqa": 1}.get(str(kind)))
    if str(kind) not in ("mha", "mqa", "gqa"):
        raise InputError(what="architecture.attention", given=kind, allowed="mha, mqa, gqa", where=where)
    width = data.get("d_model")
    if "head_dim" not in data and isinstance(width, int) and isinstance(heads, int) and heads:
        data["head_dim"] = width // heads
    ffn = str(data.get("ffn", "swiglu"))
    plain = ffn in ("gelu", "relu", "relu2")  # the blocks of the GPT family, with layer norms and biases
    record: dict[str, Any] = {
        "name": "".join(c if c.isalnum() or c in "._-" else "-" for c in name.lower()).strip("._-") or "model",
        "full_name": name,
        "architecture": {
            "num_layers": data.get("num_layers"),
            "d_model": width,
            "vocab_size": data.get("vocab_size"),
            "tied_embeddings": data.get("tied_embeddings", plain),
            "norm": "layernorm" if plain else "rmsnorm",
            "attention": {
                "kind": "gqa",
                "num_q_heads": heads,
                "num_kv_heads": kv_heads,
                "head_dim": data.get("head_dim"),
                "bias": plain,
                "output_bias": plain,
            },
            "ffn": {"kind": ffn, "d_ff": data.get("d_ff"), "bias": plain},
        },
        "sources": [{"fields": ["*"], "kind": "vendor", "citation": f"given in the case: {where}"}],
    }
    return record_from_mapping(ModelRecord, cast("Mapping[str, Any]", record), where=where)
