"""Measured parts of steps of reinforcement learning: which rows are predicted, from what, and how they are printed."""

from __future__ import annotations

from pathlib import Path

import pytest

import rackline as rl
from rackline.validation.cases import Case
from rackline.validation.rl import RL_PARTS
from rackline.validation.run import read_cases

TABLE = Path("../shared/measured/post_training/rl/rl_step_parts.csv")
HEAD = (
    "framework,model,algorithm,mode,sync,chip,num_chips,gen_chips,train_chips,colocated,train_engine,prompts_per_step,"
    "gens_per_prompt,mean_prompt_len,mean_response_len,max_response_len,step_s,gen_s,logprob_s,ref_s,train_s,refit_s,"
    "source"
)
ROWS = (
    "verl,llama-3.1-8b,GRPO,sync,sync,h100,8,8,8,yes,Megatron,64,8,,,2048,50,30,3,2,10,,here",
    "NeMo RL v0.3,llama-3.1-70b,GRPO,sync,sync,h100 (not stated),64,64,64,yes,Megatron,,,,398,,147,84,18,,28,14,here",
    "NeMo RL v0.3,llama-3.1-70b,GRPO,sync,sync,h100,64,64,64,yes,DTensor,,,,398,,147,84,18,,28,14,here",
    "verl,llama-3.1-8b,GRPO,sync,sync,not stated,8,8,8,yes,FSDP,64,8,,,2048,50,30,3,2,10,,here",
    "verl,llama-3.1-8b,GRPO,sync,sync,h100,8,8,8,yes,FSDP,,,,400,2048,50,30,3,2,10,,here",
)


def test_rows_and_reasons(tmp_path: Path) -> None:
    path = tmp_path / "parts.csv"
    found = RL_PARTS.read(path, "\n".join((HEAD, *ROWS)), {})
    one, recipe = (case for case in found if isinstance(case, Case))
    assert list(one.values["assumed"]) == ["output_len"]  # type: ignore[call-overload]
    assert one.number("output_len") == 512.0
    assert dict(one.measured) == {
        "rollouts_s": 30.0, "old_log_probs_s": 3.0, "reference_log_probs_s": 2.0, "updates_s": 10.0, "rl_step_s": 50.0,
    }  # fmt: skip
    assert recipe.number("prompts") == 64.0
    assert recipe.values["gen_layout"] == {"tp": 4}
    assert dict(recipe.measured)["log_probs_s"] == 18.0
    reasons = [case.cause for case in found if not isinstance(case, Case)]
    assert [reason.split()[0] for reason in reasons] == ["updates", "the", "the"]
    assert "how many answers" in reasons[2]


@pytest.mark.slow
def test_parts_stand_beside_their_prediction(tmp_path: Path) -> None:
    path = tmp_path / "parts.csv"
    path.write_text(f"{HEAD}\n{ROWS[0]}\n")
    answer = rl.validate(str(path))
    board = answer.result.board
    predicted = {score.metric: score.predicted for score in board.scores}
    assert predicted["rollouts_s"] + predicted["updates_s"] < predicted["rl_step_s"]
    assert predicted["old_log_probs_s"] == predicted["reference_log_probs_s"] > 0.0
    named = answer.tables()["parts"]["case"]
    assert [bool(name) for name in named] == [True, *[False] * (len(board.scores) - 1)], "the case stands once"


@pytest.mark.skipif(not TABLE.is_file(), reason="needs ../shared/measured/post_training")
def test_published_rows() -> None:
    found = read_cases([TABLE])
    assert (len(found.cases), len(found.unsupported)) == (6, 7)
