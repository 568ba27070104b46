"""`clusters`: list the clusters, or show one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from rackline.api.answer import Answer, asks
from rackline.api.catalogue import name_option, overrides_of, refuse_settings, set_option
from rackline.api.question import Question
from rackline.api.watch import Watch

if TYPE_CHECKING:
    from rackline.api.option import Settings
    from rackline.hardware import Cluster, ClusterRecord
    from rackline.report.rack_report import Racks


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustersQuestion(Question):
    """Which clusters are known, and where do their numbers come from?"""

    ask: ClassVar[str] = "clusters"

    name: str | None = field(default=None, kw_only=False, metadata=name_option())
    set: Settings | None = field(default=None, metadata=set_option("usd_per_chip_hour=2.5"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """Clusters of the catalogue.

    Args:
        clusters: their records.
        cluster: the one that was asked for by name.
    """

    clusters: tuple[ClusterRecord, ...]
    cluster: Cluster | None = None


def _text(answer: Answer[ClustersQuestion, Clusters], width: int) -> Iterable[Any]:
    from rackline.report.catalogue_report import clusters_table, record_report
    from rackline.report.rack_report import rack_table

    found = answer.result
    if found.cluster is None:
        yield clusters_table(found.clusters, width=width)
    else:
        yield record_report(found.clusters[0])
        yield ""
        yield rack_table(found.cluster)


class ClusterList(TypedDict):
    """All clusters."""

    clusters: tuple[ClusterRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShown:
    """One cluster with its racks, switches, cables and paths."""

    json_keys: ClassVar = ("*record", "rack")

    record: ClusterRecord
    rack: Racks


def _data(answer: Answer[ClustersQuestion, Clusters]) -> ClusterShown | ClusterList:
    from rackline.report.rack_report import racks

    found = answer.result
    if found.cluster is None:
        return {"clusters": found.clusters}
    return ClusterShown(record=found.clusters[0], rack=racks(found.cluster))


def _summary(answer: Answer[ClustersQuestion, Clusters]) -> str:
    found = answer.result
    return found.clusters[0].name if found.cluster is not None else f"{len(found.clusters)} clusters"


def _rows(answer: Answer[ClustersQuestion, Clusters]) -> Iterable[Any]:
    return answer.result.clusters


@asks(ClustersQuestion, text=_text, summary=_summary, rows=_rows, data=_data)
def clusters(question: ClustersQuestion, watch: Watch) -> Clusters:
    """List the clusters, or show one with the sources of its numbers, its racks, switches, cables and paths.

    Example:
        >>> import rackline as rl
        >>> rl.clusters("gb200-nvl72")
        <clusters: gb200-nvl72>
    """
    from rackline.catalog import names
    from rackline.hardware import cluster, cluster_record

    if question.name is None:
        refuse_settings(question.set)
        return Clusters(clusters=tuple(cluster_record(each) for each in names("clusters")))
    given = overrides_of(cluster_record(question.name), "cluster", question.set)
    record = cluster_record(question.name, overrides=given)
    return Clusters(clusters=(record,), cluster=cluster(question.name, given or None))
