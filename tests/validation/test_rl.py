"""Published steps of reinforcement learning: rows are read as cases, errors stay within the bars."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rackline.validation import Scoreboard, validate
from rackline.validation.cases import Case, Unsupported
from rackline.validation.rl import RL_STEPS

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
    assert RL_STEPS.fits(text)
    return RL_STEPS.read(Path("t.csv"), text, {})


def test_a_row_becomes_a_case() -> None:
    (found,) = rows({})
    assert isinstance(found, Case)
    assert (found.text("mode"), found.number("staleness"), found.number("gen_chips")) == ("one-step-off", 1, 16)
    assert found.layout == {"tp": 2, "cp": 1, "ep": 1, "pp": 1}
    assert found.number("output_len") + found.number("input_len") == 3258.0
    assert found.measured == {"rl_step_s": 210.0}


def test_a_release_runs_on_its_own_engine() -> None:
    older, newer, unknown = rows({"framework": "NeMo RL v0.5"}, {}, {"framework": "NeMo RL v0.9"})
    engines = [found.text("engine") for found in (older, newer, unknown) if isinstance(found, Case)]
    assert engines == ["vllm=0.11.2", "vllm=0.17.1", "vllm"]


def test_dynamic_sampling_generates_three_times_what_it_trains_on() -> None:
    (found,) = rows({"algorithm": "DAPO"})
    assert isinstance(found, Case)
    answers = found.whole("prompts") * found.whole("generations")
    assert (found.whole("trained"), answers) == (2048, 3 * 2048)
    assert found.values["eager"] is True


@pytest.fixture(scope="module")
def board() -> Scoreboard:
    if not TABLE.exists():
        pytest.skip("the measured steps of reinforcement learning are not beside this checkout")
    return validate([TABLE])


@pytest.mark.slow
def test_published_steps_are_within_the_bars(board: Scoreboard) -> None:
    found = board.metrics["rl_step_s"]
    assert found.supported == 26
    assert found.median_abs_error <= 0.1
    assert found.p90_abs_error <= 0.26


@pytest.mark.slow
def test_one_step_off_over_in_turn_is_within_a_fifth(board: Scoreboard) -> None:
    """Pairs of lines of the table, in turn first."""
    error = {int(re.findall(r"\d+$", score.where)[0]): 1.0 + score.error for score in board.scores}
    pairs = ((10, 11), (13, 14), (16, 17), (18, 19), (23, 24), (25, 26))
    assert max(abs(error[off] / error[turn] - 1.0) for turn, off in pairs) <= 0.2
