"""Names and texts of a question → objects of the library; objects are passed through unchanged.

Everything heavy is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, assert_never, cast

from rackline.api.option import latency_limit, texts
from rackline.errors import CatalogError, InputError, LayoutError, UnknownNameError, nearest_names
from rackline.units import Quantity, parse_count

if TYPE_CHECKING:
    from rackline.api.fields import Sampling
    from rackline.api.model_question import ModelQuestion
    from rackline.api.option import CalibrationLike, ClusterLike, ModelLike, Settings
    from rackline.api.watch import Watch
    from rackline.arch import AnyModel, FoundModel
    from rackline.catalog import RentKind
    from rackline.hardware import Chip, Cluster
    from rackline.parallel import Layout, Precision, Routing
    from rackline.passes import Calibration
    from rackline.search import Constraints
    from rackline.serving.stack import Stack
    from rackline.serving.workload import Mode

_MOST_COPIES = 4096


def assignments(settings: Settings | None) -> dict[str, str]:
    """Read KEY=VALUE settings; a later one replaces an earlier one.

    Raises:
        InputError: no "=", an empty key or value.
    """
    found: dict[str, str] = {}
    for text in cast("tuple[str, ...]", settings or ()):
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value):
            raise InputError(what="set", given=text, allowed="KEY=VALUE, such as hbm_bytes_per_s=20e12")
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
            near = nearest_names(key, [*known, *short], 1)
            raise CatalogError(
                what="set",
                given=f"{key}={value}",
                allowed=f"a key of the {' or the '.join(owner.name for owner in owners)}",
                nearest=f"{near[0]}={value}" if near else None,
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

    def find(self, name: str, *, headers: bool = False) -> FoundModel:
        """The description of a model by any name, read once a question.

        Args:
            name: catalogue name, Hugging Face id or file.
            headers: read the tensor headers of its checkpoint as well.

        Raises:
            UnknownNameError, HubError, CatalogError, ConfigError: as `rackline.arch.find_model`.
        """
        from rackline.arch import find_model

        key = (name, *self.assume)
        if key not in self.watch.found or headers:
            self.watch.found[key] = find_model(name, assume=self.assume, offline=self.offline, headers=headers)
        return self.watch.found[key]

    def model(self, name: str, overrides: Mapping[str, object] | None = None) -> AnyModel:
        """The model itself, noted for the answer."""
        from rackline.arch import found_model, with_overrides

        built = found_model(with_overrides(self.find(name), overrides))
        self.watch.uses(built)
        return built


def lookup_of(question: ModelQuestion, watch: Watch) -> Lookup:
    """How the models of a question are found."""
    return Lookup(watch=watch, assume=texts(question.assume), offline=question.offline)


def check_context(model: AnyModel, context_len: float, watch: Watch) -> None:
    """Note a context that is longer than the model was made for, with the longest that it was made for.

    Every question with lengths calls this, so that all say the same.

    Args:
        context_len: longest context of a request, prompt and output together [tokens].
    """
    from rackline.arch import Model

    limit = model.max_context_len if isinstance(model, Model) else None
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
    chips: Quantity | None = None,
    price: Quantity | None = None,
    rent: str | None = None,
    settings: Settings | None = None,
    lookup: Lookup,
) -> tuple[AnyModel, Cluster]:
    """The model and the cluster of a question, with its settings, number of chips and price [USD/h] applied.

    Raises:
        InputError: settings of something that was given as an object.
    """
    from rackline.catalog import chip_record, cluster_record, resolve_beside, settable_keys

    record = lookup.find(model).record if isinstance(model, str) else None
    given = assignments(settings)
    on_model: dict[str, object] = {}
    on_cluster: dict[str, object] = {}
    if given:
        owners: list[Owner] = []
        if record is not None:
            owners.append(Owner(name="model", keys=tuple(settable_keys(record))))
        if isinstance(on, str):
            plain = cluster_record(on)
            chip = chip_record(resolve_beside(plain.chip, on))
            owners.append(Owner(name="cluster", keys=tuple(settable_keys(plain))))
            owners.append(Owner(name="chip", keys=tuple(settable_keys(chip))))
        if not owners:
            raise InputError(
                what="set", given=next(iter(given)), allowed="only together with a model or cluster by name"
            )
        found = dict(zip((owner.name for owner in owners), share_out(given, owners), strict=True))
        chip_values = found.get("chip", {})
        on_cluster = {**found.get("cluster", {}), **{f"chip.{key}": value for key, value in chip_values.items()}}
        on_model = found.get("model", {})
    if price is not None and isinstance(on, str):
        on_cluster["usd_per_chip_hour"] = float(price)
    rack = rented_as(cluster_of(on, on_cluster), rent, price)
    if price is not None and not isinstance(on, str):
        rack = replace(rack, usd_per_chip_hour=float(price), rent="")
    if chips is not None:
        rack = rack.with_num_chips(int(chips))
    if isinstance(model, str):
        return lookup.model(model, on_model), rack
    built = cast("AnyModel", model)
    lookup.watch.uses(built)
    return built, rack


def rent_kind(text: str) -> RentKind:
    """A kind of price of a chip-hour.

    Raises:
        InputError: an unknown one.
    """
    from rackline.hardware.chip import RENT_KINDS

    kind: RentKind | None = next((known for known in RENT_KINDS if known == text.replace("-", "_")), None)
    if kind is None:
        known = [one.replace("_", "-") for one in RENT_KINDS]
        near = nearest_names(text, known, 1)
        raise InputError(what="rent", given=text, allowed=", ".join(known), nearest=near[0] if near else None)
    return kind


def rented_as(rack: Cluster, rent: str | None, price: Quantity | None = None) -> Cluster:
    """The cluster at a kind of price.

    Raises:
        InputError: a kind beside a price, or an unknown one.
    """
    if rent is None:
        return rack
    if price is not None:
        raise InputError(what="rent", given=rent, allowed="either a kind of rent or `price`")
    from rackline.hardware import rented

    return rented(rack, rent_kind(rent))


def billed_as(rack: Cluster, bill: str) -> Cluster:
    """The cluster, rented in whole units or chip by chip.

    Args:
        bill: "whole" or "used".
    """
    return replace(rack, rented_chips=1) if bill == "used" else rack


def cluster_of(on: ClusterLike, overrides: dict[str, object] | None = None) -> Cluster:
    """The cluster of a name or file, with values replaced; an object as it is."""
    from rackline.hardware import cluster

    return cluster(on, overrides or None) if isinstance(on, str) else cast("Cluster", on)


def precisions_of(labels: Sequence[str], model: AnyModel, cluster: Cluster) -> list[Precision] | None:
    """Precisions by label; None for the default ones."""
    from rackline.parallel import precision

    return [precision(label, model, cluster.chip) for label in labels] or None


def modes_of(labels: Sequence[str], model: AnyModel) -> list[Mode] | None:
    """Read ADMISSION[=TOKENS][,overlap]; None for the default ones.

    Raises:
        InputError: an unknown admission, or overlap for a model without experts.
    """
    from rackline.arch import Model
    from rackline.serving.workload import Admission, Mode

    budgets: dict[Admission, int] = {"chunked": 8192, "prefill_first": 16384, "decode_first": 16384}
    found: list[Mode] = []
    for label in labels:
        head, *extras = [part.strip() for part in label.split(",")]
        name, equals, budget = head.partition("=")
        written = name.strip().replace("-", "_")
        allowed = "chunked[=TOKENS], prefill-first[=TOKENS] or decode-first[=TOKENS], each also with ,overlap"
        admission: Admission | None = next((known for known in budgets if known == written), None)
        if admission is None or any(extra != "overlap" for extra in extras):
            near = nearest_names(written, budgets, 1)
            nearest = near[0].replace("_", "-") if near else "chunked"
            raise InputError(what="mode", given=label, allowed=allowed, nearest=nearest)
        if extras and not (isinstance(model, Model) and model.is_moe):
            raise InputError(
                what="mode", given=label, allowed=f"no overlap: {model.name} exchanges no expert tokens", nearest=head
            )
        most = whole_count(budget, "mode tokens") if equals else budgets[admission]
        found.append(Mode(admission=admission, max_batched_tokens=most, two_batch_overlap=bool(extras)))
    return found or None


def whole_count(value: Quantity, name: str, minimum: int = 1, maximum: float = 1e9) -> int:
    """A whole number inside of a text.

    Raises:
        InputError: a fraction; else as `parse_count`.
    """
    found = parse_count(value, name=name, minimum=minimum, maximum=maximum, zero_allowed=minimum == 0)
    if not found.is_integer():
        raise InputError(what=name, given=value, allowed="a whole number", nearest=str(max(minimum, round(found))))
    return int(found)


def check_overlap(modes: Sequence[Mode] | None, layouts: Sequence[Layout] | None, cluster: Cluster) -> None:
    """Two-batch overlap hides the exchange between attention-dp ranks: refuse it where there is only one.

    Raises:
        InputError: every mode overlaps and no layout has several ranks.
    """
    if not modes or not all(mode.two_batch_overlap for mode in modes):
        return
    if cluster.num_chips > 1 and (layouts is None or any(layout.attention_dp > 1 for layout in layouts)):
        return
    raise InputError(
        what="mode",
        given=modes[0].label(),
        allowed="no overlap: it needs a layout with attention_dp of at least 2",
        nearest=modes[0].admission.replace("_", "-"),
    )


def layouts_of(text: Any, model: AnyModel, cluster: Cluster) -> list[Layout] | None:
    """Layouts that have the parts that are named ("tp=8" leaves the others free); None for all.

    Raises:
        LayoutError: there is none, with the nearest one that is possible.
    """
    if text is None:
        return None
    from rackline.parallel import enumerate_layouts, parse_layout
    from rackline.parallel.layout import check

    wanted = parse_layout(text, model)
    if not text.strip(" ,"):
        raise LayoutError(what="layout", given=text, allowed="parts such as tp=8,ep=8", nearest="tp=1")
    named = [part.partition("=")[0].strip().replace("-", "_") for part in text.split(",") if part.strip()]
    if "dp" in named:
        raise LayoutError(
            what="layout",
            given=text,
            allowed="the degrees of one replica; replicas fill all chips, see `chips`",
        )
    options = enumerate_layouts(model, cluster.num_chips)
    matching = [o for o in options if all(getattr(o, name) == getattr(wanted, name) for name in named)]
    if not matching:
        check(wanted, model, cluster.num_chips)
        matching = [wanted]
    return matching


def routing_of(text: str | None) -> Routing | None:
    """Read a law of routing; nothing without a text, which leaves it to the stack.

    "uniform", "balanced", "power-law=EXPONENT" or "log-normal=SPREAD", whose spread is that of as many experts if it is
    not given; the last two with "+COPIES" where experts are rearranged with this number of redundant ones.

    Raises:
        InputError: another law.
    """
    from rackline.parallel import Routing
    from rackline.passes.routing import POPULAR, ROUTING_LAWS, RoutingLaw

    if text is None:
        return None
    known: dict[str, RoutingLaw] = {name.replace("_", "-"): name for name in ROUTING_LAWS}
    words, plus, copies = text.partition("+")
    name, equals, skew = words.strip().partition("=")
    law = known.get(name.strip().replace("_", "-"))
    if law is None or ((equals or plus) and law not in POPULAR):
        near = nearest_names(name.strip(), known, 1)
        raise InputError(
            what="routing",
            given=text,
            allowed="balanced, uniform, log-normal[=SPREAD][+COPIES] or power-law=EXPONENT[+COPIES]",
            nearest=near[0] if near else None,
        )
    exponent, spread = 0.0, None
    match law:
        case "power_law":
            exponent = parse_count(skew, name="routing exponent", maximum=10.0) if equals else 0.5
        case "log_normal":
            spread = parse_count(skew, name="routing spread", maximum=10.0) if equals else None
        case "balanced" | "uniform":
            pass
        case _:
            assert_never(law)
    return Routing(
        law=law,
        exponent=exponent,
        spread=spread,
        rearranged_from_ep=1 if plus else None,
        redundant_experts=_copies(text, copies) if plus else 0,
    )


def _copies(text: str, copies: str) -> int:
    if not copies.strip().isdecimal() or int(copies) > _MOST_COPIES:
        raise InputError(what="routing", given=text, allowed=f"0 to {_MOST_COPIES} redundant experts after +")
    return int(copies)


def calibration_of(given: CalibrationLike, chip: Chip) -> Calibration:
    """The numbers of a name or file on a chip.

    Raises:
        UnknownNameError: neither a name nor a file.
        CatalogError: a file that breaks the schema.
    """
    from rackline.catalog import names
    from rackline.passes import calibration

    if not isinstance(given, str):
        return cast("Calibration", given)
    try:
        return calibration(given, chip)
    except UnknownNameError as error:
        if given.endswith(".toml"):
            raise
        allowed = ["auto", *names("calibrations")]
        near = nearest_names(given, allowed, 1)
        raise UnknownNameError(
            what="calibration",
            given=given,
            allowed=f"{', '.join(allowed)} or a TOML file",
            nearest=near[0] if near else None,
        ) from error


def constraints_of(tpot: Quantity | None, ttft: Quantity | None, memory_fraction: float = 0.9) -> Constraints:
    """Limits of a plan, each at the mean or at a percentile.

    Args:
        tpot, ttft: such as 0.03 [s], "30ms" or "2s@p99"; None for no limit.
    """
    from rackline.search import Constraints

    tpot_s, tpot_percentile = (None, None) if tpot is None else latency_limit(tpot, "tpot")
    ttft_s, ttft_percentile = (None, None) if ttft is None else latency_limit(ttft, "ttft")
    return Constraints(
        tpot_s=tpot_s,
        ttft_s=ttft_s,
        tpot_percentile=tpot_percentile,
        ttft_percentile=ttft_percentile,
        memory_fraction=memory_fraction,
    )


def stack_named(text: str | None, numbers: Calibration, chip: Chip) -> Stack:
    """A stack by NAME or NAME=VERSION, with its version's defaults on a chip; that of a calibration without a text.

    Raises:
        UnknownNameError, CatalogError: as the catalogue.
    """
    from rackline.serving.stack import stack, stack_of

    if text is None:
        return stack_of(numbers, chip.hbm_bytes)
    name, _, version = text.partition("=")
    return stack(name, version=version, hbm_bytes=chip.hbm_bytes)


def sample_bytes(sampling: Sampling, stack: Stack) -> float:
    """Memory traffic of a logit while tokens are drawn in this way under a stack [bytes]."""
    match sampling:
        case "greedy":
            return 0.0
        case "top-p":
            return stack.sample_bytes_per_logit
        case _:
            assert_never(sampling)
