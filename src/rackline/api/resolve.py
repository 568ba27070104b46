"""Names and texts of a question → objects of the library; objects are passed through unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, cast

from rackline.api.answer import Watch
from rackline.api.groups import ModelQuestion, OnCluster
from rackline.api.question import CalibrationLike, ClusterLike, ModelLike
from rackline.errors import CatalogError, InputError, nearest_name, require
from rackline.late import late

with late:
    from rackline import arch, catalog, hardware, parallel, passes, system as systems
    from rackline.bands import defaults


ANY_PRECISION = ANY_ENGINE = "any"


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


def window_of(model: arch.AnyModel) -> float:
    """Return the longest prompt with its answer that a model was made for; infinite where it is not known [tokens]."""
    limit = model.max_context_len if isinstance(model, arch.Model) else None
    return inf if limit is None else float(limit)


def check_context(model: arch.AnyModel, context_len: float, watch: Watch) -> None:
    """Note a context that is longer than the model was made for, with the longest that it was made for.

    Every question with lengths calls this, so that all say the same.

    Args:
        context_len: longest context of a request, prompt and output together [tokens].
    """
    limit = window_of(model)
    if context_len > limit:
        watch.warn(
            f"{model.name}: requests of {context_len:,.0f} tokens, but the model was made for {limit:,.0f} "
            "(max_position_embeddings, with its scaling): engines refuse them unless the limit is raised; the longest "
            f"without that is {limit:.0f}"
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
        RacklineError: as `named`; an unknown engine, calibration, precision or routing.
    """
    return resolve_on(question, *named(question, watch), watch)


def resolve_on(question: OnCluster, model: arch.AnyModel, cluster: hardware.Cluster, watch: Watch) -> systems.System:
    """Resolve a question whose model and cluster are known already; see `resolve`."""
    chip, numbers = cluster.chip, question.calibration
    engine = named_engine(question.engine)
    require(engine != ANY_ENGINE, what="engine", given=engine, allowed="an engine, or auto: nothing is searched here")
    if numbers == "auto":
        if cluster.calibration:
            numbers = cluster.calibration
            watch.takes(f"calibration {numbers}, which comes with {cluster.name} (--calibration)")
        else:
            engine = engine or _default_engine(question, model, cluster, watch)
            numbers = defaults.numbers_of(engine.partition("=")[0], chip)
    labels = question.precision or "native"
    if isinstance(labels, str):
        labels = (labels,)
    elif ANY_PRECISION in labels:  # all that the chip supports
        labels = ()
    calibrated = in_version(calibration_of(numbers, chip), engine, chip)
    return systems.System.of(
        model,
        cluster,
        calibration=calibrated,
        stack=engine if engine and not _is_measured(calibrated, engine) else None,
        precisions=[parallel.precision(one, model, chip) for one in labels],
        routing=None if question.routing is None else parallel.parse_routing(question.routing),
        memory_fraction=question.memory_fraction,
        top_p=question.sampling == "top-p",
    )


def _is_measured(calibration: passes.Calibration, engine: str) -> bool:
    """Check whether a calibration comes with what was measured of this engine around its kernels."""
    return bool(calibration.serving) and catalog.canonical_name("stacks", calibration.stack) == engine


def named_engine(text: str) -> str:
    """Read the engine of a question.

    Returns:
        The catalogue's name of an engine with its version, if it has one, "vllm=0.14.0"; a file; "any"; empty for auto.

    Raises:
        InputError: no engine of the catalogue.
    """
    name, equals, version = (part.strip() for part in text.partition("="))
    if name in ("auto", ANY_ENGINE) and not equals:
        return "" if name == "auto" else name
    if name.endswith(".toml"):
        return name
    known = catalog.canonical_name("stacks", name)
    if known is None or name == ANY_ENGINE:
        engines = ("auto", *catalog.names("stacks"))
        allowed = f"{', '.join(engines)}, each but auto also with a version such as vllm=0.12"
        raise InputError(what="engine", given=text, allowed=allowed, nearest=nearest_name(name, engines))
    return f"{known}={version}" if version else known


def _default_engine(question: OnCluster, model: arch.AnyModel, cluster: hardware.Cluster, watch: Watch) -> str:
    """Return the engine of "auto", and note it.

    It belongs to the model and the cluster as the catalogue has them: what is set never brings another engine.
    """
    model, cluster = as_published(question, model, cluster, watch)
    engine = defaults.default_engine(model, cluster)
    watch.takes(defaults.why_taken(engine, model, cluster))
    return engine


def as_published(
    question: OnCluster, model: arch.AnyModel, cluster: hardware.Cluster, watch: Watch
) -> tuple[arch.AnyModel, hardware.Cluster]:
    """The model and the cluster without what a question sets, as far as it names them."""
    if isinstance(question.model, str):
        model = arch.found_model(lookup_of(question, watch).find(question.model))
    return model, cluster_of(question.on) if isinstance(question.on, str) else cluster


def in_version(numbers: passes.Calibration, engine: str, chip: hardware.Chip) -> passes.Calibration:
    """Return the numbers of the kernels in the version of the engine, "vllm=0.14.0", if they are of this engine."""
    name, _, version = engine.partition("=")
    if numbers.version or not catalog.release_numbers(version) or name != numbers.name:
        return numbers
    return calibration_of(f"{numbers.name}={version}", chip)


def calibration_of(given: CalibrationLike, chip: hardware.Chip) -> passes.Calibration:
    """The numbers of a name or file on a chip; an object as it is."""
    return passes.calibration(given, chip) if isinstance(given, str) else cast("passes.Calibration", given)
