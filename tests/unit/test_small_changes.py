"""Lines that were changed a little in a copy of the source, and no test noticed: each has one now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_chip_check import BARE, found

import rackline as rl
from helpers import cluster, micro_batch, model
from rackline.api.explain import FitQuestion
from rackline.api.question import python_of
from rackline.arch import DenseFfn
from rackline.cli.main import run
from rackline.errors import InputError
from rackline.passes.features import TOKENS
from rackline.report.simulate_figures import tails_figure
from rackline.sweeps.expression import Draws, read_range
from rackline.sweeps.file import read_file
from rackline.training.runs import TrainLayout
from rackline.training.work import small_work
from rackline.validation.forms import fits


def test_a_fraction_is_written_as_it_is() -> None:
    asked = FitQuestion("llama-3.1-8b", on="dgx-h100", memory_fraction=0.85)
    assert "memory_fraction=0.85" in python_of(asked)


def test_a_wrong_command_behind_an_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", "plann"]) == 2
    assert "got 'plann'" in capsys.readouterr().err


def test_prompts_may_be_empty_and_never_negative() -> None:
    assert [fits(length, "prompt") for length in (0, 512, -1, "4k")] == [True, True, False, False]
    assert not fits(0, "length")


@pytest.mark.parametrize(("accessed", "is_doubtful"), [("", True), ('accessed = "2026-01-02"', False)])
def test_a_page_without_the_day_it_was_read_is_doubtful(tmp_path: Path, accessed: str, is_doubtful: bool) -> None:
    text = BARE.replace('citation = "data sheet"', f'url = "https://example.com/chip"\n{accessed}')
    states = found(text, tmp_path)
    assert any(state == "doubtful" and "hbm" in key for key, state in states.items()) is is_doubtful


def test_all_requests_take_longer_than_the_least() -> None:
    result = rl.simulate(
        "llama-3.1-8b", on="l40s-8", layout="tp=1", rate=2, requests=200, input="1k", output=50, seed=1
    ).result
    drawn = tails_figure({"run": result.runs[next(iter(result.runs))].result})
    rows = drawn.spec["data"]["values"]
    for metric in {row["metric"] for row in rows}:
        shares = [row["share_above"] for row in rows if row["metric"] == metric]
        assert max(shares) == 1.0
        assert 0.0 < min(shares) <= 1.0 / 100.0
        assert np.all(np.diff(shares) < 0.0)


def test_a_limit_that_is_broken_is_named() -> None:
    """Within the limit of a token's time, beyond that of the first token."""
    plan = rl.plan(
        "llama-3.1-70b", on="dgx-h100", input="8k", output=200, tpot="60ms", ttft="700ms", serving="aggregated",
        calibration="vllm",
    ).result.plan  # fmt: skip
    reasons = [one.reason for one in plan.rejected]
    assert any(reason.startswith("ttft: ") and "limit 700 ms" in reason for reason in reasons), reasons
    assert not any(reason.startswith("tpot: ") and "limit 60 ms" not in reason for reason in reasons)


def test_stored_scores_stand_alone() -> None:
    with pytest.raises(InputError, match="stored"):
        rl.validate("cases.jsonl", stored="scoreboard", refit="model")
    with pytest.raises(InputError) as refused:
        rl.validate("no-such-cases.jsonl", refit="model")
    assert refused.value.what != "stored"


def test_combinations_are_layouts_by_precision_by_scheduler() -> None:
    """Twice the precisions are twice the combinations, whatever their number."""
    asked = {"on": "dgx-h100", "input": "2k", "output": 200, "serving": "aggregated", "calibration": "vllm"}
    one, two = (
        rl.plan("llama-3.1-70b", precision=types, **asked).result.plan.combinations
        for types in (["fp8"], ["fp8", "bf16"])
    )
    assert two == 2 * one > 2


def test_activation_functions_of_a_dense_layer_grow_with_its_width() -> None:
    """A gated layer reads two and writes one of d_ff elements of two bytes for each token; backward twice that."""
    batch = micro_batch(model("llama-3.1-8b"), [TrainLayout(dp=8)], cluster("dgx-h100"), seq_len=4096)
    ffn = next(one for one in (group.ffn for group in batch.system.model.layer_groups) if isinstance(one, DenseFfn))

    def moved(width: int) -> dict[str, float]:
        rows = [one.row for one in small_work(batch, {}, {replace(ffn, d_ff=width): 32})]
        return {row.group: float(np.sum(row.hbm.get(TOKENS, 0.0))) for row in rows}

    narrow, wide = moved(ffn.d_ff), moved(2 * ffn.d_ff)
    more = 2.0 * ffn.d_ff * 3.0 * 32
    grown = sorted(wide[phase] - narrow[phase] for phase in narrow)
    assert grown[-1] == pytest.approx(2.0 * more)
    assert any(one == pytest.approx(more) for one in grown)


@pytest.mark.parametrize("ends", [[8, 2], [0, 2], [4, 4]])
def test_ends_of_a_logarithm_rise_from_above_zero(ends: list[int]) -> None:
    with pytest.raises(InputError, match="above zero"):
        read_range({"log_uniform": ends}, "batch", lambda value, _: value)
    assert isinstance(read_range({"log_uniform": [2, 8]}, "batch", lambda value, _: value), Draws)


def test_numbers_of_settings_may_stand_in_expressions() -> None:
    options = {"model": "llama-3.1-8b", "on": "l40s-8", "batch": 8, "context": "2k"}
    file = read_file({"options": options, "set": {"hbm_bytes_per_s": "1TB/s"}})
    assert file.numbers["hbm_bytes_per_s"] == 1e12


def test_options_of_a_question_are_named() -> None:
    """All but those that stand first in the command."""
    with pytest.raises(TypeError, match="positional argument"):
        FitQuestion("llama-3.1-8b", "dgx-h100")  # type: ignore[call-arg]
