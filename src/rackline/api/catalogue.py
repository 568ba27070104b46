"""The questions about the catalogue: chips, clusters and memory tiers, with the sources of their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

from rackline.api.answer import Answer, Watch, asks
from rackline.api.option import Option, Settings, option, shared
from rackline.api.question import Question, question
from rackline.api.resolve import Owner, assignments, share_out
from rackline.api.verbs import Entry
from rackline.errors import InputError
from rackline.late import late

with late:
    from rackline import catalog, hardware
    from rackline.catalog import base
    from rackline.hardware import chip_check
    from rackline.report import catalogue_report
    from rackline.serving import crossover


NAME = Option(kind="text", help="catalogue name or TOML file; without it, all are listed")


def set_option(example: str) -> Any:
    """Settings of one object."""
    return option("settings", f"KEY=VALUE replaces a number, such as {example}; may be repeated", default=None)


def overrides_of(record: base.SourcedRecord, kind: str, settings: Sequence[str]) -> dict[str, object]:
    """Settings as overrides of a record.

    Raises:
        CatalogError: a key that it does not have.
    """
    return share_out(assignments(settings), [Owner(name=kind, keys=tuple(catalog.settable_keys(record)))])[0]


def refuse_settings(settings: Sequence[str]) -> None:
    """Settings belong to one object.

    Raises:
        InputError: there are some.
    """
    given = assignments(settings)
    if given:
        key, value = next(iter(given.items()))
        raise InputError(what="set", given=f"{key}={value}", allowed="only together with the name of one object")


@question
class ChipsQuestion(Question):
    """Which chips are known, and where do their numbers come from?"""

    ask: ClassVar[str] = "chips"

    name: str | None = shared(NAME, default=None, kw_only=False)
    ridge: bool = option("switch", "ridge points by data type, and the time to read all of memory once", default=False)
    check: bool = option(
        "switch", "all that is missing or doubtful in the record, and what it does to answers", default=False
    )
    set: Settings = set_option("hbm_bytes_per_s=20TB/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chips:
    """Chips of the catalogue.

    Args:
        chips: their records.
        ridges: their ridge points, where these were asked for.
        findings: what one of them lacks or leaves in doubt, where that was asked for.
    """

    chips: tuple[hardware.ChipRecord, ...] = ()
    ridges: tuple[crossover.Ridge, ...] = ()
    findings: tuple[chip_check.ChipFinding, ...] = ()


def _chips_text(answer: Answer[ChipsQuestion, Chips], width: int) -> Iterable[Any]:
    found = answer.result
    if answer.question.ridge:
        yield catalogue_report.ridge_table(found.ridges)
    elif answer.question.check:
        yield catalogue_report.findings_report(found.chips[0], found.findings)
    elif answer.question.name is not None:
        yield catalogue_report.record_report(found.chips[0])
    else:
        yield catalogue_report.chips_table([hardware.chip_from_record(record) for record in found.chips])


class ChipList(TypedDict):
    """All chips."""

    chips: tuple[hardware.ChipRecord, ...]


class RidgeList(TypedDict):
    """Ridge points."""

    ridges: tuple[crossover.Ridge, ...]


class ChipChecked(TypedDict):
    """One chip with what its record lacks or leaves in doubt."""

    chip: str
    findings: tuple[chip_check.ChipFinding, ...]


def _chips_data(answer: Answer[ChipsQuestion, Chips]) -> hardware.ChipRecord | ChipList | RidgeList | ChipChecked:
    found = answer.result
    if answer.question.check:
        return {"chip": found.chips[0].name, "findings": found.findings}
    if answer.question.ridge:
        return {"ridges": found.ridges}
    return found.chips[0] if answer.question.name is not None else {"chips": found.chips}


def _chips_summary(answer: Answer[ChipsQuestion, Chips]) -> str:
    found = answer.result
    names = [one.name for one in found.chips] or [one.chip for one in found.ridges]
    return names[0] if len(names) == 1 else f"{len(names)} chips"


def _chips_rows(answer: Answer[ChipsQuestion, Chips]) -> Iterable[Any]:
    return answer.result.findings or answer.result.ridges or answer.result.chips


@asks(
    ChipsQuestion,
    text=_chips_text,
    summary=_chips_summary,
    rows=_chips_rows,
    data=_chips_data,
    entry=Entry(
        group="Catalogue",
        place=1,
        line="The chips, or one with the sources of its numbers.",
        request={"name": "h100-sxm"},
        examples="""
    rackline chips
    rackline chips --ridge
    rackline chips h100
    rackline chips h100 --set hbm_bytes_per_s=20TB/s --json
""",
    ),
)
def chips(question: ChipsQuestion, watch: Watch) -> Chips:
    """List the chips, or show one with the sources of its numbers.

    Example:
        >>> import rackline as rl
        >>> rl.chips("h100").result.chips[0].name
        'h100-sxm'
        >>> [finding.key for finding in rl.chips("rtx-4090", check=True).result.findings][:2]
        ['power', 'usd_per_chip_hour']
    """
    name = question.name
    if question.check and (name is None or question.ridge):
        raise InputError(
            what="check",
            given="with --ridge" if question.ridge else "no name",
            allowed="with the name of one chip alone",
        )
    if question.ridge:
        refuse_settings(question.set)
        return Chips(
            ridges=tuple(
                crossover.ridges(
                    [hardware.chip(each) for each in (catalog.names("chips") if name is None else (name,))]
                )
            )
        )
    if name is not None:
        record = hardware.chip_record(name, overrides=overrides_of(hardware.chip_record(name), "chip", question.set))
        if question.check:
            return Chips(chips=(record,), findings=chip_check.check_chip(record))
        return Chips(chips=(record,))
    refuse_settings(question.set)
    return Chips(chips=tuple(hardware.chip_record(each) for each in catalog.names("chips")))


@question
class ClustersQuestion(Question):
    """Which clusters are known, and where do their numbers come from?"""

    ask: ClassVar[str] = "clusters"

    name: str | None = shared(NAME, default=None, kw_only=False)
    set: Settings = set_option("usd_per_chip_hour=2.5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """Clusters of the catalogue.

    Args:
        clusters: their records.
        cluster: the one that was asked for by name.
    """

    clusters: tuple[hardware.ClusterRecord, ...]
    cluster: hardware.Cluster | None = None


def _clusters_text(answer: Answer[ClustersQuestion, Clusters], width: int) -> Iterable[Any]:
    found = answer.result
    if found.cluster is None:
        yield catalogue_report.clusters_table(found.clusters)
    else:
        yield catalogue_report.record_report(found.clusters[0])
        yield ""
        yield catalogue_report.rack_table(found.cluster)


class ClusterList(TypedDict):
    """All clusters."""

    clusters: tuple[hardware.ClusterRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShown:
    """One cluster with its racks, switches, cables and paths."""

    json_keys: ClassVar = ("*record", "rack")

    record: hardware.ClusterRecord
    rack: catalogue_report.Racks


def _clusters_data(answer: Answer[ClustersQuestion, Clusters]) -> ClusterShown | ClusterList:
    found = answer.result
    if found.cluster is None:
        return {"clusters": found.clusters}
    return ClusterShown(record=found.clusters[0], rack=catalogue_report.racks(found.cluster))


def _clusters_summary(answer: Answer[ClustersQuestion, Clusters]) -> str:
    found = answer.result
    return found.clusters[0].name if found.cluster is not None else f"{len(found.clusters)} clusters"


def _clusters_rows(answer: Answer[ClustersQuestion, Clusters]) -> Iterable[Any]:
    return answer.result.clusters


@asks(
    ClustersQuestion,
    text=_clusters_text,
    summary=_clusters_summary,
    rows=_clusters_rows,
    data=_clusters_data,
    entry=Entry(
        group="Catalogue",
        place=2,
        line="The clusters, or one with the sources of its numbers.",
        request={"name": "gb200-nvl72"},
        examples="""
    rackline clusters
    rackline clusters gb200-nvl72
""",
    ),
)
def clusters(question: ClustersQuestion, watch: Watch) -> Clusters:
    """List the clusters, or show one with the sources of its numbers, its racks, switches, cables and paths.

    Example:
        >>> import rackline as rl
        >>> rl.clusters("gb200-nvl72")
        <clusters: gb200-nvl72>
    """
    if question.name is None:
        refuse_settings(question.set)
        return Clusters(clusters=tuple(hardware.cluster_record(each) for each in catalog.names("clusters")))
    given = overrides_of(hardware.cluster_record(question.name), "cluster", question.set)
    record = hardware.cluster_record(question.name, overrides=given)
    return Clusters(clusters=(record,), cluster=hardware.cluster(question.name, given or None))


@question
class MemoryQuestion(Question):
    """Which memory tiers are known, and where do their numbers come from?"""

    ask: ClassVar[str] = "memory"

    name: str | None = shared(NAME, default=None, kw_only=False)
    set: Settings = set_option("usd_per_byte=5e-9")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTiers:
    """Memory tiers of the catalogue.

    Args:
        memory: their records.
    """

    memory: tuple[hardware.MemoryTierRecord, ...]


def _memory_text(answer: Answer[MemoryQuestion, MemoryTiers], width: int) -> Iterable[Any]:
    found = answer.result.memory
    yield (
        catalogue_report.memory_table(found)
        if answer.question.name is None
        else catalogue_report.record_report(found[0])
    )


def _memory_data(answer: Answer[MemoryQuestion, MemoryTiers]) -> MemoryTiers | hardware.MemoryTierRecord:
    return answer.result if answer.question.name is None else answer.result.memory[0]


def _memory_summary(answer: Answer[MemoryQuestion, MemoryTiers]) -> str:
    found = answer.result.memory
    return found[0].name if len(found) == 1 else f"{len(found)} memory tiers"


def _memory_rows(answer: Answer[MemoryQuestion, MemoryTiers]) -> Iterable[Any]:
    return answer.result.memory


@asks(
    MemoryQuestion,
    text=_memory_text,
    summary=_memory_summary,
    rows=_memory_rows,
    data=_memory_data,
    entry=Entry(
        group="Catalogue",
        place=3,
        line="The memory tiers, or one with the sources of its numbers.",
        request={},
        examples="""
    rackline memory
    rackline memory nvme-gen5
""",
    ),
)
def memory(question: MemoryQuestion, watch: Watch) -> MemoryTiers:
    """List the memory tiers, or show one with the sources of its numbers.

    Example:
        >>> import rackline as rl
        >>> rl.memory("nvme-gen5")
        <memory: nvme-gen5>
    """
    name = question.name
    if name is None:
        refuse_settings(question.set)
        return MemoryTiers(memory=tuple(hardware.memory_record(each) for each in catalog.names("memory")))
    given = overrides_of(hardware.memory_record(name), "memory tier", question.set)
    return MemoryTiers(memory=(hardware.memory_record(name, overrides=given),))
