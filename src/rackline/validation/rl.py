"""Steps of reinforcement learning: tables of published ones as cases, predicted times of them and their parts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

from rackline.arch import Model
from rackline.bands.defaults import default_engine, numbers_of
from rackline.errors import InputError
from rackline.parallel import Layout, precision
from rackline.passes import calibration
from rackline.posttraining.job import ALGORITHMS, MODES, AnswerLengths, RlJob, Updates
from rackline.posttraining.plan import RlStep, Schedule, given_sides, rl_plan, rl_step
from rackline.posttraining.rollout import RolloutEngine
from rackline.serving.stack import stack_named
from rackline.system import System
from rackline.training.runs import TrainLayout
from rackline.validation.cases import Case
from rackline.validation.resolve import Resolver
from rackline.validation.tables import Data, Doubts, PublishedTable, Reader, TableRow, doubt_of, number, whole

Name = TypeVar("Name", bound=str)


def predict_rl(resolver: Resolver, case: Case) -> dict[str, float]:
    """Time of a step of a case and of its parts [s]; in the fastest layouts where the case states none.

    Raises:
        RacklineError: the case cannot be predicted, with the reason.
    """
    step = _step_of(resolver, case)
    old, reference = (step.part_s(f"{whose} log-probabilities") for whose in ("old", "reference"))
    return {
        "rl_step_s": step.seconds,
        "rollouts_s": step.part_s("rollouts"),
        "old_log_probs_s": old,
        "reference_log_probs_s": reference,
        "log_probs_s": old + reference,
        "updates_s": step.part_s("updates"),
        "transfer_s": step.part_s("weights to engines"),
    }


def _step_of(resolver: Resolver, case: Case) -> RlStep:
    job, schedule = _asked(resolver, case)
    if case.values.get("gen_layout"):
        return rl_step(job, schedule, *_sides(job, case))
    found = rl_plan(job, schedule, gen_chips=case.whole("gen_chips") or None)
    if found.best is None:
        raise InputError(what="layouts", given="none", allowed=found.reason)
    return found.best


def sides_of(resolver: Resolver, case: Case) -> tuple[RlJob, Schedule, RolloutEngine, Updates]:
    """What a case that states its layouts runs, and both of its sides.

    Raises:
        RacklineError: the case cannot be predicted, with the reason.
    """
    job, schedule = _asked(resolver, case)
    return job, schedule, *_sides(job, case)


def _asked(resolver: Resolver, case: Case) -> tuple[RlJob, Schedule]:
    model = resolver.model(case)
    if not isinstance(model, Model):
        raise InputError(what="model", given=case.model, allowed="a model whose layers are known")
    chip = resolver.chip(case.chip)
    rack = resolver.cluster(chip, case.num_chips)
    numbers = calibration(case.text("engine") or numbers_of(default_engine(model, rack), chip), chip)
    around = stack_named(case.text("engine"), numbers, chip)
    if case.values.get("eager"):
        eager = {"graphs.eager_decode": True, "graphs.captured_tokens": 0, "graphs.captured_prompt_tokens": 0}
        around = around.with_values(eager)
    serving = System.of(
        model,
        rack,
        calibration=numbers,
        stack=around,
        precisions=[precision(case.precision, model, chip)],
        memory_fraction=case.number("memory_fraction") if case.values.get("memory_fraction") else None,
    )
    job = RlJob.of(
        serving,
        prompts=case.whole("prompts"),
        generations=case.whole("generations"),
        prompt_len=case.number("input_len"),
        lengths=AnswerLengths(
            mean=case.number("output_len"), spread=case.number("output_spread", 0.0), longest=case.number("longest")
        ),
        train_precision=case.precision,
        algorithm=_one_of(case, "algorithm", ALGORITHMS, "grpo"),
        reference=case.text("algorithm", "grpo") != "dapo",
        train_batch=case.whole("train_batch") or None,
        trained=case.whole("trained") or None,
        log_prob_batch=case.whole("log_prob_batch", 1),
    )
    schedule = Schedule(
        mode=_one_of(case, "mode", MODES, "sync"),
        colocated=not case.whole("gen_chips"),
        staleness=case.whole("staleness"),
        partial=bool(case.values.get("partial")),
    )
    return job, schedule


def _sides(job: RlJob, case: Case) -> tuple[RolloutEngine, Updates]:
    gen_chips, is_moe = case.whole("gen_chips"), job.model.is_moe
    gen, replicas = _degrees(case, "gen_layout", gen_chips or case.num_chips, ("tp", "pp", "ep"))
    train, ranks = _degrees(case, "layout", case.num_chips - gen_chips, ("tp", "pp", "cp"))
    tp, pp, ep = gen["tp"], gen["pp"], gen["ep"]
    return given_sides(
        job,
        Layout(tp=tp, pp=pp, ep=ep, moe_tp=tp // ep if is_moe else 1, dp=replicas),
        TrainLayout(
            tp=train["tp"],
            pp=train["pp"],
            cp=train["cp"],
            ep=train.get("ep", 1) if is_moe else 1,
            dp=ranks,
            micro_batch=case.whole("micro_batch", 1),
            recompute=case.text("recompute", "none"),
        ),
    )


def _one_of(case: Case, key: str, allowed: Sequence[Name], otherwise: Name) -> Name:
    given = case.text(key, otherwise)
    for name in allowed:
        if name == given:
            return name
    raise InputError(what=key, given=given, allowed=", ".join(allowed))


def _degrees(case: Case, key: str, chips: int, named: Sequence[str]) -> tuple[dict[str, int], int]:
    """Parallel degrees of a layout, 1 where the case states none, and how often it stands on its chips."""
    given = cast("Mapping[str, int | str]", (case.layout if key == "layout" else case.values.get(key)) or {})
    parts = dict.fromkeys(named, 1) | {name: int(value) for name, value in given.items() if not isinstance(value, str)}
    dp, left = divmod(chips, math.prod(parts[name] for name in named if name != "ep"))
    if left or ("ep" in named and parts["tp"] % parts["ep"]):
        shown = ",".join(f"{name}={parts[name]}" for name in named)
        raise InputError(what=key, given=shown, allowed=f"parts that divide {chips} chips")
    return parts, dp


PROMPT_LEN = 112.0
"""Tokens of a problem of OpenMathInstruct-2 in its prompt: what published tokens a second hold beyond the mean answers,
the median of 26 rows. Tables state answers alone (github.com/NVIDIA-NeMo/RL, v0.6.0, nemo_rl/experience/rollouts.py,
`mean_total_tokens_per_sample`), throughput counts prompts as well (nemo_rl/algorithms/utils.py,
`print_performance_metrics`)."""
SPREAD = 0.6
"""Standard deviation of the answer lengths over their mean (assumed; tables state mean and cut)."""
MEMORY_FRACTION, ALONE_MEMORY_FRACTION = 0.6, 0.8
"""vllm_cfg.gpu_memory_utilization of the configurations that the recipes build on, and of recipes whose engines have
chips of their own (github.com/NVIDIA-NeMo/RL, v0.6.0, examples/configs/grpo_math_1B.yaml and recipes/llm/performance,
read 2026-11-25)."""
LOG_PROB_BATCH = 4
"""policy.logprob_batch_size where a recipe states none (v0.4.0 and v0.5.0, examples/configs/grpo_math_1B.yaml; those of
v0.6.0 state it)."""
_ENGINES: dict[tuple[int, ...], str] = {
    (0, 3): "vllm=0.9.0",
    (0, 4): "vllm=0.10.0",
    (0, 5): "vllm=0.11.2",
    (0, 6): "vllm=0.17.1",
}
"""vLLM of a release of NeMo RL (its pyproject.toml at the tags v0.3.0 to v0.6.0, read 2026-11-25)."""
_BATCH_MULTIPLIER = 3
"""DAPO with dynamic sampling generates this many times the prompts that it trains on, at least once
(`batch_multiplier` of dapo-deepseek-v3-64n8g.yaml at v0.5.0 and v0.6.0; nemo_rl/algorithms/grpo.py,
`dynamic_sampling`)."""


def _engine(row: TableRow) -> str:
    """The serving engine of a row, in the version of its release where that is known."""
    return _ENGINES.get(_version(row)[:2], "vllm") if row["framework"].startswith("NeMo") else "vllm"


def _version(row: TableRow) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", row["framework"]))


def step_data(row: TableRow, case_id: str) -> dict[str, object]:
    """A row of whole steps as a case in plain data."""
    tp, cp, ep, pp = _recipe_degrees(row)
    lag = re.match(r"(\d+)-step", row["mode"])
    alone = row["colocated"] == "no"
    data: dict[str, object] = {
        "id": case_id,
        "kind": "rl-step",
        "model": row["model"],
        "chip": row["chip"],
        "num_chips": whole(row, "num_chips"),
        "stack": re.sub(r" v[\d.]+", "", row["framework"]).lower().replace(" ", "-"),
        "stack_version": ".".join(map(str, _version(row))),
        "precision": "fp8" if "FP8" in row["precision"] else "bf16",
        "engine": _engine(row),
        "algorithm": row["algorithm"].lower(),
        "mode": ("one-step-off" if lag.group(1) == "1" else "async") if lag else "sync",
        "prompts": whole(row, "prompts_per_step"),
        "generations": whole(row, "gens_per_prompt"),
        "trained": whole(row, "samples_per_step"),
        "input_len": PROMPT_LEN,
        "output_len": number(row, "mean_seq_len"),
        "longest": number(row, "max_seq_len") - PROMPT_LEN,
        "output_spread": SPREAD,
        "memory_fraction": ALONE_MEMORY_FRACTION if alone else MEMORY_FRACTION,
        "layout": {"tp": tp, "cp": cp, "ep": ep, "pp": pp},
        "gen_layout": {"tp": whole(row, "gen_tp"), "pp": whole(row, "gen_pp", 1)},
        "micro_batch": whole(row, "train_micro_batch", 1),
        "log_prob_batch": whole(row, "logprob_batch", LOG_PROB_BATCH),
        "train_batch": whole(row, "train_global_batch" if row["train_global_batch"] else "samples_per_step"),
        "recompute": "full" if row["act_ckpt"] == "True" else "none",
        "source": row["source"],
        "measured": {"rl_step_s": number(row, "step_s")},
    }
    if lag:
        data["staleness"] = int(lag.group(1))
    if alone:
        data["gen_chips"] = whole(row, "gen_chips")
    if row["algorithm"] == "DAPO":  # the column of samples is an update; without graphs, as its recipe says
        trained = whole(row, "prompts_per_step") * whole(row, "gens_per_prompt")
        data |= {"prompts": _BATCH_MULTIPLIER * whole(row, "prompts_per_step"), "trained": trained, "eager": True}
    return data


def _recipe_degrees(row: TableRow) -> tuple[int, int, int, int]:
    """Parallel degrees of training: tp, cp, ep, pp; 1 each where the recipe states none."""
    cell = row["recipe_train_tp_cp_ep_pp"]
    found = re.fullmatch(r"\[(\d+), *(\d+), *(\d+), *(\d+)\]", cell.strip() or "[1, 1, 1, 1]")
    if found is None:
        raise InputError(
            what="recipe_train_tp_cp_ep_pp", given=cell, allowed="[tp, cp, ep, pp]", nearest="[1, 1, 1, 1]"
        )
    tp, cp, ep, pp = (int(part) for part in found.groups())
    return tp, cp, ep, pp


MEAN_SHARE = 0.25
"""Mean answer over the longest, where the mean is not published (assumed: that of a reasoning run, cut at 8,192)."""
_RECIPES: dict[tuple[str, str], dict[str, object]] = {
    ("NeMo RL v0.3", "llama-3.1-70b"): {
        "prompts": 64,
        "generations": 32,
        "longest": 4096 - PROMPT_LEN,
        "train_batch": 512,
        "log_prob_batch": 4,
        "layout": {"tp": 4, "pp": 4},
        "gen_layout": {"tp": 4},
    }
}
"""Settings of the release's recipe (github.com/NVIDIA-NeMo/RL, examples/configs/grpo_math_70B_megatron.yaml)."""
_PARTS = {"rollouts_s": "gen_s", "old_log_probs_s": "logprob_s", "reference_log_probs_s": "ref_s",
          "updates_s": "train_s", "transfer_s": "refit_s", "rl_step_s": "step_s"}  # fmt: skip


_RL_DOUBTS: Doubts = (
    (
        lambda row: not row["chip"] or row["chip"].startswith("not stated") or row["model"] == "not stated",
        "the source does not state model and chip",
    ),
    (lambda row: row["train_engine"] == "DTensor", "updates by DTensor, whose steps are not known"),
    (
        lambda row: not row["prompts_per_step"] and not _recipe(row),
        "the source does not state how many answers a step has",
    ),
    (
        lambda row: not row["mean_response_len"] and not row["max_response_len"] and not _recipe(row),
        "the source does not state how long answers are",
    ),
    (lambda row: "agentic" in row["algorithm"], "agents whose tools take most of the time"),
)


def _recipe(row: TableRow) -> Data:
    return _RECIPES.get((row["framework"], row["model"]), {}) if row["train_engine"] != "DTensor" else {}


def _rl_measured(row: TableRow) -> dict[str, float]:
    found = {name: number(row, column) for name, column in _PARTS.items() if row[column]}
    if row["framework"].startswith("NeMo") and "old_log_probs_s" in found:  # policy and reference together
        found = {name.replace("old_log_probs_s", "log_probs_s"): value for name, value in found.items()}
    return found


def _rl_parts_data(row: TableRow, case_id: str, recipe: dict[str, object]) -> dict[str, object]:
    longest = number(row, "max_response_len", 0.0)
    alone = row["colocated"] == "no"
    data: dict[str, object] = {
        "id": case_id,
        "kind": "rl-step",
        "model": row["model"].removesuffix("-base"),
        "chip": row["chip"].split(" ")[0],
        "num_chips": whole(row, "num_chips"),
        "stack": row["framework"].lower().split(" v")[0].replace(" ", "-"),
        "precision": "bf16",
        "engine": _engine(row),
        "algorithm": row["algorithm"].lower().split(" ")[0],
        "mode": "async" if row["sync"] == "async" else "sync",
        "input_len": number(row, "mean_prompt_len", PROMPT_LEN),
        "output_len": number(row, "mean_response_len", MEAN_SHARE * longest),
        "output_spread": SPREAD,
        "memory_fraction": MEMORY_FRACTION,
        "source": row["source"],
        "measured": _rl_measured(row),
    }
    if not recipe:
        data |= {
            "prompts": whole(row, "prompts_per_step"),
            "generations": whole(row, "gens_per_prompt"),
            "longest": longest,
        }
    if not row["mean_response_len"]:
        data["assumed"] = ["output_len"]
    if row["sync"] == "async":
        data |= {"staleness": 1, "partial": "partial" in row["mode"]}
    if alone:
        data["gen_chips"] = whole(row, "gen_chips")
    return data | recipe


def rl_parts_cases(rows: Sequence[TableRow]) -> Reader:
    """Parts of steps; rows that do not say what was run are named."""

    def case(row: TableRow, case_id: str) -> tuple[Data, str]:
        doubt = doubt_of(row, _RL_DOUBTS)
        return (dict(_rl_measured(row)) if doubt else _rl_parts_data(row, case_id, _recipe(row))), doubt

    return case


_RL_COLUMNS = {"framework", "algorithm", "mode", "gen_chips", "train_chips", "mean_seq_len", "step_s"}
_RL_PARTS_COLUMNS = {"framework", "gen_s", "logprob_s", "ref_s", "train_s", "refit_s", "max_response_len", "colocated"}
RL_STEPS = PublishedTable(
    columns=frozenset(_RL_COLUMNS),
    kind="rl-step",
    cases=lambda rows: lambda row, case_id: (step_data(row, case_id), ""),
)
RL_PARTS = PublishedTable(columns=frozenset(_RL_PARTS_COLUMNS), kind="rl-step", cases=rl_parts_cases)
RL_TABLES = (RL_STEPS, RL_PARTS)
