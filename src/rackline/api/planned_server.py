"""`simulate --plan`: the answer of a plan as a question of `simulate` that repeats it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from rackline.api.answer import SCHEMA_VERSION, Watch
from rackline.api.groups import OnCluster
from rackline.api.model_options import AdapterQuestion, media_of, media_tokens
from rackline.api.plan_parts import PlanQuestion
from rackline.api.question import flag_of, options
from rackline.api.resolve import ANY_ENGINE
from rackline.api.simulate_options import SimulateQuestion
from rackline.errors import InputError, placed, require
from rackline.files import parse_json, read_text
from rackline.late import late

with late:
    from rackline import parallel


T = TypeVar("T")
_FORM = "a file that `rackline plan --json` wrote"
_SHARED = ("chips", "power_cap", "routing", "sampling", "memory_fraction")
_DEGREES = ("tp", "pp", "ep", "moe_tp", "attention_dp", "cp")
_LENGTHS = ("input", "output", "mix")


class Reader:
    """Values of an answer; what is missing or of another kind refuses the file.

    Args:
        data: the answer.
        name: of the file.
    """

    def __init__(self, data: Mapping[str, Any], name: str) -> None:
        self.data, self.name = data, name

    def get(self, path: str, kind: type[T]) -> T:
        """Return the value at a path such as best.layout.

        Raises:
            InputError: it is missing, or of another kind.
        """
        value = self.maybe(path)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise self.refusal(f"an answer without {path}")
        return cast("T", value)

    def maybe(self, path: str) -> Any:
        """Return the value at a path; None where there is none."""
        value: Any = self.data
        for key in path.split("."):
            value = cast("Mapping[str, Any]", value).get(key) if isinstance(value, Mapping) else None
        return value

    def refusal(self, given: str, allowed: str = _FORM) -> InputError:
        """Return the error that refuses the file."""
        return InputError(what="plan", given=given, allowed=allowed, where=self.name)


def read_plan(path: str) -> Reader:
    """Read the answer of a plan.

    Raises:
        InputError: no such file, or one of another form.
    """
    # a server looks for paths inside uploaded files by this ending
    require(path.endswith(".json"), what="plan", given=path, allowed=f"{_FORM}, whose name ends in .json")
    text = read_text(path, what="plan", allowed=_FORM)
    try:
        data = parse_json(text)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise InputError(what="plan", given=f"no JSON: {reason}", allowed=_FORM, where=path) from None
    if not isinstance(data, dict):
        raise InputError(what="plan", given="JSON without an answer", allowed=_FORM, where=path)
    return Reader(cast("dict[str, Any]", data), path)


def planned_question(question: SimulateQuestion, watch: Watch) -> SimulateQuestion:
    """Return a question with what its plan says, and what it says itself in place of that.

    Raises:
        InputError: a file of another form, a plan that cannot be repeated, or options that contradict it.
    """
    plan = read_plan(question.plan or "")
    with placed(plan.name):
        repeated = repeat_plan(plan, watch)
    taken, own = repeated.changed(), {name: value for name, value in question.changed().items() if name != "plan"}
    for name in ("model", "on"):
        if name in own and own[name] != taken[name]:
            raise InputError(what=name, given=own[name], allowed=f"{taken[name]}, as in the plan, or no `plan`")
    if "prefill_replicas" not in taken:
        question.refuse(
            "prefill_layout", "prefill_policy", "prefill_max_batched_tokens", "kv_link",
            *(() if "prefill_replicas" not in own else ("prefill_replicas",)),
            allowed=f"only with a plan of two pools; {plan.name} has one",
        )  # fmt: skip
    if "users" in own:
        question.refuse("rate", allowed="only without `users`")
        taken["rate"] = None
    if any(name in own for name in _LENGTHS):
        other = ("input", "output") if "mix" in own else ("mix",)
        taken = {name: value for name, value in taken.items() if name not in other}
    combined = SimulateQuestion(**{**taken, **own})
    combined.check_options()
    before, known = repeated.changed(), options(SimulateQuestion)
    changed = [name for name in own if name in before and before[name] != own[name]]
    for name in changed:
        flag, planned = flag_of(name, known[name]), known[name].write(before[name])
        watch.takes(f"{flag} {known[name].write(own[name])}, where the plan has {planned}")
    if "users" in own:
        watch.takes(f"--users {own['users']} in place of the rate of the plan, {before['rate']} requests/s")
    watch.takes(f"the deployment, its rate and its lengths of {plan.name} (--plan)")
    return combined


def repeat_plan(plan: Reader, watch: Watch) -> SimulateQuestion:
    """Return the question that repeats the answer of a plan.

    Raises:
        InputError: a file of another form, or a plan that cannot be repeated.
    """
    if plan.maybe("question.ask") != "plan":
        raise plan.refusal(f"the answer of {plan.maybe('question.ask') or 'no question'}")
    if plan.get("schema_version", int) != SCHEMA_VERSION:
        raise plan.refusal(f"an answer of another version ({plan.data['schema_version']})",
                           f"version {SCHEMA_VERSION}: ask `rackline plan --json` again")  # fmt: skip
    if plan.maybe("what_if") is not None:
        raise plan.refusal("several plans", "a single plan, without `what_if`")
    if plan.maybe("best") is None:
        raise plan.refusal(f"no deployment: {plan.maybe('reason') or 'nothing was found'}", "a plan with an answer")
    if plan.maybe("best.simulated") is None:
        reason = plan.maybe("best.not_simulated") or "an estimate"
        raise plan.refusal(f"an answer that was not simulated: {reason}", "a plan whose answer was simulated")
    asked = PlanQuestion.from_data(cast("dict[str, Any]", plan.get("question", dict)))
    if asked.prefill_on is not None:
        raise plan.refusal(f"a prefill pool on {asked.prefill_on}", "a plan on one cluster, without `prefill_on`")
    both = {**options(AdapterQuestion), **options(OnCluster)}.keys() & options(SimulateQuestion).keys()
    values = {
        name: getattr(asked, name)
        for name in options(SimulateQuestion)
        if (name in both or name in _SHARED) and name in asked.changed()
    }
    # of "auto" all commands take the same engine and its numbers
    values |= {
        "engine": plan.get("engine", str) if asked.engine == ANY_ENGINE else asked.engine,
        "calibration": asked.calibration,
        "precision": plan.get("best.precision.label", str),
        "layout": _layout(plan, "best.layout"),
        "replicas": plan.get("best.layout.dp", int),
        "max_num_seqs": plan.get("best.max_num_seqs", int),
        "rate": f"{plan.get('best.main.requests_per_s', float):.10g}",
        "cache_hit": plan.get("cache_hit", float),
    }
    if plan.get("priced", bool):
        values["price"] = plan.get("usd_per_chip_hour", float)
    if plan.maybe("best.energy.cap_w") is not None:
        values["power_cap"] = plan.get("best.energy.cap_w", float)
    values |= _lengths(plan, asked, watch)
    if plan.maybe("best.prefill_pool") is None:
        values |= {
            "policy": _policy(plan, "best.mode"),
            "max_batched_tokens": plan.get("best.mode.max_batched_tokens", int),
        }
    else:
        values |= _pools(plan)
    return SimulateQuestion(**values)


def _pools(plan: Reader) -> dict[str, Any]:
    """Both pools: a decode pass has a token for each running sequence."""
    ahead = "best.prefill_pool"
    if plan.get(f"{ahead}.precision.label", str) != plan.get("best.precision.label", str):
        raise plan.refusal("pools of different data types", "a plan whose pools have the same")
    return {
        "policy": _policy(plan, "best.mode"),
        "max_batched_tokens": max(plan.get("best.max_num_seqs", int), 1),
        "prefill_replicas": plan.get(f"{ahead}.layout.dp", int),
        "prefill_layout": _layout(plan, f"{ahead}.layout"),
        "prefill_policy": _policy(plan, f"{ahead}.mode"),
        "prefill_max_batched_tokens": plan.get(f"{ahead}.mode.max_batched_tokens", int),
        "kv_link": plan.get("best.kv_transfer.chip_bytes_per_s", float),
    }


def _layout(plan: Reader, path: str) -> str:
    """The layout of one replica."""
    layout = parallel.Layout(**{name: plan.get(f"{path}.{name}", int) for name in _DEGREES})
    if layout.cp > 1:
        raise plan.refusal("ranks that share contexts", "a plan without cp, which is not simulated")
    return layout.label()


def _policy(plan: Reader, path: str) -> str:
    """The policy of a scheduler as `policy` writes it."""
    name = plan.get(f"{path}.admission", str)
    if plan.maybe(f"{path}.alignment") is not None:
        name = f"{plan.get(f'{path}.alignment.name', str)}={plan.get(f'{path}.alignment.passes', int)}"
    return name.replace("_", "-") + (",overlap" if plan.get(f"{path}.two_batch_overlap", bool) else "")


def _lengths(plan: Reader, asked: PlanQuestion, watch: Watch) -> dict[str, Any]:
    """The lengths of the requests; images and sound, which the question has as well, are not counted twice."""
    mix = asked.mix or (asked.trace if plan.maybe("mix") is not None else None)
    if mix is not None:
        return {"mix": mix}
    more = media_tokens(media_of(asked, watch))
    return {"input": plan.get("input_len", float) - more, "output": plan.get("output_len", float)}
