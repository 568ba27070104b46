"""`rackline compare`: chips, clusters, models or deployments side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rackline.cli.options import (
    Json,
    MaybeValue,
    Value,
    find_calibration,
    latency_limit,
    read_model_and_cluster,
    tokens,
)
from rackline.cli.screen import print_json, progress, screen
from rackline.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from rackline.report.compare_report import Side


def compare(
    *names: str,
    input_len: Annotated[Value, Parameter(name="--input")] = "4k",
    output_len: Annotated[Value, Parameter(name="--output")] = "1k",
    tpot: MaybeValue = None,
    ttft: MaybeValue = None,
    calibration: str = "auto",
    json: Json = False,
) -> None:
    """Chips, clusters, models or deployments side by side, each number over that of the first.

    Args:
        names: two or more of one kind: chips, clusters, models, or deployments as MODEL@CLUSTER
        input_len: prompt tokens of a request, for deployments
        output_len: generated tokens of a request, for deployments
        tpot: largest time per output token of deployments: of the mean, such as 30ms, or of a percentile: 50ms@p90
        ttft: largest time to first token of deployments: of the mean, such as 2s, or of a percentile: 2s@p99
        calibration: of deployments: auto, trtllm, vllm, sglang, generic, unit or a TOML file
        json: print JSON (SI units) and nothing else
    """
    if len(names) < 2:
        raise InputError(what="names", given=" ".join(names) or "nothing", allowed="two or more of one kind")
    from rackline.report.compare_report import compare_data, compare_table

    if any("@" in name for name in names):
        what, sides = "deployments", _deployments(names, (input_len, output_len), (tpot, ttft), calibration)
    else:
        what, sides = _catalogue(names)
    if json:
        print_json(compare_data(sides, what=what))
        return
    screen().print(compare_table(sides, what=what))


def _catalogue(names: tuple[str, ...]) -> tuple[str, list[Side]]:
    """The kind of which all names are, and their sides."""
    from rackline.arch import model
    from rackline.hardware import chip, cluster
    from rackline.report.compare_report import chip_side, cluster_side, model_side

    kinds: dict[str, Callable[[str], Side]] = {
        "chips": lambda name: chip_side(chip(name)),
        "clusters": lambda name: cluster_side(cluster(name)),
        "models": lambda name: model_side(model(name)),
    }
    missed: dict[str, UnknownNameError] = {}
    best = ("", -1)
    for what, build in kinds.items():
        sides: list[Side] = []
        try:
            for name in names:
                sides.append(build(name))
            return what, sides
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


def _deployments(
    names: tuple[str, ...], request: tuple[str, str], limits: tuple[str | None, str | None], calibration: str
) -> list[Side]:
    from rackline.report.compare_report import deployment_side
    from rackline.search import Constraints, plan
    from rackline.serving.workload import Workload

    workload = Workload(input_len=tokens(request[0], "--input"), output_len=tokens(request[1], "--output", 2.0))
    (tpot_s, tpot_at), (ttft_s, ttft_at) = latency_limit(limits[0], "--tpot"), latency_limit(limits[1], "--ttft")
    wanted = Constraints(tpot_s=tpot_s, ttft_s=ttft_s, tpot_percentile=tpot_at, ttft_percentile=ttft_at)
    sides: list[Side] = []
    for name in names:
        model_name, separator, cluster_name = name.partition("@")
        if not separator or not model_name or not cluster_name:
            raise InputError(what="deployment", given=name, allowed="MODEL@CLUSTER, for all names")
        model, cluster = read_model_and_cluster(model_name, cluster_name, chips=None, price=None, sets=None)
        with progress(f"planning {name}"):
            answer = plan(
                model,
                cluster,
                workload,
                calibration=find_calibration(calibration, cluster.chip),
                constraints=wanted,
            )
        sides.append(deployment_side(name, answer))
    return sides
