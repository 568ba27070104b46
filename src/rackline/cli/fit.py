"""`rackline fit`: what fits in memory, layout by layout."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rackline.cli.options import (
    Json,
    MaybeValue,
    On,
    Overrides,
    Value,
    find_calibration,
    memory_fraction,
    read_layouts,
    read_model_and_cluster,
    tokens,
    whole,
)
from rackline.cli.screen import print_json, progress, screen


def fit(
    model: str,
    /,
    *,
    on: On,
    context: Value = "8k",
    concurrency: MaybeValue = None,
    chips: MaybeValue = None,
    precision: str = "native",
    layout: str | None = None,
    memory: Annotated[Value, Parameter(name="--memory-fraction")] = "0.9",
    sets: Overrides = None,
    json: Json = False,
) -> None:
    """What fits: weights per chip, room for KV, largest context and concurrency, layout by layout.

    Args:
        model: catalogue name, Hugging Face id, TOML file or config.json
        on: cluster: catalogue name or TOML file
        context: tokens that each request holds, such as 32k
        concurrency: requests that must fit at once on the cluster
        chips: chips to use; the cluster's own number by default
        precision: native, bf16, fp8, fp4, mxfp4, int8, int4, or in parts such as fp8,kv=bf16
        layout: parts that are fixed, such as tp=8; the others stay free
        memory: share of HBM that the server may use
        sets: KEY=VALUE replaces a number of the model, cluster or chip; may be repeated
        json: print JSON (SI units) and nothing else
    """
    context_len = tokens(context, "--context")
    wanted = whole(concurrency, "--concurrency") if concurrency is not None else None
    fraction = memory_fraction(memory)
    found_model, cluster = read_model_and_cluster(model, on, chips=chips, sets=sets)

    from rackline.parallel import precision as find_precision
    from rackline.serving.capacity import capacity
    from rackline.serving.stack import stack_of

    with progress("looking at layouts"):
        found = capacity(
            found_model,
            cluster,
            find_precision(precision, found_model, cluster.chip),
            context_len=context_len,
            concurrency=wanted,
            server=stack_of(find_calibration("auto", cluster.chip), cluster.chip.hbm_bytes).memory(
                memory_fraction=fraction
            ),
            layouts=read_layouts(layout, found_model, cluster),
        )
    need = None
    if not found.fitting:
        from rackline.search.fits import smallest_cluster
        from rackline.serving.workload import Workload

        request = Workload(input_len=max(context_len - 2, 1), output_len=2)
        need = smallest_cluster(found_model, request, fraction)
    from rackline.report.capacity_report import capacity_report, nearest_reason

    if json:
        reason = "" if found.fitting else nearest_reason(found)
        print_json({**found.as_dict(), "reason": reason, "need": need.as_dict() if need else None})
        return
    out = screen()
    out.print(capacity_report(found, num_chips=cluster.num_chips, need=need))
