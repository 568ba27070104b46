"""Names and texts of a question → objects of the library; objects are passed through unchanged."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from rackline.api.answer import Watch
from rackline.api.groups import ModelQuestion, OnCluster
from rackline.api.question import CalibrationLike, ClusterLike, ModelLike
from rackline.errors import CatalogError, InputError, nearest_name, require
from rackline.late import late
from rackline.units import parse_bytes, parse_count, parse_rate

with late:
    from rackline import arch, catalog, hardware, parallel, passes, system as systems
    from rackline.bands import defaults


ANY_PRECISION = "any"


def assignments(settings: Sequence[str]) -> dict[str, str]:
    """Read KEY=VALUE settings; a later one replaces an earlier one.

    Raises:
        InputError: no "=", an empty key or value.
    """
    found: dict[str, str] = {}
    for text in settings:
        key, equals, value = (part.strip() for part in text.partition("="))
        require(key and equals and value, what="set", given=text, allowed="KEY=VALUE, such as hbm_bytes_per_s=20e12")
        found[key] = value
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A record whose values may be set: its name in settings and its keys."""

    name: str
    keys: tuple[str, ...]

    def find(self, key: str) -> str | None:
        """The full key of a short one, if there is exactly one ("num_layers" → "architecture.num_layers")."""
        key = key.removeprefix(f"{self.name}.")
        if key in self.keys:
            return key
        ends = [known for known in self.keys if known.endswith(f".{key}")]
        return ends[0] if len(ends) == 1 else None


def share_out(given: dict[str, str], owners: Sequence[Owner]) -> list[dict[str, object]]:
    """Give each assignment to the first record that has its key; "chip.KEY" and the like name the record.

    Returns:
        Overrides of each owner, in their order.

    Raises:
        CatalogError: a key that none has, with the nearest one.
    """
    parts: list[dict[str, object]] = [{} for _ in owners]
    for key, value in given.items():
        named = [index for index, owner in enumerate(owners) if key.startswith(f"{owner.name}.")]
        for index in named or range(len(owners)):
            full = owners[index].find(key)
            if full is not None:
                parts[index][full] = value
                break
        else:
            known = [known for owner in owners for known in owner.keys]
            short = [known_key.rsplit(".", 1)[-1] for known_key in known]
            near = nearest_name(key, [*known, *short])
            raise CatalogError(
                what="set",
                given=f"{key}={value}",
                allowed=f"a key of the {' or the '.join(owner.name for owner in owners)}",
                nearest=near and f"{near}={value}",
            )
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """How the models of a question are found.

    Args:
        watch: keeps what was found, and what the answer must say of it.
        assume: how to read what is not understood.
        offline: leave the network alone.
    """

    watch: Watch
    assume: tuple[str, ...] = ()
    offline: bool = False

    def find(self, name: str, *, headers: bool = False) -> arch.FoundModel:
        """The description of a model by any name, read once per question.

        Args:
            name: catalogue name, Hugging Face id or file.
            headers: read the tensor headers of its checkpoint as well.

        Raises:
            UnknownNameError, HubError, CatalogError, ConfigError: as `rackline.arch.find_model`.
        """
        key = (name, *self.assume)
        if key not in self.watch.found or headers:
            self.watch.found[key] = arch.find_model(name, assume=self.assume, offline=self.offline, headers=headers)
        return self.watch.found[key]

    def model(self, name: str, overrides: Mapping[str, object] | None = None) -> arch.AnyModel:
        """The model itself, noted for the answer."""
        built = arch.found_model(arch.with_overrides(self.find(name), overrides))
        self.watch.uses(built)
        return built


def lookup_of(question: ModelQuestion, watch: Watch) -> Lookup:
    """How the models of a question are found."""
    return Lookup(watch=watch, assume=question.assume, offline=question.offline)


def check_context(model: arch.AnyModel, context_len: float, watch: Watch) -> None:
    """Note a context that is longer than the model was made for, with the longest that it was made for.

    Every question with lengths calls this, so that all say the same.

    Args:
        context_len: longest context of a request, prompt and output together [tokens].
    """
    limit = model.max_context_len if isinstance(model, arch.Model) else None
    if limit is not None and context_len > limit:
        watch.warn(
            f"{model.name}: requests of {context_len:,.0f} tokens, but the model was made for {limit:,} "
            "(max_position_embeddings, with its scaling): engines refuse them unless the limit is raised; the longest "
            f"without that is {limit}"
        )


def model_and_cluster(
    model: ModelLike,
    on: ClusterLike,
    *,
    price: float | None = None,
    settings: Sequence[str] = (),
    lookup: Lookup,
) -> tuple[arch.AnyModel, hardware.Cluster]:
    """The model and the cluster of a question, with its settings and price of a chip [USD/h] applied.

    Raises:
        InputError: settings of something that was given as an object.
    """
    record = lookup.find(model).record if isinstance(model, str) else None
    given = assignments(settings)
    found: dict[str, dict[str, object]] = {}
    if given:
        records: dict[str, Any] = {} if record is None else {"model": record}
        if isinstance(on, str):
            plain = hardware.cluster_record(on)
            records |= {"cluster": plain, "chip": hardware.chip_record(hardware.chip_name_of(plain, on))}
        if not records:
            raise InputError(
                what="set", given=next(iter(given)), allowed="only together with a model or cluster by name"
            )
        owners = [Owner(name=name, keys=tuple(catalog.settable_keys(one))) for name, one in records.items()]
        found = dict(zip(records, share_out(given, owners), strict=True))
    on_chip = {f"chip.{key}": value for key, value in found.get("chip", {}).items()}
    on_cluster = {**found.get("cluster", {}), **on_chip}
    if price is not None and isinstance(on, str):
        on_cluster["usd_per_chip_hour"] = price
    rack = cluster_of(on, on_cluster)
    if price is not None and not isinstance(on, str):
        rack = replace(rack, usd_per_chip_hour=price, rent="")
    if isinstance(model, str):
        return lookup.model(model, found.get("model")), rack
    built = cast("arch.AnyModel", model)
    lookup.watch.uses(built)
    return built, rack


def cluster_of(on: ClusterLike, overrides: dict[str, object] | None = None) -> hardware.Cluster:
    """The cluster of a name or file, with values replaced; an object as it is."""
    return hardware.cluster(on, overrides or None) if isinstance(on, str) else cast("hardware.Cluster", on)


def on_terms(question: OnCluster, rack: hardware.Cluster) -> hardware.Cluster:
    """The cluster at the kind of price, and rented by the unit, that a question asks for.

    Raises:
        InputError: a kind of price that is unknown, or beside a price.
    """
    if question.rent is not None:
        require(question.price is None, what="rent", given=question.rent, allowed="either a kind of rent or `price`")
        rack = hardware.rented(rack, hardware.parse_rent_kind(question.rent))
    return replace(rack, rented_chips=1) if question.bill == "used" else rack


def capped(rack: hardware.Cluster, power_cap: float | None) -> hardware.Cluster:
    """The cluster with its chips set to keep below a power; unchanged without one.

    Raises:
        InputError: a power that the chip cannot be set to, or of a chip whose power is not known.
    """
    if power_cap is None:
        return rack
    return replace(rack, chip=replace(rack.chip, power_cap_w=hardware.checked_cap(rack.chip, power_cap)))


def named(question: OnCluster, watch: Watch) -> tuple[arch.AnyModel, hardware.Cluster]:
    """The model and the cluster that a question names, with its settings, terms and number of chips.

    Raises:
        RacklineError: as the catalogue and the Hub; settings, chips or terms that are impossible.
    """
    model, rack = model_and_cluster(
        question.model,
        question.on,
        price=question.price,
        settings=question.set,
        lookup=lookup_of(question, watch),
    )
    rack = capped(on_terms(question, rack), question.power_cap)
    return model, rack if question.chips is None else rack.with_num_chips(question.chips)


def resolve(question: OnCluster, watch: Watch) -> systems.System:
    """The system that a question names; what questions of its kind do not name is at its default.

    Raises:
        RacklineError: as `named`; an unknown calibration, stack, precision or routing.
    """
    return resolve_on(question, *named(question, watch), watch)


def resolve_on(
    question: OnCluster,
    model: arch.AnyModel,
    cluster: hardware.Cluster,
    watch: Watch,
    calibration: CalibrationLike = "auto",
) -> systems.System:
    """Resolve a question whose model and cluster are known already; see `resolve`.

    Args:
        calibration: of a question that names none.
    """
    chip = cluster.chip
    taken = calibration if question.calibration == "auto" else question.calibration
    if taken == "auto":
        taken = cluster.calibration or _default_stack(question, model, cluster, watch)
        if cluster.calibration:
            watch.takes(f"calibration {cluster.calibration}, which comes with {cluster.name} (--calibration)")
    labels = question.precision or "native"
    if isinstance(labels, str):
        labels = (labels,)
    elif ANY_PRECISION in labels:  # all that the chip supports
        labels = ()
    return systems.System.of(
        model,
        cluster,
        calibration=in_version(calibration_of(taken, chip), question.stack, chip),
        stack=question.stack,
        precisions=[parallel.precision(one, model, chip) for one in labels],
        routing=None if question.routing is None else parallel.parse_routing(question.routing),
        memory_fraction=question.memory_fraction,
        top_p=question.sampling == "top-p",
    )


def _default_stack(question: OnCluster, model: arch.AnyModel, cluster: hardware.Cluster, watch: Watch) -> str:
    """The stack of "auto" where stacks are not compared, with a note of it where there are several to choose from.

    It is that of the model and the cluster as the catalogue has them: what is set never brings another stack.
    """
    first, *others = defaults.default_stacks(*as_published(question, model, cluster, watch))
    if others:
        watch.takes(
            f"stack {first}: most is known of it on {cluster.chip.name} for this model, before {', '.join(others)}; "
            "their costs are not compared here (--calibration)"
        )
    return first


def as_published(
    question: OnCluster, model: arch.AnyModel, cluster: hardware.Cluster, watch: Watch
) -> tuple[arch.AnyModel, hardware.Cluster]:
    """The model and the cluster without what a question sets, as far as it names them."""
    if isinstance(question.model, str):
        model = arch.found_model(lookup_of(question, watch).find(question.model))
    return model, cluster_of(question.on) if isinstance(question.on, str) else cluster


def in_version(numbers: passes.Calibration, server: str | None, chip: hardware.Chip) -> passes.Calibration:
    """The numbers of the kernels in the version of the server that was named, "vllm=0.14.0", if they are of its
    stack."""
    name, _, version = (server or "").partition("=")
    if (
        numbers.version
        or not catalog.release_numbers(version)
        or catalog.canonical_name("stacks", name) != numbers.name
    ):
        return numbers
    return calibration_of(f"{numbers.name}={version}", chip)


def calibration_of(given: CalibrationLike, chip: hardware.Chip) -> passes.Calibration:
    """The numbers of a name or file on a chip; an object as it is."""
    return passes.calibration(given, chip) if isinstance(given, str) else cast("passes.Calibration", given)


# short name → key of the catalogue
KEYS = {
    "scale_up_size": "levels.scale_up.size",
    "scale_up_bandwidth": "levels.scale_up.bytes_per_s_each_way",
    "scale_out_bandwidth": "levels.scale_out.bytes_per_s_each_way",
    "hbm_bandwidth": "chip.hbm_bytes_per_s",
    "hbm_capacity": "chip.hbm_bytes",
}
# those whose value has a unit, and how it is read
_UNITS: dict[str, Callable[..., float]] = {
    "scale_up_bandwidth": parse_rate,
    "scale_out_bandwidth": parse_rate,
    "hbm_bandwidth": parse_rate,
    "hbm_capacity": parse_bytes,
}
DERIVED = ("total_over_active", "kv_bytes_per_token")
MOST_VALUES = 32
_NUMBER = re.compile(r"^\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One quantity and its values.

    Args:
        name: as given.
        values: texts with units.
    """

    name: str
    values: tuple[str, ...]


def read_sweep(text: str) -> Sweep:
    """Read NAME=A,B,C or NAME=A:B[:COUNT], the latter in equal ratios.

    Raises:
        InputError: no name, no values, unlike units, too many values.

    >>> read_sweep("hbm_bandwidth=4TB/s:16TB/s:3").values
    ('4TB/s', '8TB/s', '16TB/s')
    >>> read_sweep("scale_up_size=8,72").values
    ('8', '72')
    """
    import numpy as np

    name, equals, given = (part.strip() for part in text.partition("="))
    allowed = "NAME=A,B,C or NAME=FROM:TO:COUNT, such as hbm_bandwidth=4TB/s:20TB/s:6"
    require(name and equals and given, what="--what-if", given=text, allowed=allowed)
    if ":" not in given:
        values = tuple(part.strip() for part in given.split(",") if part.strip())
        require(1 <= len(values) <= MOST_VALUES, what="--what-if", given=text, allowed=f"1 to {MOST_VALUES} values")
        return Sweep(name=name, values=values)
    parts = given.split(":")
    ends = [_NUMBER.match(part) for part in parts[:2]]
    count = parts[2] if len(parts) == 3 else "5"
    first, last = ends[0], ends[-1] if len(ends) == 2 else None
    if first is None or last is None or len(parts) > 3 or not count.strip().isdigit():
        raise InputError(what="--what-if", given=text, allowed=allowed)
    number = int(count)
    low, high = float(first[1]), float(last[1])
    if first[2] != last[2] or not 2 <= number <= MOST_VALUES or not (low > 0 and high > 0):
        raise InputError(
            what="--what-if", given=text, allowed=f"two positive ends in one unit and 2 to {MOST_VALUES} values"
        )
    return Sweep(name=name, values=tuple(f"{value:.6g}{last[2]}" for value in np.geomspace(low, high, number)))


def leading_number(text: str) -> float:
    """The number of a value without its unit.

    >>> leading_number("8TB/s")
    8.0
    """
    found = _NUMBER.match(text)
    return float(found[1]) if found else math.nan


def setting(name: str, value: str, model: arch.AnyModel) -> str:
    """The `--set` text of one value.

    total_over_active changes the number of experts (in eights), kv_bytes_per_token (bf16) the KV heads or the latent.

    Raises:
        InputError: a derived quantity of a model that has none, or a value that no model can have.
    """
    if name not in DERIVED:
        key = KEYS.get(name)
        if name in _UNITS:
            _UNITS[name](value, name=name)  # refuses a number without its unit
        return f"{key or name}={value}"
    if not isinstance(model, arch.Model):
        raise InputError(what="--what-if", given=name, allowed="a model whose layers are known")
    wanted = parse_count(value, name=f"--what-if {name}", minimum=0.0, maximum=1e9)
    return _experts(model, wanted) if name == "total_over_active" else _kv(model, wanted)


def _experts(model: arch.Model, wanted: float) -> str:
    """What sets a ratio of total to active parameters."""
    moe = model.moe()
    if moe is None:
        raise InputError(what="--what-if", given="total_over_active", allowed="a mixture of experts")
    layers = sum(group.count for group in model.layer_groups if group.ffn == moe)
    one = layers * moe.expert_params(model.d_model)
    rest = model.total_params - one * moe.num_experts
    fewest = moe.experts_per_token
    experts = 8 * round((wanted * (rest + one * fewest) - rest) / one / 8)
    require(experts >= fewest, what="--what-if total_over_active", given=wanted, allowed="at least 1")
    return f"architecture.moe.num_experts={experts}"


def _kv(model: arch.Model, wanted: float) -> str:
    """What sets a number of bytes per token in a bf16 cache."""
    kinds = list(model.attention_kinds().values())
    require(len(kinds) == 1, what="--what-if", given="kv_bytes_per_token", allowed="a model with one kind of attention")
    kind = kinds[0]
    per_layer = wanted / 2.0 / model.num_layers
    if kind.kind == "mla":
        rank = round(per_layer - getattr(kind, "qk_rope_head_dim", 0))
        require(rank >= 1, what="--what-if kv_bytes_per_token", given=wanted, allowed="room for the rotary part")
        return f"architecture.attention.kv_lora_rank={rank}"
    each = float(kind.kv_elements_per_token(1)) / kind.num_kv_heads
    options = [n for n in range(1, kind.num_q_heads + 1) if kind.num_q_heads % n == 0]
    heads = min(options, key=lambda n: abs(math.log(n * each / per_layer)))
    return f"architecture.attention.num_kv_heads={heads}"
