"""Steps of reinforcement learning: published ones and their parts as cases, and their predicted time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from rackline.arch import Model
from rackline.bands.stacks import default_stack
from rackline.errors import InputError, RacklineError
from rackline.parallel import Layout, precision
from rackline.passes import calibration
from rackline.posttraining.job import ALGORITHMS, MODES, AnswerLengths, RlJob, RlOverheads
from rackline.posttraining.plan import RlStep, Schedule, given_step, rl_plan
from rackline.system import System
from rackline.training.runs import TrainLayout
from rackline.validation.cases import Case, Unsupported, case_from
from rackline.validation.resolve import Resolver
from rackline.validation.tables import TableRow, has_columns, number, read_rows, table_rows, whole

Name = TypeVar("Name", bound=str)


def predict_rl(resolver: Resolver, cases: Sequence[Case]) -> Iterator[tuple[Case, dict[str, float] | Unsupported]]:
    """Time of a step of each case and of its parts [s]."""
    for case in cases:
        try:
            yield case, times_of(rl_step_of(resolver, case))
        except RacklineError as error:
            yield case, Unsupported.of(case, str(error), bad_input=True)


def times_of(step: RlStep) -> dict[str, float]:
    """Measured key → time of that part of a step [s]."""
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


def rl_step_of(resolver: Resolver, case: Case, overheads: RlOverheads | None = None) -> RlStep:
    """The step of a case with its parts; in the fastest layouts where it states none.

    Args:
        overheads: of the framework, instead of the defaults.

    Raises:
        RacklineError: the case cannot be predicted, with the reason.
    """
    model = resolver.model(case)
    if not isinstance(model, Model):
        raise InputError(what="model", given=case.model, allowed="a model whose layers are known")
    chip = resolver.chip(case.chip)
    rack = resolver.cluster(chip, case.num_chips)
    name = case.text("engine") or default_stack(model, rack)
    serving = System.of(
        model,
        rack,
        calibration=calibration(name, chip),
        precisions=[precision(case.precision, model, chip)],
        memory_fraction=case.number("memory_fraction") if case.values.get("memory_fraction") else None,
    )
    gen_chips = int(case.number("gen_chips")) if case.values.get("gen_chips") else None
    learners = case.num_chips - (gen_chips or 0)
    lag = int(case.number("staleness")) if case.values.get("staleness") else 0
    job = RlJob.of(
        serving,
        prompts=int(case.number("prompts")),
        generations=int(case.number("generations")),
        prompt_len=case.number("input_len"),
        lengths=AnswerLengths(
            mean=case.number("output_len"),
            spread=case.number("output_spread") if case.values.get("output_spread") else 0.0,
            longest=case.number("longest"),
        ),
        train_precision=case.precision,
        algorithm=_one_of(case, "algorithm", ALGORITHMS, "grpo"),
        reference=case.text("algorithm", "grpo") != "dapo",
        train_batch=int(case.number("train_batch")) if case.values.get("train_batch") else None,
        trained=int(case.number("trained")) if case.values.get("trained") else None,
        log_prob_batch=int(case.number("log_prob_batch")) if case.values.get("log_prob_batch") else 1,
    )
    if overheads is not None:
        job = replace(job, overheads=overheads)
    schedule = Schedule(
        mode=_one_of(case, "mode", MODES, "sync"),
        colocated=gen_chips is None,
        staleness=lag,
        in_flight=bool(case.values.get("in_flight")),
        partial=bool(case.values.get("partial")),
    )
    if not case.values.get("gen_layout"):
        found = rl_plan(job, schedule, gen_chips=gen_chips)
        if found.best is None:
            raise InputError(what="layouts", given="none", allowed=found.reason)
        return found.best
    return given_step(job, schedule, _gen_layout(case, model, gen_chips), _train_layout(case, model, learners))


def _one_of(case: Case, key: str, allowed: Sequence[Name], otherwise: Name) -> Name:
    given = case.text(key, otherwise)
    for name in allowed:
        if name == given:
            return name
    raise InputError(what=key, given=given, allowed=", ".join(allowed))


def _gen_layout(case: Case, model: Model, gen_chips: int | None) -> Layout:
    parts = _counts(case, "gen_layout")
    tp, pp, ep = parts.get("tp", 1), parts.get("pp", 1), parts.get("ep", 1)
    chips = gen_chips or case.num_chips
    if chips % (tp * pp) or tp % ep:
        given = f"tp={tp},pp={pp},ep={ep}"
        raise InputError(what="gen_layout", given=given, allowed=f"parts that divide {chips} chips")
    return Layout(tp=tp, pp=pp, ep=ep, moe_tp=tp // ep if model.is_moe else 1, dp=chips // (tp * pp))


def _train_layout(case: Case, model: Model, chips: int) -> TrainLayout:
    parts = {key: int(value) for key, value in case.layout.items() if not isinstance(value, str)}
    tp, pp, cp = parts.get("tp", 1), parts.get("pp", 1), parts.get("cp", 1)
    if chips % (tp * pp * cp):
        raise InputError(what="layout", given=f"tp={tp},pp={pp},cp={cp}", allowed=f"parts that divide {chips} chips")
    return TrainLayout(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=parts.get("ep", 1) if model.is_moe else 1,
        dp=chips // (tp * pp * cp),
        micro_batch=int(case.number("micro_batch")) if case.values.get("micro_batch") else 1,
        recompute=case.text("recompute", "none"),
    )


def _counts(case: Case, key: str) -> dict[str, int]:
    given = cast("Mapping[str, int]", case.values.get(key) or {})
    return {name: int(value) for name, value in given.items()}


_COLUMNS = {"framework", "algorithm", "mode", "gen_chips", "train_chips", "mean_seq_len", "step_s"}
_SAME = ("model", "algorithm", "mode", "chip", "num_chips", "precision")
"""Columns of a configuration, of which the newest release is scored."""
PROMPT_LEN = 150.0
"""Tokens of a problem of OpenMathInstruct-2 in its prompt (assumed; tables state prompt and answer together)."""
SPREAD = 0.6
"""Standard deviation of the answer lengths over their mean (assumed; tables state mean and cut)."""
MEMORY_FRACTION = 0.6
"""vllm_cfg.gpu_memory_utilization of the configurations that the recipes build on
(github.com/NVIDIA-NeMo/RL, examples/configs/grpo_math_1B.yaml)."""


def is_rl_table(text: str) -> bool:
    """Whether a CSV file has the columns of published steps of reinforcement learning."""
    return has_columns(text, _COLUMNS)


def read_rl_table(path: Path, text: str, unknown_keys: dict[str, int]) -> list[Case | Unsupported]:
    """Read a table; of one configuration the newest release is scored, the others are named.

    Args:
        text: the content of the file.
        unknown_keys: ignored keys → number of cases that have them.
    """
    rows = table_rows(text)
    newest: dict[tuple[str, ...], tuple[tuple[int, ...], int]] = {}
    for index, row in enumerate(rows):
        key = tuple(row[name] for name in _SAME)
        newest[key] = max(newest.get(key, ((), -1)), (_version(row), index))

    def read(row: TableRow, case_id: str, where: str) -> Case | Unsupported:
        case = case_from(_data(row, case_id), where, unknown_keys)
        latest = rows[newest[tuple(row[name] for name in _SAME)][1]]
        if latest is not row and isinstance(case, Case):
            return Unsupported.of(case, "a newer release of the same configuration is scored")
        return case

    return read_rows(path, rows, "rl-step", read)


def _version(row: TableRow) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", row["framework"]))


def _data(row: TableRow, case_id: str) -> dict[str, object]:
    tp, cp, ep, pp = _degrees(row)
    lag = re.match(r"(\d+)-step", row["mode"])
    alone = row["colocated"] == "no"
    total, longest = number(row, "mean_seq_len"), number(row, "max_seq_len")
    data: dict[str, object] = {
        "id": case_id,
        "kind": "rl-step",
        "model": row["model"],
        "chip": row["chip"],
        "num_chips": whole(row, "num_chips"),
        "stack": re.sub(r" v[\d.]+", "", row["framework"]).lower().replace(" ", "-"),
        "stack_version": ".".join(map(str, _version(row))),
        "precision": "fp8" if "FP8" in row["precision"] else "bf16",
        "engine": "vllm",
        "algorithm": row["algorithm"].lower(),
        "mode": ("one-step-off" if lag.group(1) == "1" else "async") if lag else "sync",
        "in_flight": row["in_flight_weight_update"] == "True",
        "prompts": whole(row, "prompts_per_step"),
        "generations": whole(row, "gens_per_prompt"),
        "trained": whole(row, "samples_per_step"),
        "input_len": PROMPT_LEN,
        "output_len": total - PROMPT_LEN,
        "longest": longest - PROMPT_LEN,
        "output_spread": SPREAD,
        "memory_fraction": MEMORY_FRACTION,
        "layout": {"tp": tp, "cp": cp, "ep": ep, "pp": pp},
        "gen_layout": {"tp": whole(row, "gen_tp"), "pp": whole(row, "gen_pp", 1)},
        "micro_batch": whole(row, "train_micro_batch", 1),
        "log_prob_batch": whole(row, "logprob_batch", 1),
        "train_batch": whole(row, "train_global_batch" if row["train_global_batch"] else "samples_per_step"),
        "recompute": "full" if row["act_ckpt"] == "True" else "none",
        "source": row["source"],
        "measured": {"rl_step_s": number(row, "step_s")},
    }
    if lag:
        data["staleness"] = int(lag.group(1))
    if alone:
        data["gen_chips"] = whole(row, "gen_chips")
    return data


def _degrees(row: TableRow) -> tuple[int, int, int, int]:
    """Parallel degrees of training: tp, cp, ep, pp; 1 each where the recipe states none."""
    cell = row["recipe_train_tp_cp_ep_pp"]
    found = re.fullmatch(r"\[(\d+), *(\d+), *(\d+), *(\d+)\]", cell.strip() or "[1, 1, 1, 1]")
    if found is None:
        raise InputError(
            what="recipe_train_tp_cp_ep_pp", given=cell, allowed="[tp, cp, ep, pp]", nearest="[1, 1, 1, 1]"
        )
    tp, cp, ep, pp = (int(part) for part in found.groups())
    return tp, cp, ep, pp


_PARTS_COLUMNS = {"framework", "gen_s", "logprob_s", "ref_s", "train_s", "refit_s", "max_response_len", "colocated"}
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


def is_rl_parts_table(text: str) -> bool:
    """Whether a CSV file has the columns of measured parts of steps."""
    return has_columns(text, _PARTS_COLUMNS)


def read_rl_parts_table(path: Path, text: str, unknown_keys: dict[str, int]) -> list[Case | Unsupported]:
    """Read a table; rows that do not say what was run are named.

    Args:
        text: the content of the file.
        unknown_keys: ignored keys → number of cases that have them.
    """

    def read(row: TableRow, case_id: str, where: str) -> Case | Unsupported:
        recipe = _RECIPES.get((row["framework"], row["model"]), {}) if row["train_engine"] != "DTensor" else {}
        lacks = _lacking(row, recipe)
        if lacks:
            return Unsupported(case_id=case_id, kind="rl-step", where=where, cause=lacks, metrics=tuple(_measured(row)))
        return case_from(_parts_data(row, case_id, recipe), where, unknown_keys)

    return read_rows(path, table_rows(text), "rl-step", read)


def _lacking(row: TableRow, recipe: dict[str, object]) -> str:
    """Why a row cannot be predicted; empty where it can."""
    if not row["chip"] or row["chip"].startswith("not stated") or row["model"] == "not stated":
        return "the source does not state model and chip"
    if row["train_engine"] == "DTensor":
        return "updates by DTensor, whose steps are not known"
    if not row["prompts_per_step"] and not recipe:
        return "the source does not state how many answers a step has"
    if not row["mean_response_len"] and not row["max_response_len"] and not recipe:
        return "the source does not state how long answers are"
    if "agentic" in row["algorithm"]:
        return "agents whose tools take most of the time"
    return ""


def _measured(row: TableRow) -> dict[str, float]:
    found = {name: number(row, column) for name, column in _PARTS.items() if row[column]}
    if row["framework"].startswith("NeMo") and "old_log_probs_s" in found:  # policy and reference together
        found = {name.replace("old_log_probs_s", "log_probs_s"): value for name, value in found.items()}
    return found


def _parts_data(row: TableRow, case_id: str, recipe: dict[str, object]) -> dict[str, object]:
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
        "engine": "vllm",
        "algorithm": row["algorithm"].lower().split(" ")[0],
        "mode": "async" if row["sync"] == "async" else "sync",
        "input_len": number(row, "mean_prompt_len", PROMPT_LEN),
        "output_len": number(row, "mean_response_len", MEAN_SHARE * longest),
        "output_spread": SPREAD,
        "memory_fraction": MEMORY_FRACTION,
        "source": row["source"],
        "measured": _measured(row),
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
