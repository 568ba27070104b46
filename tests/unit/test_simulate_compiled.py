"""The loop in C gives what the loop in Python gives, to 1e-9, and takes the same passes."""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rackline.arch import model
from rackline.cli.main import run
from rackline.hardware import cluster
from rackline.parallel import Deployment, parse_layout, precision
from rackline.passes import calibration
from rackline.serving.stack import stack
from rackline.serving.workload import Speculation
from rackline.simulation import (
    CacheConfig,
    Handover,
    Lengths,
    Pool,
    Requests,
    native,
    open_arrivals,
    pool_of,
    simulate,
)
from rackline.simulation.native import compiled_clock
from rackline.simulation.native_replica import knows
from rackline.simulation.policies import POLICIES
from rackline.simulation.workloads import closed_loop_of

pytestmark = pytest.mark.skipif(native.library() is None, reason=native.slow_because())


def pool(
    name: str,
    on: str,
    layout: str,
    chips: int,
    *,
    seqs: int = 64,
    tokens: int = 30_000,
    around: str = "vllm",
    **more: Any,
) -> Pool:
    found, where = model(name), cluster(on).with_num_chips(chips)
    deployment = Deployment(
        model=found,
        cluster=where,
        layout=parse_layout(layout, found),
        precision=precision("native", found, where.chip),
        calibration=calibration(around, where.chip),
    )
    limits = stack(around).with_values(
        {"scheduler.max_num_seqs": seqs, "scheduler.max_batched_tokens": more.pop("batched", 2048)}
    )
    return pool_of(deployment, limits, cache=CacheConfig(pool_tokens=tokens), **more)


def same(requests: Requests, one: Pool, **options: Any) -> None:
    """Every time within 1e-9 s, every count and every bin equal."""
    assert knows(one)
    assert compiled_clock(one.clock, one.spec.max_num_seqs) is not None
    plain = simulate(requests, one, skip_bad=True, compiled=False, **options)
    fast = simulate(requests, one, skip_bad=True, compiled=True, **options)
    for column in ("arrival_s", "engine_s", "admitted_s", "first_s", "finish_s", "samples"):
        np.testing.assert_allclose(getattr(fast, column), getattr(plain, column), rtol=1e-9, atol=1e-9, err_msg=column)
    np.testing.assert_array_equal(fast.preempted, plain.preempted)
    for count in ("steps", "passes", "gaps", "blocks_left", "num_blocks", "ranks", "replicas", "prefill_passes"):
        assert getattr(fast, count) == getattr(plain, count), count
    for amount in ("busy_s", "sequence_s", "used_block_s", "prompt_pass_s", "prompt_rank_s", "prefill_busy_s"):
        assert getattr(fast, amount) == pytest.approx(getattr(plain, amount), rel=1e-9), amount


def arrivals(count: int, rate: float, prompt: int = 1500, answer: int = 200) -> Requests:
    lengths = Lengths(input_len=prompt, output_len=answer, spread="lognormal")
    return open_arrivals(np.random.default_rng(3), count, rate, lengths)


SERVERS: dict[str, tuple[str, str, str, int]] = {
    "one rank": ("llama-3.1-8b", "dgx-h100", "tp=1", 1),
    "experts": ("deepseek-v3", "dgx-h200", "tp=8,ep=8", 8),
    "24 ranks": ("deepseek-v3", "gb200-nvl72", "attention_dp=24,ep=24", 24),
    "stages": ("llama-3.1-8b", "dgx-h100", "tp=1,pp=4", 4),
    "stages of ranks": ("deepseek-v3", "h100-96", "attention_dp=16,ep=16,pp=2", 32),
    "windows": ("gpt-oss-120b", "dgx-h100", "tp=4", 4),
    "chosen tokens": ("deepseek-v3.2", "dgx-h200", "tp=8", 8),
}


ALIGNED = ["adp_balance", "prefill_delayer", "prefill_decode_interval", "prefill_schedule_interval"]


@pytest.mark.parametrize("name", ["chunked", "prefill_first", "decode_first", "fcfs", "trains", *ALIGNED])
@pytest.mark.parametrize("server", SERVERS)
def test_servers_and_policies(server: str, name: str) -> None:
    same(arrivals(300, 60.0 if "ranks" in server else 12.0), pool(*SERVERS[server], policy_name=name))


@pytest.mark.parametrize("around", ["vllm", "sglang", "trtllm"])
def test_stacks(around: str) -> None:
    same(arrivals(300, 12.0), pool(*SERVERS["one rank"], around=around), beyond_s=0.01)


def test_contexts_within_a_window() -> None:
    same(arrivals(300, 12.0, 60, 100), pool(*SERVERS["windows"], tokens=3000))


@pytest.mark.parametrize("server", ["one rank", "24 ranks"])
def test_drafts(server: str) -> None:
    speculation = Speculation(draft_tokens=2, tokens_per_step=1.7)
    one = pool(*SERVERS[server], speculation=speculation)
    assert one.clock.tokens_per_step == 1.7
    same(arrivals(300, 30.0), one)


def test_two_batch_overlap() -> None:
    same(arrivals(300, 60.0), pool(*SERVERS["24 ranks"], around="sglang", two_batch_overlap=True))


@pytest.mark.parametrize("router", ["round-robin", "least-loaded"])
def test_replicas(router: str) -> None:
    same(arrivals(300, 20.0), replace(pool(*SERVERS["one rank"]), replicas=3), router=router)


@pytest.mark.parametrize("tokens", [30_000, 8000])
def test_pools(tokens: int) -> None:
    front = pool(*SERVERS["24 ranks"], around="sglang", policy_name="prefill_first", two_batch_overlap=True)
    handover = Handover(pool=replace(front, replicas=2), tokens_per_s=1e6, latency_s=0.01)
    requests = arrivals(600, 100.0)
    requests = replace(requests, output_len=np.where(np.arange(600) % 7, requests.output_len, 1))
    same(requests, replace(pool(*SERVERS["24 ranks"], tokens=tokens), replicas=2), prefill=handover)


def test_users_who_wait_for_answers() -> None:
    lengths = Lengths(input_len=500, output_len=100, spread="lognormal")
    requests = closed_loop_of(np.random.default_rng(3), 400, 30, lengths, think_s=1.0)
    same(requests, pool(*SERVERS["one rank"]))
    same(requests, replace(pool(*SERVERS["one rank"]), replicas=2), router="least-loaded")


def test_conversations() -> None:
    requests = arrivals(400, 10.0, 500, 100)
    after = np.where(np.arange(400) % 3, np.arange(400) - 1, -1)
    times = np.where(after < 0, requests.arrival_s, 0.5)
    same(replace(requests, after=after, arrival_s=times), replace(pool(*SERVERS["one rank"]), replicas=2))


TIED = st.integers(0, 3).map(lambda quarter: quarter * 0.25)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_small_run(data: st.DataObject) -> None:
    """Requests that arrive at the same time, some with their prompts computed, on ranks with little room."""
    count = data.draw(st.integers(1, 40))

    def each(low: int, high: int) -> np.ndarray[Any, Any]:
        return np.array(data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count)))

    inputs, outputs = each(1, 700), each(1, 60)
    computed = np.minimum(inputs, each(0, 1400))
    requests = Requests(
        arrival_s=np.sort(np.array(data.draw(st.lists(TIED, min_size=count, max_size=count)))),
        input_len=inputs,
        output_len=outputs,
        computed=computed if data.draw(st.booleans()) else None,
    )
    base = _pools()[data.draw(st.sampled_from(sorted(SERVERS)))]
    spec = replace(
        base.spec,
        pool_tokens=data.draw(st.integers(60, 300)) * 16,
        block_size=data.draw(st.sampled_from([1, 5, 16])),
        max_num_seqs=data.draw(st.integers(1, 12)),
        max_batched_tokens=data.draw(st.integers(64, 900)),
        reserve=data.draw(st.sampled_from([None, "chunk", "prompt", "final"])),
    )
    name = data.draw(st.sampled_from(["chunked", "prefill_first", "decode_first", "fcfs", "trains", *ALIGNED]))
    one = replace(base, spec=spec, policy=POLICIES.find(name), replicas=data.draw(st.integers(1, 2)))
    handover = Handover(pool=replace(one, policy=POLICIES.find("prefill_first")), tokens_per_s=1e5)
    same(requests, one, prefill=handover if data.draw(st.booleans()) else None)


_BUILT: dict[str, Pool] = {}


def _pools() -> dict[str, Pool]:
    if not _BUILT:
        _BUILT.update({name: pool(*server) for name, server in SERVERS.items()})
    return _BUILT


def test_the_library_is_that_of_the_source() -> None:
    source = Path(native.__file__).with_name("replica.c").read_bytes()
    assert native.library().source_hash().decode() == hashlib.sha256(source).hexdigest()


def test_structures_have_the_same_size_in_both_languages() -> None:
    sizes = (ctypes.c_int64 * 6)()
    native.library().sizes(sizes)
    shared = (native.LogFields, native._Kind, native._Table, native._Clock)
    assert list(sizes)[:4] == [ctypes.sizeof(structure) for structure in shared]


@pytest.fixture
def loaded_again() -> Iterator[None]:
    """Let a test look for the library again, and the tests after it as well."""
    native.loaded.cache_clear()
    yield
    native.loaded.cache_clear()


def test_a_library_of_another_source_is_not_used(
    loaded_again: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = tmp_path / "replica.c"
    changed.write_text(native._SOURCE.read_text(encoding="utf-8") + "/* more */", encoding="utf-8")
    path = native.library_path()
    monkeypatch.setattr(native, "library_path", lambda: path)
    monkeypatch.setattr(native, "_SOURCE", changed)
    assert native.library() is None
    assert "is not that of replica.c" in native.slow_because()


def test_a_library_that_cannot_be_loaded_is_not_used(
    loaded_again: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "replica.so"
    broken.write_bytes(b"of another processor")
    monkeypatch.setattr(native, "library_path", lambda: broken)
    assert native.library() is None
    assert "cannot be loaded" in native.slow_because()


def test_without_a_library_the_answers_are_the_same(loaded_again: None, monkeypatch: pytest.MonkeyPatch) -> None:
    one, requests = _pools()["one rank"], arrivals(50, 5.0)
    assert native.slow_because() == ""
    fast = simulate(requests, one).finish_s
    native.loaded.cache_clear()
    monkeypatch.setattr(native, "library_path", lambda: None)
    assert "no compiled loop" in native.slow_because()
    np.testing.assert_allclose(simulate(requests, one).finish_s, fast, rtol=1e-9)


@pytest.mark.parametrize("installed", [True, False])
def test_answers_say_whether_the_loop_was_compiled(
    loaded_again: None, installed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not installed:
        monkeypatch.setattr(native, "library_path", lambda: None)
    words = "simulate llama-3.1-8b --on dgx-h100 --chips 1 --rate 5 --requests 50 --input 200 --output 20 --json"
    assert run(words.split()) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["compiled_loop"] is installed
    assert printed.err.startswith("Simulations run in Python") is not installed
    assert printed.err.count("\n") == (not installed)
