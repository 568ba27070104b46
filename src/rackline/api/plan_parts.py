"""The question of `plan`, and what is searched for it: the space, limits, pools, traffic, what is launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rackline.api.answer import Watch
from rackline.api.groups import FLEET, PUE, Lifetimes, Loaded, Planned, Sessions
from rackline.api.model_options import (
    DraftQuestion,
    checkpoints_of,
    media_of,
    media_tokens,
    with_adapter,
    with_draft,
    with_media,
)
from rackline.api.question import (
    ClusterLike,
    MaybeLayout,
    MaybeNumber,
    MaybeWhole,
    Number,
    Question,
    option,
    options,
    question,
    shared,
    whole,
)
from rackline.api.resolve import (
    check_context,
    cluster_of,
    lookup_of,
    named,
    named_engine,
    on_terms,
    resolve_on,
    window_of,
)
from rackline.api.traffic import cache_rules_of, mixture_of, note_early_ends, repeating_of, tiers_of
from rackline.errors import InputError, require
from rackline.late import late

with late:
    from rackline import arch, catalog, hardware, parallel, search, serving, system as systems
    from rackline.bands import spread
    from rackline.search import (
        inputs,
        kept_prefixes,
        launch as search_launch,
        launch_rules,
    )
    from rackline.serving import fleet, workload as serving_workload
    from rackline.simulation import policies, prefix_cache


_POOLS, _REPEATS, _MORE = "Prefill pool", "Prompts that repeat", "Further output"


@question
class PlanQuestion(Planned, Sessions, Lifetimes, DraftQuestion, Loaded):
    """What is the cheapest way to serve a model on a cluster under latency limits?"""

    headings = dict.fromkeys([*options(Sessions), *options(Lifetimes)], _REPEATS)

    objective: str = option(
        "text",
        "what to minimise within the limits: dollars, or joules per output token, for which power caps and layouts "
        "are compared by energy",
        default="dollars",
        choices=("dollars", "joules"),
    )
    prefill_on: ClusterLike | None = option(
        "object",
        "a separate cluster for the prefill pool, such as h100-96; chips of the same cluster by default",
        default=None,
        group=_POOLS,
    )
    prefill_chips: MaybeWhole = option(
        "whole",
        "number of chips of the prefill cluster; all of them by default",
        default=None,
        unit="count",
        minimum=1.0,
        group=_POOLS,
    )
    prefill_layout: MaybeLayout = option(
        "text",
        "parallel degrees to fix in the prefill pool, such as attention_dp=32,ep=32",
        default=None,
        group=_POOLS,
    )
    pue: Number = shared(PUE, default="1", group=FLEET)
    offline_share: MaybeNumber = option(
        "fraction",
        "offline share: share of the traffic that may wait for off-peak hours, such as 30%",
        default=None,
        unit="1",
        zero=True,
        group=FLEET,
    )
    provider: MaybeNumber = option(
        "count",
        "output tokens/s that a whole provider serves, to compare the fleet with, such as 400M",
        default=None,
        unit="token/s",
        maximum=1e15,
        group=FLEET,
    )
    full: bool = option(
        "switch",
        "print the full report: rows of the passes, memory, Pareto fronts, other layouts",
        default=False,
        group=_MORE,
    )
    launch: bool = option(
        "switch", "print the commands that launch the answer on its engine", default=False, group=_MORE
    )
    speculate: str | None = option(
        "text",
        "when speculative decoding pays on the chosen decode replica: usual (1 to 4 draft tokens at typical "
        "acceptance) or draft tokens with the tokens that a step yields, such as 1,3=2.9",
        default=None,
        group=_MORE,
    )
    attention_ffn: bool = option(
        "switch",
        "attention/FFN disaggregation: decode with attention and experts on separate chips",
        default=False,
        group=_MORE,
    )
    sample: MaybeWhole = whole(
        "number of requests that you will measure, such as 40: shows the range in which nine of ten such runs fall",
        minimum=5,
        maximum=10_000,
        default=None,
        group=_MORE,
    )
    what_if: str | None = option(
        "text",
        "vary one quantity and show the optimum at each value, such as scale_up_size=8,72,144 or "
        "hbm_bandwidth=4TB/s:20TB/s:5; also scale_up_bandwidth, scale_out_bandwidth, hbm_capacity, "
        "total_over_active, kv_bytes_per_token, or any key of `set`",
        default=None,
        group=_MORE,
    )

    def check_options(self) -> None:
        """Refuse what a load over time does not have, and its length without one.

        Raises:
            InputError: such options.
        """
        if self.load is None:
            self.refuse("load_time", allowed="only with `load`")
        else:
            self.refuse("what_if", "turns", "users", "traffic", allowed="only without `load`")
        super().check_options()


def workload_of(question: PlanQuestion, window: float, media_tokens: int) -> serving_workload.Workload:
    """The requests of a question.

    Args:
        window: longest request that the model takes, at which conversations end [tokens].
        media_tokens: that images and sound add to a prompt [tokens].

    Raises:
        InputError: lengths that are missing, or given in two ways.
    """
    mixture = mixture_of(question, "input", "output")
    if mixture is not None:
        mixture = replace(mixture, input_len=mixture.input_len + media_tokens)
        return serving_workload.Workload.of_mixture(mixture, question.cache_hit)
    if question.input is None or question.output is None:
        name = "input" if question.input is None else "output"
        raise InputError(what=name, given="nothing", allowed="tokens per request, such as 2k")
    input_len = question.input + media_tokens
    if question.turns is not None:
        input_len = repeating_of(question, window, None, media_tokens).input_len
    return serving_workload.Workload(input_len=input_len, output_len=question.output, cache_hit=question.cache_hit)


def plan_question_of(question: Question, **more: Any) -> PlanQuestion:
    """The question of a plan with all options that another question shares with it.

    Args:
        more: options of the plan in place of those.
    """
    both = options(PlanQuestion).keys() & options(type(question)).keys()
    return PlanQuestion(**{**{name: value for name, value in vars(question).items() if name in both}, **more})


def plan_inputs(question: PlanQuestion, watch: Watch) -> inputs.PlanInputs:
    """Everything that a plan's question says, as objects.

    Raises:
        RacklineError: as `rackline.api.resolve.resolve`; options that contradict each other.
    """
    model, cluster = named(question, watch)
    drafts = speculations_of(question.speculate)
    checkpoints = checkpoints_of(question.model, lookup_of(question, watch))
    other = _prefill_pool(question)
    media = media_of(question, watch)
    model = with_draft(model, question, question.speculate, watch)
    workload = workload_of(question, window_of(model), media_tokens(media))
    note_early_ends(question, model, media_tokens(media), watch)
    check_context(model, workload.longest_context, watch)
    traffic, users = traffic_of(question, workload)
    keeping = keeping_of(question, media_tokens(media), model)
    model = with_media(model, media, workload.input_len)

    modes = [serving_workload.parse_mode(text, policies.alignments()) for text in question.mode]
    layouts = parallel.matching_layouts(question.layout, model, cluster.num_chips)
    pool_layouts = parallel.matching_layouts(question.prefill_layout, model, (other or cluster).num_chips)
    _check_overlap(question, modes, layouts, model, cluster)
    model = with_adapter(model, question, watch)
    system = resolve_on(question, model, cluster, watch)
    if not system.calibration.serving:  # closed forms do not know it, and the loop that does takes minutes
        system = replace(system, stack=system.stack.with_values({"scheduler.neighbour_passes": False}))
    ahead = None if other is None else _same_engine(question, system, model, other)
    engine, version = _launched(question, system)
    has_rules = engine in catalog.names("launch_rules") and (
        question.engine != "auto" or question.calibration == "auto"
    )
    limits = systems.Constraints.of(question.tpot, question.ttft)
    if limits.latencies():
        limits = replace(limits, headroom=spread.headroom_of(question.confidence, system))
    else:
        question.refuse("confidence", allowed="together with a limit: `tpot` or `ttft`")
    return inputs.PlanInputs(
        system=system,
        demand=systems.Demand(
            workload=workload,
            limits=limits,
            objective="joules" if question.objective == "joules" else "dollars",
        ),
        space=search.SearchSpace(
            modes=modes or None,
            layouts=layouts,
            rules=launch_rules.launch_rules(engine, version) if has_rules else None,
            any_layout=question.any_layout,
        ),
        prefill=search.PrefillPool(system=ahead, layouts=pool_layouts)
        if question.serving == "both" and keeping is None
        else None,
        traffic=traffic,
        users=users,
        drafts=drafts,
        keeping=keeping,
        checkpoints=checkpoints,
        draft_id="" if question.draft is None else checkpoints_of(question.draft, lookup_of(question, watch)).released,
        engine=engine,
        version=version,
    )


def _prefill_pool(question: PlanQuestion) -> hardware.Cluster | None:
    """The cluster of the prefill pool, where it is another one.

    Raises:
        InputError: options of a pool that is not considered, or not on another cluster.
    """
    if question.serving == "aggregated":
        question.refuse("prefill_on", "prefill_chips", "prefill_layout", allowed="only with `serving` both")
    if question.prefill_on is None:
        question.refuse("prefill_chips", allowed="together with `prefill_on` CLUSTER")
        return None
    other, chips = on_terms(question, cluster_of(question.prefill_on)), question.prefill_chips
    return other if chips is None else other.with_num_chips(chips)


def _check_overlap(
    question: PlanQuestion,
    modes: Sequence[serving_workload.Mode],
    layouts: Sequence[parallel.Layout] | None,
    model: arch.AnyModel,
    cluster: hardware.Cluster,
) -> None:
    """Two-batch overlap hides the exchange of experts between attention-dp ranks: refuse it where there is none.

    Raises:
        InputError: a model without experts, or only overlapping modes where no layout has several ranks.
    """
    overlapping = [text for text, mode in zip(question.mode, modes, strict=True) if mode.two_batch_overlap]
    if not overlapping:
        return
    if not (isinstance(model, arch.Model) and model.is_moe):
        allowed = f"no overlap: {model.name} exchanges no expert tokens"
    elif len(overlapping) < len(modes) or (
        cluster.num_chips > 1 and (layouts is None or any(layout.attention_dp > 1 for layout in layouts))
    ):
        return
    else:
        allowed = "no overlap: it needs a layout with attention_dp of at least 2"
    raise InputError(what="mode", given=overlapping[0], allowed=allowed, nearest=overlapping[0].partition(",")[0])


_TRAFFIC = ("traffic", "requests", "users")


def traffic_of(
    question: PlanQuestion, workload: serving_workload.Workload
) -> tuple[fleet.Traffic | None, serving.Population | None]:
    """The traffic of a fleet, with the users whose traffic follows from the answer; None for what is not asked for.

    Raises:
        InputError: two kinds of traffic, or an option that belongs to traffic without it.
    """
    given = question.either(*_TRAFFIC)
    pauses = ("users", "turns")
    needs = {"peak_over_mean": _TRAFFIC, "offline_share": _TRAFFIC[:2], "provider": _TRAFFIC, "think_time": pauses}
    for name, of in needs.items():
        if not question.given(*of):
            question.refuse(name, allowed=f"together with {' or '.join(f'`{one}`' for one in of)}")
    if not given:
        return None, None

    traffic = fleet.Traffic(
        tokens_per_s=question.traffic or (question.requests or 1.0) * workload.output_len,
        peak_over_mean=question.peak_over_mean or 1.0,
        offline_share=question.offline_share or 0.0,
        provider_tokens_per_s=question.provider,
    )
    if question.users is None:
        return traffic, None
    return traffic, serving.Population(users=question.users, think_s=question.think_time or 0.0)


def speculations_of(text: str | None) -> list[serving_workload.Speculation] | None:
    """Read usual, or DRAFTS[=TOKENS_PER_STEP] separated by commas; None without it, empty for usual.

    Raises:
        InputError: another text, or impossible tokens per step.
    """
    if text is None:
        return None
    if text.strip() == "usual":
        return []
    found: list[serving_workload.Speculation] = []
    for part in text.split(","):
        drafts, equals, yields = (piece.strip() for piece in part.partition("="))
        try:
            number, given = int(drafts), float(yields) if equals else None
        except ValueError:
            number, given = 0, None
        require(
            1 <= number <= 16,
            what="speculate",
            given=text,
            allowed="usual, or drafts from 1 to 16 with the tokens that a step yields, such as 1,3=2.9",
            nearest="usual",
        )
        found.append(
            serving_workload.usual_speculation(number)
            if given is None
            else serving_workload.Speculation(draft_tokens=number, tokens_per_step=given)
        )
    return found


def _same_engine(
    question: PlanQuestion, system: systems.System, model: arch.AnyModel, other: hardware.Cluster
) -> systems.System:
    """Return the system that computes prompts on another cluster, with the engine that decodes."""
    if question.calibration == "auto":
        own = system.cluster.calibration
        same = {"calibration": own} if own else {"engine": named_engine(question.engine) or system.stack.name}
        question = replace(question, **same)
    return resolve_on(question, model, other, Watch())


def _launched(question: PlanQuestion, system: systems.System) -> tuple[str, str]:
    """Return the engine that is launched and its version, which is empty for the newest.

    It is the one that is named, or taken by default; with a calibration of the user, the one that was measured.

    Raises:
        InputError: `launch` of an engine whose options were not read.
    """
    name, _, version = named_engine(question.engine).partition("=")
    if not name:
        by_default = question.calibration == "auto" and not system.cluster.calibration
        measured = catalog.canonical_name("stacks", system.calibration.stack)
        name = system.stack.name if by_default else measured or system.calibration.name
    if question.launch and name not in search_launch.STACKS:
        named = ", ".join(f"`engine` {engine}" for engine in search_launch.STACKS)
        raise InputError(what="launch", given=name, allowed=f"an engine whose options were read: {named}")
    return name, version


def keeping_of(question: PlanQuestion, media_tokens: int, model: arch.AnyModel) -> kept_prefixes.Keeping | None:
    """Prefixes that come again, and how long they are kept; None where nothing says so.

    Args:
        media_tokens: as above [tokens].
        model: that is served.

    Raises:
        InputError: options that contradict or miss each other.
    """
    given = question.given("turns", "cache_ttl", "tier", "eviction", "cache_ttl_from")
    if question.turns is None:
        question.refuse("tool_calls", "tool_output", allowed="only with `turns`")
        if not given:
            return None
        if question.trace is None:
            question.refuse(*given, allowed="only with `turns` or `trace`, whose prefixes are kept")
    question.refuse("cache_hit", allowed=f"only without `{next(iter(given))}`, which gives it")
    question.refuse(
        "prefill_on",
        "prefill_chips",
        "prefill_layout",
        allowed="only without prompts that repeat, which are planned on single engines",
    )
    adapter = model.adapter if isinstance(model, arch.Model) else None
    if adapter is not None and adapter.number > 1:
        raise InputError(what="adapters", given=adapter.number, allowed="1 with a cache of prefixes")
    rules, tiers = cache_rules_of(question), tiers_of(question.tier, 1.0)
    prefix_cache.PrefixCache(1, 1, tiers, rules)  # refuses a tier that expires before a faster one
    if question.turns is not None:
        question.refuse("trace", "mix", allowed="only without `turns`")
    return kept_prefixes.Keeping(
        traffic=repeating_of(question, window_of(model), question.trace, media_tokens), rules=rules, tiers=tiers
    )
