"""Traces, made traffic, caches and results of the simulator."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from rackline.api.simulate_options import SimulateQuestion
from rackline.api.traffic import requests_of
from rackline.errors import InputError
from rackline.plain import plain
from rackline.search.rate_capacity import rate_capacity
from rackline.simulation import (
    POLICIES,
    Lengths,
    PlainClock,
    Pool,
    RankSpec,
    Requests,
    Sessions,
    Slo,
    TierSpec,
    closed_loop_of,
    diurnal,
    gamma,
    open_arrivals,
    read_trace,
    simulate,
)
from rackline.simulation.workloads import poisson

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
SPEC = RankSpec(pool_tokens=20_000)
CLOCK = PlainClock(base_s=0.01, per_prompt_token_s=1e-5)
POOL = Pool(clock=CLOCK, spec=SPEC, policy=POLICIES.find("chunked"))


def test_a_request_may_fill_the_cache_to_its_last_block() -> None:
    pool = replace(POOL, spec=RankSpec(pool_tokens=1024))
    full = Requests(arrival_s=np.zeros(1), input_len=np.array([1000]), output_len=np.array([24]))
    assert np.isfinite(simulate(full, pool).finish_s).all()
    with pytest.raises(InputError, match="at most 1024 tokens"):
        simulate(replace(full, input_len=np.array([1001])), pool)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("AzureLLMInferenceTrace_code_2023.csv", 8819),
        ("AzureLLMInferenceTrace_conv_2023.csv", 19366),
        ("mooncake_conversation_trace.jsonl", 12031),
        ("mooncake_synthetic_trace.jsonl", 3993),
    ],
)
def test_public_traces_are_read(name: str, count: int) -> None:
    if not TRACES.is_dir():
        pytest.skip("no traces beside the project")
    found = read_trace(TRACES / name)
    assert len(found) == count
    assert found.arrival_s[0] == 0.0
    assert (found.hashes is not None) == name.endswith("jsonl")


GOOD = "arrival_s,input_len,output_len\n0,10,5\n1.5,20,6\n2,30,7\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-1,10,5", "time -1"),
        ("2,0,5", "lengths 0 and 5"),
        ("2,10", "2 of 3 columns"),
        ("2,ten,5", "could not convert"),
        ("2,10.5,5", "not a whole number"),
        ("nan,10,5", "time nan"),
        ("1,10,5", "at least 2,"),
    ],
)
def test_bad_lines_are_named_or_counted(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(GOOD + line + "\n")
    with pytest.raises(InputError, match=f"trace.csv:5.*{reason}"):
        read_trace(path)
    found = read_trace(path, skip_bad=True)
    assert (len(found), found.skipped) == (3, 1)


@pytest.mark.parametrize("line", [1, 3])
def test_an_endless_cell_is_named_with_its_line(tmp_path: Path, line: int) -> None:
    path = tmp_path / "trace.csv"
    lines = GOOD.splitlines()
    lines[line - 1] += f',"{"1" * 200_000}"'
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=f"trace.csv:{line}: .*131,072"):
        read_trace(path)


def test_a_benchmark_result_is_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"input_lens": [5, 6], "output_lens": [2, 3], "start_times": [101.5, 100.0]}))
    found = read_trace(path)
    assert found.arrival_s.tolist() == [0.0, 1.5]
    assert found.input_len.tolist() == [6, 5]


ROW = {"timestamp": 0, "input_length": 5, "output_length": 2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"input_lens": [5, 6], "output_lens": [2, 3], "start_times": [1.0, None]}, "trace.json:2.*NoneType"),
        ({"input_lens": [5, 6], "output_lens": [2, 3], "start_times": [1.0, "soon"]}, "trace.json:2.*soon"),
        ({"input_lens": [5, 6, 7], "output_lens": [2, 3], "start_times": [1.0, 2.0]}, "3 input_lens, 2 output_lens"),
    ],
)
def test_a_bad_benchmark_result_is_refused(tmp_path: Path, content: dict[str, object], message: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(ROW | {"input_length": int("9" * 400)}), "trace:1.*cannot convert|trace:1.*too large"),
        (json.dumps(ROW | {"input_length": 10**10}), "trace:1.*1,000,000,000"),
        (json.dumps(ROW)[:-1] + ', "hash_ids": ' + "[" * 100_000 + "]" * 100_000 + "}", "trace:1"),
        (json.dumps(ROW | {"hash_ids": [2**64]}), "trace:1.*64 bits"),
        (json.dumps(ROW | {"hash_ids": [1.5]}), "trace:1.*hash_ids"),
        (GOOD + "3,10," + "5" * 140_000 + "\n", "trace:5.*131,072"),
        ("arrival_s,input_len,output_len,input_len\n0,1,2,3\n", "input_len 2 times"),
        ("timestamp,input_len,output_len\n0,1,2\n150,1,2\n310,1,2\n", "as seconds.*--time-unit ms"),
        ("timestamp,input_len,output_len\n1700000000000.5,1,2\n1700000000001.5,1,2\n", "--time-unit ms"),
        ("".join(json.dumps(ROW | {"timestamp": i / 3}) + "\n" for i in range(5)), "as milliseconds.*--time-unit s"),
    ],
)
def test_what_cannot_be_read_or_could_be_read_in_two_ways_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_trace(path)


def test_the_unit_of_times_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("timestamp,input_len,output_len\n0,1,2\n150,1,2\n")
    assert read_trace(path, time_unit="ms").arrival_s.tolist() == [0.0, 0.15]
    assert read_trace(path, time_unit="s").arrival_s.tolist() == [0.0, 150.0]
    path.write_text("arrival_ms,input_len,output_len\n0,1,2\n150,1,2\n")
    assert read_trace(path).arrival_s.tolist() == [0.0, 0.15]
    with pytest.raises(InputError, match=r"--time-unit.*states milliseconds"):
        read_trace(path, time_unit="s")


@pytest.mark.parametrize(
    "stamps",
    [
        ("2024-05-10 23:59:59.009930+00:00", "2024-05-11 00:00:00.259930+00:00"),
        ("2024-05-10T23:59:59.5Z", "2024-05-11T00:00:00.75Z"),
        ("2024-05-10 23:59:59.50", "2024-05-11 00:00:00.7500000"),
        ("2024-05-10 23:59:59+02:00", "2024-05-10 22:00:00.25+00:00"),
    ],
)
def test_dates_with_and_without_a_time_zone(tmp_path: Path, stamps: tuple[str, str]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{stamp},5,2\n" for stamp in stamps))
    assert np.diff(read_trace(path).arrival_s) == pytest.approx([1.25], abs=1e-6)


def test_every_pass_of_a_short_run_is_a_sample() -> None:
    requests = open_arrivals(np.random.default_rng(0), 20, 10.0, Lengths(input_len=100, output_len=8))
    found = simulate(requests, POOL)
    times = found.samples[:, 1]
    assert len(times) == found.passes
    assert np.all(np.diff(times) > 0)
    assert times[-1] > requests.arrival_s[-1]
    assert found.samples[:, 2].max() > 0


def test_pieces_of_a_long_trace_are_joined_in_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 20 * i, "input_length": i + 1, "output_length": 2, "hash_ids": list(range(i % 5))}
        for i in range(45_000)
    ]
    lines = [json.dumps(row) for row in rows]
    path.write_text("\n".join(lines[:30_000]) + "\nnot json\n" + "\n".join(lines[30_000:]))
    with pytest.raises(InputError, match=r"trace.jsonl:30001"):
        read_trace(path)
    found = read_trace(path, skip_bad=True)
    assert (len(found), found.skipped) == (45_000, 1)
    assert np.array_equal(found.input_len, np.arange(1, 45_001))
    assert found.arrival_s[-1] == pytest.approx(0.02 * 44_999)
    assert found.hashes is not None
    assert [list(found.hashes[i]) for i in (4, 20_004, 44_999)] == [[0, 1, 2, 3]] * 3
    late = found.pick(np.arange(45_000) >= 44_998)
    assert late.hashes is not None
    assert [list(row) for row in late.hashes] == [[0, 1, 2], [0, 1, 2, 3]]
    assert found.lines is not None
    assert found.lines[29_999:30_001].tolist() == [30_000, 30_002]


@pytest.mark.parametrize("odd", ['"25001.0","7",3', "25001,7,3,", "25001.0 , 7 ,3.0", "", "25001,0_7,3"])
def test_a_piece_of_csv_that_is_not_plain_numbers_is_read_like_the_others(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{i}.0,{5 + i % 3},{2 + i % 5}" for i in range(50_000)]
    rows[25_001] = odd
    header = "arrived_at,num_prefill_tokens,num_decode_tokens"
    path.write_text("\n".join([header, *rows]) + "\n")
    found = read_trace(path, skip_bad=True)
    good = [i for i in range(50_000) if i != 25_001]
    if odd.count(",") == 2:
        good.insert(25_001, 25_001)
        assert found.input_len[25_001] == 7
    assert found.skipped == (odd.count(",") == 3)
    assert found.lines is not None
    assert found.lines.tolist() == [i + 2 for i in good]
    assert found.arrival_s.tolist() == [float(i) for i in good]
    assert found.output_len[-1] == 2 + 49_999 % 5


def test_a_truncated_line_of_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 5, "output_length": 2}
    path.write_text(json.dumps(row) + "\n" + json.dumps(row)[:-4] + "\n")
    with pytest.raises(InputError, match=r"trace.jsonl:2"):
        read_trace(path)


def test_a_request_longer_than_the_pool_is_refused_or_left_out() -> None:
    requests = Requests(
        arrival_s=np.zeros(2), input_len=np.array([10, 30_000]), output_len=np.array([5, 5]), lines=np.array([2, 3])
    )
    with pytest.raises(InputError, match=r"line 3.*KV cache"):
        simulate(requests, POOL)
    result = simulate(requests, POOL, skip_bad=True)
    assert plain(result)["skipped"] == 1
    assert result.finished.all()


def test_bursts_and_days_keep_the_mean_rate() -> None:
    rng = np.random.default_rng(0)
    for arrival_cv in (0.0, 1.0, 3.0):
        times = gamma(rng, 40_000, 5.0, arrival_cv)
        gaps = np.diff(times)
        assert gaps.mean() == pytest.approx(0.2, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(arrival_cv, abs=0.1)
    day = diurnal(rng, 40_000, 4.0, 0.9, 1000.0)
    phase = day % 1000.0
    assert np.mean((phase > 250) & (phase < 750)) > 0.7
    assert len(day) / day[-1] == pytest.approx(4.0, rel=0.05)


def test_requests_at_equal_distances_can_be_asked_for() -> None:
    asked = SimulateQuestion("llama-3.1-8b", on="dgx-h100", rate="5", input=100, output=10, requests=40, arrival_cv=0)
    assert np.diff(requests_of(asked, inf).arrival_s) == pytest.approx(0.2)


def test_conversations_find_what_was_said_before() -> None:
    rng = np.random.default_rng(1)
    sessions = Sessions(turns=4, think_s=2, system_tokens=256)
    requests = sessions.draw(rng, 400, 0.5, Lengths(input_len=200, output_len=100))
    assert requests.after is not None
    later = requests.after >= 0
    assert later.mean() == pytest.approx(0.75, abs=0.08)
    assert np.all(requests.input_len[later] > requests.input_len[requests.after[later]])
    shares: dict[str, float] = {}
    for name, tiers in (("none", ()), ("host", (TierSpec(name="host", tokens=1e6, tokens_per_s=1e6),))):
        spec = RankSpec(pool_tokens=20_000, prefix_caching=True, hash_tokens=requests.hash_tokens, tiers=tiers)
        result = simulate(requests, Pool(clock=CLOCK, spec=spec, policy=POLICIES.find("chunked")))
        assert result.finished.all()
        shares[name] = result.summary()["cache_hit_share"]
    assert 0.2 < shares["none"] <= shares["host"] < 1.0


def test_urgent_requests_wait_less() -> None:
    rng = np.random.default_rng(2)
    requests = open_arrivals(rng, 600, 40.0, Lengths(input_len=500, output_len=60), high_priority_share=0.2)
    spec = RankSpec(pool_tokens=20_000, max_num_seqs=16)
    result = simulate(requests, Pool(clock=CLOCK, spec=spec, policy=POLICIES.find("priority")))
    assert requests.priority is not None
    fast = requests.priority == 0
    assert np.median(result.ttft_s[fast]) < 0.2 * np.median(result.ttft_s[~fast])


def test_what_is_in_flight_never_exceeds_the_users() -> None:
    requests = closed_loop_of(np.random.default_rng(3), 300, 7, Lengths(input_len=50, output_len=20))
    result = simulate(requests, POOL)
    events = sorted([(t, 1) for t in result.arrival_s] + [(t, -1) for t in result.finish_s])
    assert max(np.cumsum([step for _, step in events])) <= 7


def test_capacity_brackets_the_rate_that_holds() -> None:
    requests = open_arrivals(np.random.default_rng(4), 400, 1.0, Lengths(input_len=500, output_len=50))
    slo = Slo(ttft_s=0.5, ttft_percentile=95.0)
    found = rate_capacity(requests, lambda faster: simulate(faster, POOL), slo)
    assert found.broken_per_s is not None
    assert found.rate_per_s < found.broken_per_s <= found.rate_per_s * 1.021
    assert simulate(requests.scaled(found.rate_per_s / requests.rate_per_s), POOL).holds(slo)
    assert not simulate(requests.scaled(1.5 * found.rate_per_s / requests.rate_per_s), POOL).holds(slo)


def test_an_interrupted_run_reports_what_was_done() -> None:
    requests = open_arrivals(np.random.default_rng(5), 6000, 20.0, Lengths(input_len=100, output_len=10))

    def stop(done: int, total: int, now_s: float) -> None:
        raise KeyboardInterrupt

    result = simulate(requests, POOL, progress=stop)
    assert result.interrupted
    assert 0 < result.finished.sum() < 6000
    assert result.summary()["unfinished"] == 6000 - result.finished.sum()


def test_a_queue_that_keeps_growing_is_named() -> None:
    lengths = Lengths(input_len=500, output_len=50)
    capacity_per_s = 30.0  # 15 places (20,000 tokens of KV, chunked) at 0.5 s a request, about
    spec = RankSpec(pool_tokens=20_000, max_num_seqs=15)
    pool = Pool(clock=CLOCK, spec=spec, policy=POLICIES.find("chunked"))
    for share, grows in ((0.7, False), (3.0, True)):
        requests = open_arrivals(np.random.default_rng(6), 800, share * capacity_per_s, lengths)
        found = simulate(requests, pool).overload()
        assert (found is not None) == grows
        if found is not None:
            assert found["arrived_per_s"] == pytest.approx(share * capacity_per_s, rel=0.1)
            assert 0.6 * capacity_per_s < found["started_per_s"] < 1.05 * capacity_per_s
            assert found["waiting"] > 400
    together = open_arrivals(np.random.default_rng(6), 800, np.inf, lengths)
    assert simulate(together, pool).overload() is None
    users = closed_loop_of(np.random.default_rng(6), 800, 300, lengths)
    assert simulate(users, pool).overload() is None


def test_ranks_that_wait_for_one_with_a_prompt_are_counted() -> None:
    pool = Pool(clock=CLOCK, spec=SPEC, policy=POLICIES.find("prefill-first"), ranks=4)
    one_by_one = Requests(arrival_s=np.arange(20) * 0.1, input_len=np.full(20, 100), output_len=np.full(20, 50))
    found = simulate(one_by_one, pool).lockstep()
    assert found is not None
    assert found["prompt_rank_share"] == pytest.approx(0.25)
    all_at_once = Requests(arrival_s=np.zeros(20), input_len=np.full(20, 100), output_len=np.full(20, 50))
    found = simulate(all_at_once, pool).lockstep()
    assert found is not None
    assert found["prompt_rank_share"] == pytest.approx(1.0)
    assert found["prompt_time_share"] == pytest.approx(0.015 / (0.015 + 49 * 0.01))
    assert simulate(all_at_once, POOL).lockstep() is None


@pytest.mark.parametrize(("name", "verified"), [("prefill-first", 1), ("prefill-first", 2), ("chunked", 1)])
def test_a_prompt_of_one_rank_holds_up_the_sequences_of_all(name: str, verified: int) -> None:
    clock = PlainClock(base_s=0.01, per_prompt_token_s=1e-4, verified=verified)
    pool = Pool(clock=clock, spec=RankSpec(pool_tokens=50_000), policy=POLICIES.find(name), ranks=2)
    requests = Requests(arrival_s=np.array([0.0, 0.05]), input_len=np.array([10, 5000]), output_len=np.array([40, 1]))
    first, second = simulate(requests, pool).finish_s
    prompt_s = 0.01 + 5000 * 1e-4
    assert second == pytest.approx(0.051 + prompt_s)
    # the pass that carries the prompt of the other rank is one of its steps; with drafts it waits for it
    waits = name == "prefill-first" and verified > 1
    assert first == pytest.approx(0.011 + 39 * 0.01 + (prompt_s if waits else 0.5))


def test_a_day_without_a_cycle_is_even() -> None:
    """From the first request on, also where requests arrive a thousand times a second."""
    even = poisson(np.random.default_rng(5), 2000, 1000.0)
    flat = diurnal(np.random.default_rng(5), 2000, 1000.0, 0.0, 100.0)
    np.testing.assert_allclose(flat, even, rtol=1e-9)
