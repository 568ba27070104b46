"""Tasks of several calls: what waits for what, what is cached between calls, time and cost of a task."""

# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportOptionalIterable=false
# pyright: reportAttributeAccessIssue=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false, reportOptionalOperand=false, reportUnknownVariableType=false

from __future__ import annotations

import heapq
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rackline.errors import InputError, UnknownNameError
from rackline.simulation import POLICIES, PlainClock, Pool, RankSpec, Requests, Result, simulate
from rackline.simulation.agent_traces import read_tasks
from rackline.simulation.agents import AGENTX, CODING, Skewed
from rackline.simulation.block_table import BlockTable
from rackline.simulation.calls import Before, Calls, in_turns
from rackline.simulation.evictions import KEEPINGS
from rackline.simulation.prefix_cache import CacheRules, PrefixCache, TierSpec
from rackline.simulation.requests import BlockRuns
from rackline.simulation.reuse import unlimited_hit_share
from rackline.simulation.tasks import survival_percentiles, task_statistics

FIXTURES = Path("tests/fixtures/agents")
CLOCK = PlainClock(base_s=0.01, per_prompt_token_s=1e-5)
SMALL = replace(
    CODING, steps=Skewed(median=4.0, mean=6.0), system_tokens=640, added=Skewed(median=100.0, mean=200.0),
    answer=Skewed(median=8.0, mean=8.0), max_tokens=3000, spawn_share=0.2, fan_out=3, child_steps=2.0,
    tool_s=Skewed(median=0.5, mean=2.0), human_s=Skewed(median=5.0, mean=20.0),
)  # fmt: skip


def pool_of(tokens: int = 10**7, *, kept: str = "keep", tier: float | None = None, seqs: int = 1000) -> Pool:
    tiers = () if tier is None else (TierSpec(name="host", tokens=tier, tokens_per_s=1e6),)
    spec = RankSpec(
        pool_tokens=tokens, block_size=16, max_num_seqs=seqs, max_batched_tokens=10**7, prefix_caching=True,
        hash_tokens=64, tiers=tiers, cache_rules=CacheRules(kept=kept),
    )  # fmt: skip
    return Pool(clock=CLOCK, spec=spec, policy=POLICIES.find("chunked"), ranks=1, micro_batches=1, replicas=1)


def run(requests: Requests, pool: Pool | None = None) -> Result:
    return simulate(requests, pool or pool_of())


def tree() -> Calls:
    """A call, two others side by side after it, and one that joins them; a second task of one call."""
    calls = Calls()
    first = calls.add(0, 1000, 11, path=0, start_s=1.0)
    left = calls.add(0, 500, 21, path=1, before=[Before(first, 2.0)])
    right = calls.add(0, 500, 101, path=2, before=[Before(first, 0.5)])
    calls.add(0, 1200, 1, path=0, before=[Before(left, 0.25), Before(right, 0.75)])
    calls.add(1, 100, 6, path=3, start_s=100.0)
    return calls


def call_s(requests: Requests, cached: np.ndarray) -> np.ndarray:
    """Time of a call on an idle server of the plain clock, whose passes of decoding take its base [s]."""
    return 0.01 + 1e-5 * (requests.input_len - cached) + 0.01 * (requests.output_len - 1)


def test_a_small_tree_by_hand() -> None:
    # one call after another: 0.02 + 0.1 s at 1 s, then 0.5 s later and 2 s later the two, of which the longer ends last
    requests = tree().requests("by hand")
    result = run(requests)
    first = 1.0 + 0.01 + 1000e-5 + 0.01 * 10
    right = first + 0.5 + 0.01 + 500e-5 + 0.01 * 100
    left = first + 2.0 + 0.01 + 500e-5 + 0.01 * 20
    # 1,000 + 11 tokens, less the last, are 15 whole blocks of 64
    last = max(left + 0.25, right + 0.75) + 0.01 + (1200 - 15 * 64) * 1e-5
    assert result.finish_s[:4] == pytest.approx([first, left, right, last])
    found = task_statistics(result)
    assert found.tasks == 2.0
    assert found.calls == 5
    assert found.tokens == {"fresh": (3300 - 960) / 2, "cached": 480.0, "generated": 70.0}
    lone = 0.01 + 100e-5 + 0.05
    assert found.task_s["p50"] == pytest.approx(lone)
    assert found.task_s["p90"] == pytest.approx(last - 1.0)
    assert found.task_s["mean"] == pytest.approx((lone + last - 1.0) / 2)
    # chips at 3 USD/s, over the time from the first call to the last one's end
    assert found.usd_per_task(3.0) == pytest.approx(3.0 * (result.finish_s.max() - 1.0) / 2)


def critical_paths(requests: Requests, seconds: np.ndarray) -> np.ndarray:
    """Longest chain of calls, each with its time alone, and pauses of each task: no server is faster than this [s]."""
    begin = np.where(requests.after < 0, requests.arrival_s, 0.0)
    waits = sorted(requests.waits())
    for index in range(len(requests)):
        begin[index] = max(
            [begin[index], *(begin[one] + seconds[one] + more for at, one, more in waits if at == index)]
        )
    last, start = np.full((2, int(requests.task.max()) + 1), np.inf)
    last *= -1.0
    np.maximum.at(last, requests.task, begin + seconds)
    np.minimum.at(start, requests.task, np.where(requests.after < 0, requests.arrival_s, np.inf))
    return last - start


def test_the_critical_path_is_the_time_on_an_idle_server_and_a_bound_on_a_busy_one() -> None:
    requests = SMALL.draw(np.random.default_rng(3), 400)
    starts = np.cumsum(requests.after < 0) * 1e5  # far apart
    alone = replace(requests, arrival_s=np.where(requests.after < 0, starts, requests.arrival_s))
    idle = run(alone)
    paths = critical_paths(alone, idle.e2e_s)
    took = np.array(
        [idle.finish_s[alone.task == one].max() - idle.arrival_s[alone.task == one].min() for one in range(len(paths))]
    )
    assert took == pytest.approx(paths, rel=1e-9)
    # a call alone takes at least what is not cached, and exactly that where its subagents do not run beside it
    bound = critical_paths(alone, call_s(alone, idle.cached_tokens))
    assert np.all(took >= bound - 1e-6)
    single = replace(SMALL, spawn_share=0.0).draw(np.random.default_rng(3), 200)
    apart = replace(single, arrival_s=np.where(single.after < 0, np.cumsum(single.after < 0) * 1e5, single.arrival_s))
    lone = run(apart)
    assert lone.e2e_s == pytest.approx(call_s(apart, lone.cached_tokens), abs=1e-6)
    busy = run(replace(requests, arrival_s=np.where(requests.after < 0, 0.0, requests.arrival_s)))
    ends = np.array([busy.finish_s[requests.task == one].max() for one in range(len(paths))])
    ideal = critical_paths(requests, call_s(requests, requests.input_len // 64 * 64))
    assert np.all(ends >= ideal - 1e-6)


def replayed(requests: Requests, lanes: int) -> np.ndarray:
    """The session logic once more, without a server: every call takes a second."""
    before: dict[int, list[tuple[int, float]]] = {index: [] for index in range(len(requests))}
    for index, one in enumerate(requests.after.tolist()):
        if one >= 0:
            before[index].append((one, float(requests.arrival_s[index])))
    if requests.joins is not None:
        for index, one, pause in zip(*(column.tolist() for column in requests.joins), strict=True):
            before[index].append((one, pause))
    task = requests.task.tolist()
    finish = np.full(len(requests), np.nan)
    free = [0.0] * lanes
    heapq.heapify(free)
    for one in range(max(task) + 1):
        start = heapq.heappop(free)
        for index in (place for place in range(len(task)) if task[place] == one):
            finish[index] = max([finish[before_] + pause for before_, pause in before[index]], default=start) + 1.0
        heapq.heappush(free, float(np.nanmax(finish[np.array(task) == one])))
    return finish


def test_tasks_take_turns_as_in_a_brute_force_twin() -> None:
    requests = SMALL.draw(np.random.default_rng(5), 60)
    constant = PlainClock(base_s=1.0, per_prompt_token_s=0.0)
    one_token = replace(requests, output_len=np.ones_like(requests.output_len))
    turns = in_turns(one_token, 3, 150, np.random.default_rng(1))
    # calls go round many replicas, so that none waits for another's pass
    result = simulate(turns, replace(pool_of(), clock=constant, replicas=40), router="round-robin")
    done = result.finished
    expected = replayed(turns, 3)
    # after the last task was taken nothing more arrives
    assert done.sum() > 60
    assert result.finish_s[done] == pytest.approx(expected[done], rel=1e-6)


def test_the_number_of_tasks_in_progress_stays_and_everything_is_given_back() -> None:
    requests = in_turns(SMALL.draw(np.random.default_rng(2), 300), 8, 1000, np.random.default_rng(1))
    for kept, tier in (("keep", None), ("offload", 4e5), ("drop", None), ("keep", 2e4)):
        result = run(requests, pool_of(30_000, kept=kept, tier=tier, seqs=4))
        assert result.blocks_left == 0
        # requests in = answered; those that came after the last one that counts did not arrive
        assert np.array_equal(np.isfinite(result.arrival_s), result.finished)
        assert 1000 <= result.finished.sum() <= 1000 + 8 * SMALL.fan_out
        assert result.tier_tokens[0] <= result.cached_tokens.sum() <= requests.input_len[result.finished].sum()
        assert sum(result.tier_tokens) == result.cached_tokens.sum()
        busy = [
            (result.arrival_s[requests.task == one].min(), result.finish_s[requests.task == one].max())
            for one in range(4)
        ]
        assert all(start < end for start, end in busy)
    again = run(requests, pool_of(30_000, kept="keep", tier=2e4, seqs=4))
    assert np.array_equal(again.finish_s, result.finish_s, equal_nan=True)


def test_little_and_the_mean_of_whole_tasks_agree() -> None:
    requests = in_turns(SMALL.draw(np.random.default_rng(2), 3000), 8, 6000, np.random.default_rng(1))
    result = run(requests)
    found = task_statistics(result)
    whole = [
        float(result.finish_s[mine].max() - result.arrival_s[mine].min())
        for one in range(8, int(requests.task.max()))
        if (mine := requests.task == one).any() and result.finished[mine].all()
    ]
    assert found.task_s["mean"] == pytest.approx(np.mean(whole), rel=0.1)
    assert found.task_s["p50"] == pytest.approx(np.median(whole), rel=0.1)
    assert found.hit_share == pytest.approx(found.unlimited_hit_share, abs=0.02)


def test_policies_between_calls_find_what_they_say() -> None:
    requests = in_turns(SMALL.draw(np.random.default_rng(2), 300), 6, 600, np.random.default_rng(1))
    share = {
        (kept, tier): task_statistics(run(requests, pool_of(16_000, kept=kept, tier=tier))).hit_share
        for kept, tier in (("keep", None), ("drop", None), ("offload", 1e6), ("keep", 1e6))
    }
    ample = task_statistics(run(requests)).hit_share
    assert share["drop", None] < 0.6 * share["keep", None]
    assert share["keep", None] < ample
    assert share["offload", 1e6] == pytest.approx(ample, abs=0.01) == share["keep", 1e6]
    assert set(KEEPINGS) == {"keep", "drop", "offload"}


def random_use(seed: int, tier: int) -> tuple[list[object], list[object]]:
    """The same random use of both caches, and what each said."""
    rng = np.random.default_rng(seed)
    tiers = (TierSpec(name="host", tokens=tier, tokens_per_s=1.0),) if tier else ()
    table, cache = BlockTable(200, 1, 1, tiers, CacheRules()), PrefixCache(1, 1, tiers)
    said: tuple[list[object], list[object]] = ([], [])
    held: list[np.ndarray] = []
    for _ in range(300):
        start, length = int(rng.integers(0, 4)) * 50, int(rng.integers(1, 50))
        prompt = np.arange(start, start + length)
        for one, out, blocks in ((table, said[0], prompt), (cache, said[1], prompt.tolist())):
            found, resting, behind = one.match(blocks, len(blocks))  # pyright: ignore[reportArgumentType]
            one.acquire(blocks[:found])  # pyright: ignore[reportArgumentType]
            one.touch(blocks[found : found + sum(behind)])  # pyright: ignore[reportArgumentType]
            double = one.insert(blocks[found:], found, None)  # pyright: ignore[reportArgumentType]
            out.append((found, resting, behind, double))
        held.append(prompt)
        while len(held) > 2 or (held and rng.random() < 0.5):
            gone = held.pop(int(rng.integers(len(held))))
            said[0].append(table.release(gone))
            said[1].append(cache.release(gone.tolist()))
        room = int(rng.integers(20, 120))
        table.trim(room)
        cache.trim(room)
        said[0].append(sorted(np.flatnonzero(table.idle.held).tolist()))
        said[1].append(sorted(cache.idle))
    return said


@pytest.mark.parametrize(("seed", "tier"), [(1, 0), (2, 0), (3, 30), (4, 60)])
def test_the_cache_over_arrays_is_the_cache(seed: int, tier: int) -> None:
    table, cache = random_use(seed, tier)
    assert table == cache


def test_runs_give_the_same_run_as_rows() -> None:
    requests = replace(SMALL, spawn_share=0.0).draw(np.random.default_rng(7), 200)
    rows = {name: [one.tolist() for one in getattr(requests, name)] for name in ("hashes", "answer_hashes")}
    slow = replace(requests, task=None, joins=None, **rows)
    fast, plain = run(requests, pool_of(20_000)), run(slow, pool_of(20_000))
    assert np.array_equal(fast.finish_s, plain.finish_s)
    assert np.array_equal(fast.cached_tokens, plain.cached_tokens)
    assert unlimited_hit_share(requests) == pytest.approx(unlimited_hit_share(slow))
    assert BlockRuns.of(rows["hashes"]).take(np.array([3, 1]))[1].tolist() == rows["hashes"][1]


def test_profiles_have_the_numbers_that_they_were_made_from() -> None:
    rng = np.random.default_rng(1)
    mains = replace(CODING, spawn_share=0.0).draw(rng, 150_000)
    assert float(mains.input_len.mean()) == pytest.approx(154e3, rel=0.08)  # TraceLab: 54.9e9 over 357,161 steps
    assert unlimited_hit_share(mains.first(20_000)) > 0.958  # TraceLab's cache, which loses contexts, finds 95.8 %
    steps = CODING.steps.draw(rng, 200_000)
    assert float(np.percentile(steps, 99)) == pytest.approx(1107 + 129, rel=0.25)  # published, not put in
    for profile in (CODING, AGENTX):
        drawn = profile.draw(rng, 20_000)
        assert drawn.joins is not None
        assert len(drawn.joins.request) % (profile.fan_out - 1) == 0
    of_mains = AGENTX.steps.mean
    calls = of_mains * (1.0 + AGENTX.spawn_share * AGENTX.fan_out * AGENTX.child_steps)
    assert calls == pytest.approx(99_000 / 393, rel=0.02)
    assert of_mains / calls == pytest.approx(57 / 99, rel=0.02)
    tool = CODING.tool_s.draw(rng, 100_000)
    assert float(np.percentile(tool, 90)) == pytest.approx(13.6, rel=0.2)  # published, not put in
    assert np.array_equal(
        CODING.draw(np.random.default_rng(9), 500).input_len, CODING.draw(np.random.default_rng(9), 500).input_len
    )
    with pytest.raises(InputError):
        Skewed(median=2.0, mean=1.0)


def test_percentiles_of_times_that_were_cut_short() -> None:
    rng = np.random.default_rng(4)
    times, seen = rng.exponential(10.0, 20_000), rng.exponential(15.0, 20_000)
    found = survival_percentiles(np.minimum(times, seen), times <= seen)
    assert found[:2] == pytest.approx([10 * np.log(2), 10 * np.log(10)], rel=0.05)
    assert survival_percentiles(np.array([1.0, 2.0]), np.array([True, False])) == [1.0, np.inf, np.inf]


@pytest.mark.parametrize("name", ["weka.json", "weka_relative.json"])
def test_weka(name: str) -> None:
    requests, kind = read_tasks(str(FIXTURES / name))
    assert kind.name == "Weka"
    assert requests.hash_tokens == 64
    # main, a, a again, b, main
    assert requests.input_len.tolist() == [200, 100, 170, 90, 330]
    assert requests.after.tolist() == [-1, 0, 1, 0, 0]
    assert requests.arrival_s.tolist() == pytest.approx([0.0, 3.0, 2.0, 3.5, 11.0])
    assert requests.joins is not None
    waits = sorted(
        zip(
            requests.joins.request.tolist(),
            requests.joins.before.tolist(),
            requests.joins.pause_s.tolist(),
            strict=True,
        )
    )
    assert waits == [(4, 2, pytest.approx(4.0)), (4, 3, pytest.approx(1.5))]
    assert requests.hashes is not None
    assert requests.hashes[4][:4].tolist() == requests.hashes[0].tolist()


def test_agentic_mooncake() -> None:
    first, kind = read_tasks(str(FIXTURES / "agentic_mooncake_v1.jsonl"))
    assert kind.name == "agentic Mooncake"
    assert first.hash_tokens == 512
    assert first.after.tolist() == [-1, 0, 0, 1]
    assert first.task.tolist() == [0, 0, 0, 0]
    assert first.arrival_s.tolist() == pytest.approx([1.0, 0.01, 0.02, 2.51])
    second, _ = read_tasks(str(FIXTURES / "agentic_mooncake_v2.jsonl"))
    assert second.hash_tokens == 128
    # c starts 50 ms after b is sent, which is 100 ms after a has ended
    assert second.after.tolist() == [-1, 0, 0, 1]
    assert second.arrival_s.tolist() == pytest.approx([0.0, 0.1, 0.15, 0.0])
    assert second.joins is not None
    assert second.joins.before.tolist() == [2]


def test_opentelemetry() -> None:
    requests, kind = read_tasks(str(FIXTURES / "otel.json"))
    assert kind.name == "OpenTelemetry"
    assert requests.input_len.tolist() == [200, 100, 170, 330]
    assert requests.after.tolist() == [-1, 0, 1, 0]
    assert requests.arrival_s.tolist() == pytest.approx([0.0, 3.0, 2.0, 11.0], abs=1e-5)
    assert requests.joins is not None
    assert requests.joins.before.tolist() == [2]


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "pauses"),
    [
        ("sharegpt.json", [100, 175, 10], [50, 20, 10], [0.0, 0.0, 0.0]),
        ("aiperf_turns.jsonl", [100, 150], [30, 20], [0.0, 1.5]),
        ("aiperf_inputs.json", [100, 140], [30, 10], [0.0, 0.0]),
    ],
)
def test_texts(name: str, inputs: list[int], outputs: list[int], pauses: list[float]) -> None:
    requests, kind = read_tasks(str(FIXTURES / name))
    assert kind.is_estimate
    assert requests.input_len.tolist() == inputs
    assert requests.output_len.tolist() == outputs
    assert requests.arrival_s.tolist() == pauses


def test_a_folder_holds_tasks_of_one_format(tmp_path: Path) -> None:
    text = (FIXTURES / "weka.json").read_text()
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(text)
    requests, _ = read_tasks(str(tmp_path))
    assert requests.task.tolist() == [0] * 5 + [1] * 5
    assert not set(requests.hashes[0].tolist()) & set(requests.hashes[5].tolist())  # hashes of each file are its own


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"foo": 1}', "Weka"),
        ("[1, 2]", "JSON objects"),
        ("not json", "JSON"),
        ('{"request_id": "a", "input_length": 10}', "output_length"),
        ('{"request_id": "a", "input_length": 10, "output_length": 5, "wait_for": ["b"]}', "no 'b'"),
        ('{"turns": [{"text": "hello"}]}', "output"),
        ('{"resourceSpans": []}', "at least one request"),
    ],
)
def test_what_is_no_task_gets_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=words) as raised:
        read_tasks(str(file))
    assert "\n" not in str(raised.value)
    assert str(file) in str(raised.value) or "tasks.jsonl" in str(raised.value) or words == "output"


def test_bad_objects_are_skipped_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text((FIXTURES / "agentic_mooncake_v1.jsonl").read_text() + '{"request_id": "z", "input_length": "?"}\n')
    requests, _ = read_tasks(str(file), skip_bad=True)
    assert len(requests) == 4
    assert requests.skipped == 1
    with pytest.raises(UnknownNameError):
        run(requests, pool_of(kept="keeep"))
