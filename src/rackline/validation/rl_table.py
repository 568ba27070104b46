"""A table (CSV) of published steps of reinforcement learning as cases of kind rl-step, one row a step."""

from __future__ import annotations

import re
from pathlib import Path

from rackline.errors import InputError
from rackline.validation.cases import Case, Unsupported, case_from
from rackline.validation.tables import TableRow, has_columns, number, read_rows, table_rows, whole

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
