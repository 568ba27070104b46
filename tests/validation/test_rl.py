"""Published steps of reinforcement learning: rows are read as cases, errors stay within the bars."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from rackline.posttraining.job import RlOverheads
from rackline.validation import Scoreboard, validate
from rackline.validation.cases import Case, Unsupported
from rackline.validation.rl import RL_STEPS, RL_TABLES
from rackline.validation.tables import table_of
from scripts import load_script

TABLE = Path(__file__).resolve().parents[3] / "shared/measured/post_training/rl/nemo_rl_steps.csv"
ROW = {
    "framework": "NeMo RL v0.6", "model": "qwen3-32b", "algorithm": "GRPO", "mode": "1-step Off", "chip": "gb200",
    "num_chips": "32", "colocated": "no", "gen_chips": "16", "train_chips": "16", "gen_tp": "1", "gen_pp": "1",
    "recipe_train_tp_cp_ep_pp": '"[2, 1, 1, 1]"', "max_seq_len": "4096", "mean_seq_len": "3258.0",
    "samples_per_step": "2048", "prompts_per_step": "64", "gens_per_prompt": "32", "train_global_batch": "512",
    "train_micro_batch": "1", "logprob_batch": "", "act_ckpt": "", "in_flight_weight_update": "True",
    "precision": "bf16", "step_s": "210.0", "source": "s",
}  # fmt: skip


def rows(*changes: dict[str, str]) -> list[Case | Unsupported]:
    text = ",".join(ROW) + "\n" + "\n".join(",".join({**ROW, **change}.values()) for change in changes) + "\n"
    assert table_of(RL_TABLES, text, "") is RL_STEPS
    return RL_STEPS.read(Path("t.csv"), text, {})


def test_a_row_becomes_a_case() -> None:
    (found,) = rows({})
    assert isinstance(found, Case)
    assert (found.text("mode"), found.number("staleness"), found.number("gen_chips")) == ("one-step-off", 1, 16)
    assert found.layout == {"tp": 2, "cp": 1, "ep": 1, "pp": 1}
    assert found.number("output_len") == 3258.0  # of the answer alone
    assert found.number("longest") + found.number("input_len") == 4096.0
    assert found.measured == {"rl_step_s": 210.0}


def test_a_release_runs_on_its_own_engine() -> None:
    older, newer, unknown = rows({"framework": "NeMo RL v0.5"}, {}, {"framework": "NeMo RL v0.9"})
    engines = [found.text("engine") for found in (older, newer, unknown) if isinstance(found, Case)]
    assert engines == ["vllm=0.11.2", "vllm=0.17.1", "vllm"]


def test_a_batch_of_log_probabilities_that_no_recipe_states_is_that_of_the_base_file() -> None:
    stated, unstated = rows({"logprob_batch": "2"}, {})
    assert [found.whole("log_prob_batch") for found in (stated, unstated) if isinstance(found, Case)] == [2, 4]


def test_dynamic_sampling_generates_three_times_what_it_trains_on() -> None:
    (found,) = rows({"algorithm": "DAPO"})
    assert isinstance(found, Case)
    answers = found.whole("prompts") * found.whole("generations")
    assert (found.whole("trained"), answers) == (2048, 3 * 2048)
    assert found.values["eager"] is True


@pytest.fixture(scope="module")
def board() -> Scoreboard:
    if not TABLE.exists():
        pytest.skip("needs ../shared/measured")
    return validate([TABLE])


@pytest.mark.slow
def test_published_steps_are_within_the_bars(board: Scoreboard) -> None:
    found = board.metrics["rl_step_s"]
    assert found.supported == 26
    assert found.median_abs_error <= 0.09
    assert found.p90_abs_error <= 0.25


@pytest.mark.slow
def test_models_that_the_fit_has_not_seen_are_within_the_bars() -> None:
    """A grid around the fitted numbers, of which each model in turn has no say."""
    if not TABLE.exists():
        pytest.skip("needs ../shared/measured")
    shipped = RlOverheads()
    grid = product((0.005, 0.00625, 0.0075, 0.00875), (1.125, 1.25, 1.375, 1.5), (0.00045, 0.0006, 0.00075))
    found = load_script("rl_overheads").fitted(str(TABLE), list(grid))
    assert found.best == (shipped.decode_step_s, shipped.training, shipped.tensor_s)
    error = np.abs(found.left_out - 1.0)
    assert float(np.median(error)) <= 0.12
    assert float(np.quantile(error, 0.9)) <= 0.30


@pytest.mark.slow
def test_one_step_off_over_in_turn_is_within_a_fifth(board: Scoreboard) -> None:
    """Pairs of lines of the table, in turn first."""
    error = {int(re.findall(r"\d+$", score.where)[0]): 1.0 + score.error for score in board.scores}
    pairs = ((10, 11), (13, 14), (16, 17), (18, 19), (23, 24), (25, 26))
    assert max(abs(error[off] / error[turn] - 1.0) for turn, off in pairs) <= 0.2
