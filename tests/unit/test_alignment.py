"""Attention-dp ranks and prompts: who waits, for how many passes, and what an engine is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rackline as rl
from rackline.errors import InputError
from rackline.search.launch_commands import alignment_words
from rackline.search.space import aligned_modes
from rackline.serving.stack import stack
from rackline.serving.workload import parse_mode
from rackline.simulation import Pool, RankSpec, Requests, Result, simulate
from rackline.simulation.clock import PlainClock
from rackline.simulation.policies import POLICIES, alignments

STEP_S = 0.01


def served(name: str, arrivals: list[float], inputs: list[int], outputs: list[int], most_tokens: int = 8192) -> Result:
    """Requests on two ranks; every pass takes one hundredth of a second."""
    pool = Pool(
        clock=PlainClock(base_s=STEP_S),
        spec=RankSpec(pool_tokens=100_000, max_batched_tokens=most_tokens),
        policy=POLICIES.find(name),
        ranks=2,
    )
    requests = Requests(
        arrival_s=np.array(arrivals), input_len=np.array(inputs), output_len=np.array(outputs), name="drawn by hand"
    )
    return simulate(requests, pool)


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("chunked", 1),
        ("prefill_first", 1),
        ("prefill_delayer", 30),
        ("adp_balance", 51),
        ("prefill_decode_interval", 1),
    ],
)
def test_a_prompt_waits_for_other_ranks_as_long_as_the_policy_says(name: str, passes: int) -> None:
    """Two sequences decode, one on each rank, when a third prompt comes at the end of a pass."""
    found = served(name, [0.0, 0.0, 3.0 - 1e-6], [10, 10, 10], [900, 900, 5])
    waited = (found.first_s[2] - 3.0) / STEP_S
    if name == "adp_balance":  # of a period of 50 passes that began with the first one
        assert 1.0 <= round(waited) <= passes
    else:
        assert round(waited) == passes


def test_prompts_of_all_ranks_run_at_once() -> None:
    found = served("prefill_delayer", [0.0, 0.0, 3.0 - 1e-6, 3.1 - 1e-6], [10] * 4, [900, 900, 5, 5])
    assert found.first_s[2] == pytest.approx(found.first_s[3])
    assert round((found.first_s[3] - 3.1) / STEP_S) == 1


def test_after_prompts_all_ranks_decode_for_the_interval() -> None:
    found = served("prefill_decode_interval", [0.0, 0.0, 3.0 - 1e-6, 3.01 - 1e-6], [10] * 4, [900, 900, 5, 5])
    assert round((found.first_s[2] - 3.0) / STEP_S) == 1
    assert round((found.first_s[3] - found.first_s[2]) / STEP_S) == 23


def test_prompts_run_in_every_nth_pass() -> None:
    arrivals = [0.0, 0.0, *[1.0 + 0.07 * index for index in range(20)]]
    found = served("prefill_schedule_interval", arrivals, [10] * 22, [900, 900, *[5] * 20])
    passes = np.unique(np.rint(found.first_s[2:] / STEP_S))
    assert len(passes) > 5
    assert np.all(np.diff(passes) % 16 == 0)


def test_ranks_without_prompts_decode_beside_those_with_prompts() -> None:
    """A prompt of eight passes on the other rank takes nothing from a sequence that decodes."""
    alone = served("prefill_first", [0.0], [10], [100], most_tokens=100)
    both = served("prefill_first", [0.0, 0.5], [10, 800], [100, 5], most_tokens=100)
    assert both.finish_s[0] == pytest.approx(alone.finish_s[0])
    assert both.first_s[1] >= 0.5 + 8 * STEP_S - 1e-9


def test_a_rank_waits_for_its_own_prompts() -> None:
    alone = served("prefill_first", [0.0, 0.0], [10, 10], [100, 100], most_tokens=100)
    both = served("prefill_first", [0.0, 0.0, 0.5], [10, 10, 800], [100, 100, 5], most_tokens=100)
    waited = np.rint((both.finish_s[:2] - alone.finish_s) / STEP_S)
    assert sorted(waited) == [0.0, 8.0]


def test_modes_are_read_with_their_alignment() -> None:
    mode = parse_mode("prefill-first=8k,prefill-delayer=48", alignments())
    assert mode.max_batched_tokens == 8000
    assert mode.alignment is not None
    assert (mode.alignment.passes, mode.alignment.some_passes) == (48, 47)
    assert mode.label() == "prefill first 8000, prefill delayer 48"
    balanced = parse_mode("chunked,adp-balance", alignments()).alignment
    assert balanced == POLICIES.find("adp_balance").alignment
    for text in ("chunked,prefill-delayer", "prefill-first,adp-balance=50", "chunked,delayer", "chunked,adp-balance=1"):
        with pytest.raises(InputError):
            parse_mode(text, alignments())


@pytest.mark.parametrize(
    ("engine", "version", "names"),
    [
        ("sglang", "", {"prefill_delayer", "prefill_decode_interval"}),
        ("sglang", "0.5.18", {"prefill_delayer"}),
        ("sglang", "0.5.6", set[str]()),
        ("vllm", "", {"prefill_schedule_interval"}),
        ("vllm", "0.20.2", set[str]()),
        ("trtllm", "", {"adp_balance"}),
        ("generic", "", set[str]()),
    ],
)
def test_what_a_version_offers_is_searched(engine: str, version: str, names: set[str]) -> None:
    modes = aligned_modes(stack(engine, version=version))
    assert {mode.alignment.name for mode in modes if mode.alignment} == names


def test_engines_are_told_of_it() -> None:
    known = {name: found for name, (_, found) in alignments().items()}
    told = alignment_words("sglang", "0.5.23", known["prefill_delayer"].of(48)).words
    assert told == ("--enable-prefill-delayer", "--prefill-delayer-max-delay-passes", "48")
    told = alignment_words("vllm", "0.33.0", known["prefill_schedule_interval"].of(16)).words
    assert told == ("--prefill-schedule-interval", "16")
    file = alignment_words("trtllm", "1.2", known["adp_balance"].of(100)).file
    assert file == (
        "attention_dp_config:", "  enable_balance: true", "  timeout_iters: 100", "  batching_wait_iters: 20"
    )  # fmt: skip
    assert alignment_words("sglang", "0.5.6", known["prefill_delayer"]).lacks


@pytest.mark.parametrize(("version", "tokens"), [("0.5.23", 8192), ("0.5.18", 2048), ("0.5.9", 0), ("0.5.17", 0)])
def test_prompt_graphs_by_version(version: str, tokens: int) -> None:
    assert stack("sglang", version=version).graphs.captured_prompt_tokens == tokens


def test_ranks_wait_for_prompts_that_one_pass_holds() -> None:
    asked: dict[str, Any] = {
        "on": "dgx-h200", "chips": 2, "layout": "attention_dp=2,ep=2", "output": 100, "serving": "aggregated",
        "calibration": "sglang", "mode": "prefill-first=4096,prefill-delayer=48", "any_layout": True,
    }  # fmt: skip
    assert rl.plan("qwen3-30b-a3b", **asked, input="4k").to_dict()["best"]["mode"]["alignment"]["passes"] == 48
    with pytest.raises(InputError, match="prefill delayer 48"):
        rl.plan("qwen3-30b-a3b", **asked, input="5k")


def test_prompts_that_one_pass_does_not_hold_are_named_where_ranks_would_wait() -> None:
    asked: dict[str, Any] = {"on": "dgx-h200", "input": "40k", "output": 500, "tpot": "80ms", "serving": "aggregated"}
    with pytest.raises(InputError, match="with prompts that one pass holds"):
        rl.plan("deepseek-v3", **asked, mode="prefill_first=16384,prefill-delayer")
