"""A table (CSV) of measured parts of steps of reinforcement learning as cases of kind rl-step, one row a step.

Tables of parts leave out more than tables of steps: what a recipe of the release states is taken from it, a mean answer
that is not published is assumed, and layouts that are not are searched.
"""

from __future__ import annotations

from pathlib import Path

from rackline.validation.cases import Case, Unsupported, case_from
from rackline.validation.rl_table import MEMORY_FRACTION, PROMPT_LEN, SPREAD
from rackline.validation.tables import TableRow, has_columns, number, read_rows, table_rows, whole

_COLUMNS = {"framework", "gen_s", "logprob_s", "ref_s", "train_s", "refit_s", "max_response_len", "colocated"}
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
    return has_columns(text, _COLUMNS)


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
        return case_from(_data(row, case_id, recipe), where, unknown_keys)

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


def _data(row: TableRow, case_id: str, recipe: dict[str, object]) -> dict[str, object]:
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
