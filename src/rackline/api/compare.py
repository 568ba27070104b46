"""`compare`: chips, clusters, models or deployments side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.api.answer import Answer, asks
from rackline.api.fields import INPUT, OUTPUT
from rackline.api.model_question import ModelQuestion
from rackline.api.option import Quantity, limit, option, si, texts
from rackline.api.resolve import Lookup, calibration_of, constraints_of, lookup_of, model_and_cluster
from rackline.api.watch import Watch
from rackline.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from rackline.api.option import CalibrationLike, Texts
    from rackline.report.compare_report import Comparison, Side
    from rackline.report.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareQuestion(ModelQuestion):
    """How do chips, clusters, models or deployments compare, each number relative to the first?"""

    ask: ClassVar[str] = "compare"

    names: Texts = field(
        kw_only=False,
        metadata=option(
            "text",
            "two or more of one kind: chips, clusters, models, or deployments as MODEL@CLUSTER",
            positional=True,
            several=True,
        ),
    )
    input: Quantity = field(default="4k", metadata=INPUT)
    output: Quantity = field(default="1k", metadata=OUTPUT)
    tpot: Quantity | None = field(default=None, metadata=limit("time per output token of deployments", "30ms"))
    ttft: Quantity | None = field(default=None, metadata=limit("time to first token of deployments", "2s"))
    calibration: CalibrationLike = field(
        default="auto",
        metadata=option(
            "object", "calibration of deployments: auto, trtllm, vllm, sglang, generic, unit or a TOML file"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Things of one kind side by side.

    Args:
        kind: chips, clusters, models or deployments.
        sides: in the order of the names.
    """

    kind: str
    sides: tuple[Side, ...]


def _text(answer: Answer[CompareQuestion, Compared], width: int) -> Iterable[Any]:
    from rackline.report.compare_report import compare_table

    yield compare_table(answer.result.sides, what=answer.result.kind)


def _data(answer: Answer[CompareQuestion, Compared]) -> Comparison:
    from rackline.report.compare_report import compare_data

    return compare_data(answer.result.sides, what=answer.result.kind)


def _summary(answer: Answer[CompareQuestion, Compared]) -> str:
    return f"{len(answer.result.sides)} {answer.result.kind}: {', '.join(side.name for side in answer.result.sides)}"


def _rows(answer: Answer[CompareQuestion, Compared]) -> Iterable[Any]:
    return [{"name": side.name, **side.values} for side in answer.result.sides]


def _figure(answer: Answer[CompareQuestion, Compared]) -> Figure:
    from rackline.report.compare_figure import compare_figure

    return compare_figure(answer.result.sides, what=answer.result.kind)


@asks(CompareQuestion, text=_text, summary=_summary, rows=_rows, data=_data, figures={"ratios": _figure})
def compare(question: CompareQuestion, watch: Watch) -> Compared:
    """Chips, clusters, models or deployments side by side, each number over that of the first.

    Example:
        >>> import rackline as rl
        >>> rl.compare(["h100", "b200"])
        <compare: 2 chips: h100-sxm, b200-sxm>
    """
    names = texts(question.names)
    if len(names) < 2:
        raise InputError(what="names", given=" ".join(names), allowed="two or more of one kind")
    if any("@" in name for name in names):
        return Compared(kind="deployments", sides=tuple(_deployment(name, question, watch) for name in names))
    return _of_the_catalogue(names, lookup_of(question, watch))


def _of_the_catalogue(names: tuple[str, ...], lookup: Lookup) -> Compared:
    """The kind of which all names are, and their sides."""
    from rackline.hardware import chip, cluster
    from rackline.report.compare_report import chip_side, cluster_side, model_side

    kinds: dict[str, Callable[[str], Side]] = {
        "chips": lambda name: chip_side(chip(name)),
        "clusters": lambda name: cluster_side(cluster(name)),
        "models": lambda name: model_side(lookup.model(name)),
    }
    missed: dict[str, UnknownNameError] = {}
    best = ("", -1)
    for what, build in kinds.items():
        sides: list[Side] = []
        try:
            for name in names:
                sides.append(build(name))
            return Compared(kind=what, sides=tuple(sides))
        except UnknownNameError as error:
            missed[what] = error
            best = max(best, (what, len(sides)), key=lambda pair: pair[1])
    if best[1] > 0:  # the first names are of this kind, a later one is not
        raise missed[best[0]]
    raise UnknownNameError(
        what="compare",
        given=names[0],
        allowed="a chip, a cluster, a model (catalogue name or file) or MODEL@CLUSTER",
        nearest=", ".join(near for error in missed.values() if (near := error.nearest)) or None,
    )


def _deployment(name: str, question: CompareQuestion, watch: Watch) -> Side:
    from rackline.report.compare_report import deployment_side
    from rackline.search import plan
    from rackline.serving.workload import Workload

    model_name, separator, cluster_name = name.rpartition("@")
    if not separator or not model_name or not cluster_name:
        raise InputError(what="deployment", given=name, allowed="MODEL@CLUSTER, for all names")
    model, cluster = model_and_cluster(model_name, cluster_name, lookup=lookup_of(question, watch))
    with watch.moving(f"planning {name}"):
        answer = plan(
            model,
            cluster,
            Workload(input_len=si(question.input), output_len=si(question.output)),
            calibration=calibration_of(question.calibration, cluster.chip),
            constraints=constraints_of(question.tpot, question.ttft),
        )
    return deployment_side(name, answer)
