"""The questions about the catalogue: chips, clusters and memory tiers, with the sources of their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypedDict, TypeVar

from rackline.api.answer import Answer, Watch, asks
from rackline.api.question import Option, Question, Settings, option, question, shared
from rackline.api.resolve import Owner, assignments, share_out
from rackline.api.verbs import Entry
from rackline.errors import InputError, require
from rackline.files import check_outputs, write_text
from rackline.late import late

with late:
    from rackline import catalog, hardware
    from rackline.catalog import base
    from rackline.hardware import chip_check
    from rackline.report import catalogue_report
    from rackline.serving import curve

T = TypeVar("T")
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


def records_of(kind: str, name: str | None, settings: Sequence[str], read: Callable[..., T]) -> tuple[T, ...]:
    """All records of a kind, or the named one with what is set in it.

    Args:
        kind: folder of the catalogue.
        read: makes a record of a name and overrides.

    Raises:
        InputError: settings without a name.
        CatalogError: a key that the record does not have.
    """
    if name is None:
        refuse_settings(settings)
        return tuple(read(each) for each in catalog.names(kind))
    record: Any = read(name)
    return (read(name, overrides=overrides_of(record, _OWNERS[kind], settings)),)


_OWNERS = {"chips": "chip", "clusters": "cluster", "memory": "memory tier"}


@question
class ChipsQuestion(Question):
    """Which chips are known, and where do their numbers come from?"""

    name: str | None = shared(NAME, default=None, kw_only=False)
    ridge: bool = option("switch", "ridge points by data type, and the time to read all of memory once", default=False)
    check: bool = option(
        "switch", "list what is missing or doubtful in the record, and how that affects answers", default=False
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

    json_keys: ClassVar = ("chips",)

    chips: tuple[hardware.ChipRecord, ...] = ()
    ridges: tuple[curve.Ridge, ...] = ()
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


class RidgeList(TypedDict):
    """Ridge points."""

    ridges: tuple[curve.Ridge, ...]


class ChipChecked(TypedDict):
    """One chip with what its record lacks or leaves in doubt."""

    chip: str
    findings: tuple[chip_check.ChipFinding, ...]


def _chips_data(answer: Answer[ChipsQuestion, Chips]) -> hardware.ChipRecord | Chips | RidgeList | ChipChecked:
    found = answer.result
    if answer.question.check:
        return {"chip": found.chips[0].name, "findings": found.findings}
    if answer.question.ridge:
        return {"ridges": found.ridges}
    return found.chips[0] if answer.question.name is not None else found


def _counted(names: Sequence[str], what: str) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} {what}"


@asks(
    ChipsQuestion,
    text=_chips_text,
    summary=lambda answer: _counted(
        [one.name for one in answer.result.chips] or [one.chip for one in answer.result.ridges], "chips"
    ),
    rows=lambda answer: answer.result.findings or answer.result.ridges or answer.result.chips,
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
        names = catalog.names("chips") if name is None else (name,)
        return Chips(ridges=tuple(curve.ridges([hardware.chip(each) for each in names])))
    records = records_of("chips", name, question.set, hardware.chip_record)
    return Chips(chips=records, findings=chip_check.check_chip(records[0]) if question.check else ())


@question
class ClustersQuestion(Question):
    """Which clusters are known, and where do their numbers come from?"""

    name: str | None = shared(NAME, default=None, kw_only=False)
    set: Settings = set_option("usd_per_chip_hour=2.5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """Clusters of the catalogue.

    Args:
        clusters: their records.
        cluster: the one that was asked for by name.
    """

    json_keys: ClassVar = ("clusters",)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShown:
    """One cluster with its racks, switches, cables and paths."""

    json_keys: ClassVar = ("*record", "rack")

    record: hardware.ClusterRecord
    rack: catalogue_report.Racks


def _clusters_data(answer: Answer[ClustersQuestion, Clusters]) -> ClusterShown | Clusters:
    found = answer.result
    if found.cluster is None:
        return found
    return ClusterShown(record=found.clusters[0], rack=catalogue_report.racks(found.cluster))


@asks(
    ClustersQuestion,
    text=_clusters_text,
    summary=lambda answer: _counted([one.name for one in answer.result.clusters], "clusters"),
    rows=lambda answer: answer.result.clusters,
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
    name = question.name
    records = records_of("clusters", name, question.set, hardware.cluster_record)
    if name is None:
        return Clusters(clusters=records)
    given = overrides_of(hardware.cluster_record(name), "cluster", question.set)
    return Clusters(clusters=records, cluster=hardware.cluster(name, given or None))


@question
class MemoryQuestion(Question):
    """Which memory tiers are known, and where do their numbers come from?"""

    name: str | None = shared(NAME, default=None, kw_only=False)
    set: Settings = set_option("usd_per_byte=5e-9")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTiers:
    """Memory tiers of the catalogue.

    Args:
        memory: their records.
    """

    memory: tuple[hardware.MemoryTierRecord, ...]


def _memory_data(answer: Answer[MemoryQuestion, MemoryTiers]) -> MemoryTiers | hardware.MemoryTierRecord:
    return answer.result if answer.question.name is None else answer.result.memory[0]


@asks(
    MemoryQuestion,
    text=lambda answer, width: [
        catalogue_report.memory_table(answer.result.memory)
        if answer.question.name is None
        else catalogue_report.record_report(answer.result.memory[0])
    ],
    summary=lambda answer: _counted([one.name for one in answer.result.memory], "memory tiers"),
    rows=lambda answer: answer.result.memory,
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
    return MemoryTiers(memory=records_of("memory", question.name, question.set, hardware.memory_record))


THINGS = ("chip", "cluster", "model", "memory", "prices")


@question
class NewQuestion(Question):
    """Where do I begin with a chip, cluster, model, memory tier or price sheet of my own?"""

    kind: str = option("text", ", ".join(THINGS), choices=THINGS, kw_only=False)
    name: str = option("text", "name of the new entry, such as my-chip", kw_only=False)
    like: str | None = option(
        "text",
        "catalogue entry to copy the numbers from; the one with the nearest name by default",
        default=None,
    )
    output: str | None = option(
        "text",
        "file to write; NAME.toml in the current folder by default",
        default=None,
        short="o",
        output=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file that was written.

    Args:
        kind: chip, cluster, model, memory or prices.
        name: of the entry.
        nearest: entry of the catalogue whose numbers it has.
        file: its path.
    """

    kind: str
    name: str
    nearest: str
    file: str


def _new_summary(answer: Answer[NewQuestion, Written]) -> str:
    found = answer.result
    return f"{found.file}: {found.kind} {found.name} with the numbers of {found.nearest}"


@asks(
    NewQuestion,
    text=lambda answer, width: [_new_summary(answer)],
    summary=_new_summary,
    rows=lambda answer: [answer.result],
    entry=Entry(
        group="Catalogue",
        place=4,
        line="A file for your own chip, cluster, model, memory or prices.",
        elsewhere="writes a file",
        examples="""
    rackline new chip my-chip --like b200
    rackline chips my-chip.toml
    rackline new cluster my-rack -o racks/my-rack.toml
""",
    ),
)
def new(question: NewQuestion, watch: Watch) -> Written:
    """Write a commented file for a chip, cluster, model, memory tier or price sheet of your own.

    It has the numbers of the nearest entry of the catalogue, and works at once in place of a name.

    Example:
        >>> import rackline as rl
        >>> from pathlib import Path
        >>> rl.new("chip", "my-chip", like="b200").result.file
        'my-chip.toml'
        >>> rl.chips("my-chip.toml")
        <chips: my-chip>
        >>> Path("my-chip.toml").unlink()
    """
    target = Path(question.output or f"{question.name}.toml")
    require(target.suffix == ".toml", what="output", given=str(target), allowed="a name that ends in .toml")
    if target.exists():  # before the nearest entry is looked for: a name would find this file
        raise InputError(what="output", given=str(target), allowed="a file that does not exist yet")
    found: chip_check.Template = chip_check.template(question.kind, question.name, question.like)
    check_outputs({"output": target})
    write_text(target, found.text, what="output")
    return Written(kind=found.kind, name=found.name, nearest=found.nearest, file=str(target))
