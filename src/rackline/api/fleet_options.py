"""Options of a load over time and of the fleet that follows it."""

from __future__ import annotations

from rackline.api.question import (
    MOST_CHIPS,
    MOST_SECONDS,
    MaybeNumber,
    MaybeWhole,
    Question,
    Texts,
    Whole,
    option,
    question,
    whole,
)

OVER_TIME = "Load over time"


@question
class Loaded(Question):
    """A question of requests whose rate changes over time."""

    load: str | None = option(
        "text",
        "rates over time: a CSV file with the columns time and rate, a recorded trace, whose rates are taken, or an "
        "assumed shape: day, week or burst; `rate` scales it to a mean",
        default=None,
        group=OVER_TIME,
    )
    load_time: MaybeNumber = option(
        "seconds",
        "stretch the load to this time, such as 24h",
        default=None,
        unit="s",
        maximum=MOST_SECONDS,
        group=OVER_TIME,
    )


@question
class Autoscaled(Question):
    """A question of a fleet whose replicas come and go."""

    autoscale: Texts = option(
        "text",
        "with `load`, how the number of replicas follows it: fixed, hpa (Kubernetes, on concurrency), hpa-kv (on KV "
        "use), keda (on the queue), dynamo-planner, seasonal or oracle; may be repeated; fixed by default",
        default=None,
        several=True,
        repeated=True,
        group=OVER_TIME,
    )
    scale_target: MaybeNumber = option(
        "count",
        "what a replica shall have of the policy's metric: requests for hpa, waiting ones for keda, the share of KV "
        "blocks for hpa-kv; by default what it has at 70 % of its highest rate within the limits, and 5 waiting",
        default=None,
        unit="1",
        maximum=1e6,
        group=OVER_TIME,
    )
    min_replicas: Whole = whole("fewest replicas of a pool", minimum=0, default="1", group=OVER_TIME)
    max_replicas: MaybeWhole = whole(
        "most replicas of a pool; by default as many as fit on the chips", default=None, group=OVER_TIME
    )
    start_up: str = option(
        "text",
        "start of a replica: warm (image and compiled graphs are on the machine), cold (a new machine), or a time "
        "such as 90s",
        default="warm",
        group=OVER_TIME,
    )
    weights_from: str = option(
        "text",
        "where a starting replica reads its weights: disk (an NVMe drive of the host), network (the cluster's), or a "
        "rate of a host such as 3GB/s",
        default="disk",
        group=OVER_TIME,
    )
    failures: str = option(
        "text",
        "failures of hosts: none, published (as large clusters report them), or the mean time between two failures of "
        "a host, such as 200d",
        default="none",
        group=OVER_TIME,
    )
    spare_hosts: Whole = whole(
        "hosts that stand by and are paid for, where hosts fail",
        minimum=0,
        maximum=MOST_CHIPS,
        default="0",
        group=OVER_TIME,
    )
    window: MaybeNumber = option(
        "seconds",
        "time that a row of the table over time covers; by default a 24th of the load",
        default=None,
        unit="s",
        maximum=MOST_SECONDS,
        group=OVER_TIME,
    )
    seeds: Whole = whole(
        "runs with different arrivals, in parallel, for intervals of the results", maximum=1000, default="1",
        group=OVER_TIME,
    )  # fmt: skip
