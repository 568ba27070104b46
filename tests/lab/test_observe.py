"""Observing live servers on loopback: every request has a record, however the server behaves; no timing is judged."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import signal
import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rackline as rl
from hostile_server import BEHAVIOURS, EXPECTED, Server, hostile_server
from rackline.api.answer import Watch, find_verb
from rackline.api.observe import ObserveQuestion, _deployment
from rackline.cli.main import run
from rackline.errors import InputError
from rackline.lab.load_generator import Prompts, observe_load
from rackline.lab.stream import Bounds, base_url_of, target
from rackline.simulation import Lengths, Requests, Sessions, closed_loop_of
from rackline.validation import read_cases
from rackline.validation.observed import ObservedRun, request_from, requests_from

PATIENT = Bounds(max_s=100.0, timeout_s=90.0, stall_s=90.0, connect_s=90.0, retries=2, longest_wait_s=5.0)
# one limit at a time can end a request, however slow this machine is
ENDED_BY = {
    "stalled": replace(PATIENT, stall_s=0.5),
    "timeout": replace(PATIENT, timeout_s=0.5),
}
WELL = next(length for length, what in BEHAVIOURS.items() if what == "well")
KEY = "sk-very-secret-1234"


@pytest.fixture
def hostile() -> Generator[Server]:
    with hostile_server() as server:
        yield server


def test_a_run_says_only_degrees_above_one() -> None:
    asked = ObserveQuestion("http://localhost:8000", model="llama-3.1-8b", on="dgx-h100", layout="tp=2,pp=2")
    assert _deployment(asked, Watch())[0]["layout"] == {"tp": 2, "pp": 2}


def prompts_to(server: Server, **more: object) -> Prompts:
    return Prompts(target=target(server.url, endpoint="completions"), **more)  # type: ignore[arg-type]


def requests_of(lengths: list[int], output_len: int = 4, gap_s: float = 0.0) -> Requests:
    count = len(lengths)
    return Requests(
        arrival_s=np.arange(count) * gap_s,
        input_len=np.array(lengths),
        output_len=np.full(count, output_len),
        name="test",
    )


@pytest.mark.parametrize("limit", ["none", *ENDED_BY])
def test_a_hostile_server_loses_no_record_and_leaves_nothing_behind(hostile: Server, limit: str) -> None:
    before = threading.enumerate()  # other tests of this process may have left some
    kinds = [length for length, what in BEHAVIOURS.items() if _limit_of(what) == limit]
    lengths = kinds * 3
    found = observe_load(requests_of(lengths, gap_s=0.002), prompts_to(hostile), ENDED_BY.get(limit, PATIENT))
    assert len(found.requests) == len(lengths) > 0
    seen = [(BEHAVIOURS[one.input_len], one.outcome) for one in found.requests]
    assert seen == [(BEHAVIOURS[length], EXPECTED[BEHAVIOURS[length]]) for length in lengths]
    for one in found.requests:
        what = BEHAVIOURS[one.input_len]
        assert one.sent_s is not None
        assert one.end_s is not None
        assert one.end_s >= one.sent_s >= one.arrival_s
        assert list(one.token_s) == sorted(one.token_s)
        assert bool(one.error) == (one.outcome != "finished"), what
        assert one.retries == {"429 once": 1, "503 with a date": 1, "429 always": 2}.get(what, 0), what
        assert (one.output_tokens is None) == (
            what in ("no usage", "usage beyond belief") or one.outcome != "finished"
        ), what
        assert one.tokens == 4 or one.outcome != "finished"
        assert one.error.isprintable(), what
        assert bool(one.malformed) == (what in ("events that are no JSON", "usage beyond belief")) or one.error, what
    assert limit != "none" or hostile.seen["429 always"] == 3 * 3
    gc.collect()  # what is left behind would warn here, and warnings are errors
    assert not [one for one in threading.enumerate() if "asyncio" in one.name and one not in before]
    assert threading.active_count() <= len(before) + len(lengths)  # the server's own threads may still sleep


def _limit_of(what: str) -> str:
    """Which of the bounds ends what the server does."""
    return EXPECTED[what] if EXPECTED[what] in ENDED_BY else "none"


def test_an_endless_line_is_cut_before_it_has_come_whole(hostile: Server) -> None:
    endless = next(length for length, what in BEHAVIOURS.items() if what == "an endless line")  # of 3 MB
    (one,) = observe_load(requests_of([endless]), prompts_to(hostile), PATIENT).requests
    assert one.outcome == "garbage"
    assert "a line of more than 1,048,576 bytes" in one.error


def test_the_end_of_the_time_is_the_end(hostile: Server) -> None:
    slow = next(length for length, what in BEHAVIOURS.items() if what == "never answers")
    load = Requests(
        arrival_s=np.array([0.0, 0.0, 1e3]), input_len=np.array([WELL, slow, WELL]), output_len=np.full(3, 4), name="t"
    )
    for max_s in (1.0, 8.0, 64.0):  # until the first is answered in time, however slow this machine is
        found = observe_load(load, prompts_to(hostile), replace(PATIENT, max_s=max_s))
        if found.requests[0].outcome == "finished":
            break
    assert [one.outcome for one in found.requests] == ["finished", "unfinished", "not_sent"]
    assert found.requests[2].sent_s is None
    assert not found.interrupted


@pytest.fixture
def interruptible() -> Generator[None]:
    """Ctrl-C as a terminal gives it: a shell starts what runs in the background with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_keeps_what_was_recorded(hostile: Server) -> None:
    slow = next(length for length, what in BEHAVIOURS.items() if what == "never answers")

    pressed: list[float] = []

    def press(done: int, total: int, seconds: float) -> None:
        if done == 1 and not pressed:  # a second one would end it at once
            pressed.append(seconds)
            os.kill(os.getpid(), signal.SIGINT)

    found = observe_load(requests_of([WELL, slow]), prompts_to(hostile), PATIENT, press)
    assert found.interrupted
    assert [one.outcome for one in found.requests] == ["finished", "unfinished"]


def test_inside_a_running_loop(hostile: Server) -> None:
    """Notebooks have one."""

    async def notebook() -> int:
        return len(observe_load(requests_of([WELL] * 3), prompts_to(hostile), PATIENT).requests)

    assert asyncio.run(notebook()) == 3


def test_nothing_listens() -> None:
    with pytest.raises(InputError, match="a server that answers"):
        target("http://127.0.0.1:1", endpoint="completions")


def test_users_wait_for_their_answers(hostile: Server) -> None:
    load = closed_loop_of(np.random.default_rng(0), 12, 3, Lengths(input_len=WELL, output_len=3), think_s=0.02)
    found = observe_load(load, prompts_to(hostile), PATIENT)
    assert {one.outcome for one in found.requests} == {"finished"}
    assert found.generator.in_flight <= 3
    for one in found.requests:
        if one.after >= 0:
            before = found.requests[one.after]
            assert before.end_s is not None
            assert one.sent_s is not None
            assert one.sent_s >= before.end_s


def test_conversations_repeat_their_prefix(hostile: Server) -> None:
    sessions = Sessions(system_tokens=128, hash_tokens=64)
    load = sessions.draw(np.random.default_rng(1), 12, 10.0, Lengths(input_len=200, output_len=50))
    to = prompts_to(hostile)
    after = load.after
    assert after is not None
    every = [to.prompt(load, index) for index in range(len(load))]
    assert [len(one) for one in every] == load.input_len.tolist()
    assert len({tuple(one[:128]) for one in every}) == 1  # the system prompt
    for index, before in enumerate(after.tolist()):
        if before >= 0:
            full = int(load.input_len[before]) // 64 * 64
            assert every[index][:full] == every[before][:full]
    firsts = [tuple(every[index][128:192]) for index in np.flatnonzero(after < 0)]
    assert len(set(firsts)) == len(firsts)


def test_bodies() -> None:
    from rackline.lab.stream import Target

    load = requests_of([5])
    plain = Prompts(target=Target(base_url="http://h/v1", served_name="m", endpoint="completions"), vocab_size=300)
    data = json.loads(plain.body(load, 0))
    assert data["ignore_eos"] is True
    assert data["min_tokens"] == data["max_tokens"] == 4
    assert len(data["prompt"]) == 5
    assert 100 <= min(data["prompt"]) <= max(data["prompt"]) < 300
    assert plain.body(load, 0) == plain.body(load, 0)
    chat = Prompts(target=Target(base_url="http://h/v1", served_name="m", endpoint="chat"), natural_ends=True)
    data = json.loads(chat.body(load, 0))
    assert "ignore_eos" not in data
    assert len(data["messages"][0]["content"].split()) == 5


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host", "such as"),
        ("localhost:8000", "such as"),
        ("http://user:secret@host", "key_env"),
        ("http://host/v1?key=secret", "a query"),
        ("http://[::1", "such as"),
        ("http://host:99999", "such as"),
    ],
)
def test_addresses_that_are_refused(url: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        base_url_of(url)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_keys_are_sent_and_never_stored(
    hostile: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    echoing = next(length for length, what in BEHAVIOURS.items() if what == "echoes the key")
    saved = tmp_path / "observed.jsonl"
    command = f"observe {hostile.url} --rate inf --requests 2 --input {echoing} --output 4 --key-env A_KEY --yes --json"
    assert run([*command.split(), "-o", str(saved)]) == 1
    told = capfd.readouterr()
    data = json.loads(told.out)
    assert data["outcomes"] == {"finished": 0, "refused": 2}
    assert "wrong key Bearer ***" in saved.read_text()
    assert KEY not in told.out + told.err + saved.read_text()
    assert "key_env" in data["question"]
    monkeypatch.delenv("A_KEY")
    assert run(command.split()) == 2
    assert "A_KEY" in capfd.readouterr().err


def test_nothing_is_sent_without_consent(hostile: Server, capfd: pytest.CaptureFixture[str]) -> None:
    prices = "--usd-per-mtok-input 1 --usd-per-mtok-output 10"
    assert run(f"observe {hostile.url} --rate inf --requests 1000 --input 1 --output 100 {prices}".split()) == 2
    told = capfd.readouterr().err
    assert "1,000 requests" in told
    assert "100,000 output tokens" in told
    assert "$1" in told
    assert len(told.strip().splitlines()) == 1
    assert not hostile.seen
    with pytest.raises(InputError, match="yes"):
        rl.observe(hostile.url, rate=1, requests=1, input=1, output=1)


def test_a_run_is_a_case(hostile: Server, tmp_path: Path) -> None:
    saved = tmp_path / "observed.jsonl"
    found = rl.observe(
        hostile.url, users=2, requests=9, input=WELL, output=5, yes=True, save=str(saved),
        model="llama-3.1-8b", on="dgx-h100", chips=1, stack="vllm=0.11.1", precision="fp8",
    )  # fmt: skip
    assert found.to_dict()["finished"] == 9
    assert len(found.to_frame()) == 9
    cases = read_cases([saved])
    assert not cases.unsupported
    assert not cases.unknown_keys
    (case,) = cases.cases
    assert (case.kind, case.model, case.chip, case.stack, case.stack_version) == (
        "observed", "llama-3.1-8b", "h100-sxm", "vllm", "0.11.1",
    )  # fmt: skip
    for one, other in zip(requests_from(case), found.result.run.requests, strict=True):
        assert one.outcome == other.outcome
        assert one.token_s == pytest.approx(other.token_s, abs=1e-6)
    board = rl.validate(str(saved)).result.board
    assert {score.metric for score in board.scores} >= {"ttft_s", "tpot_s", "e2e_s", "ttft_p99_s"}
    assert len([score for score in board.scores if score.metric == "e2e_s"]) == 9


def test_a_run_without_a_machine_is_counted_and_named(hostile: Server, tmp_path: Path) -> None:
    saved = tmp_path / "observed.jsonl"
    rl.observe(hostile.url, rate="inf", requests=2, input=WELL, output=2, yes=True, save=str(saved))
    board = rl.validate(str(saved)).result.board
    assert len(board.unsupported) == 1
    assert "model" in board.unsupported[0].reason or "chip" in board.unsupported[0].reason


def test_what_a_run_cannot_be() -> None:
    good = {
        "arrival_s": 0.0,
        "outcome": "finished",
        "input_len": 3,
        "output_len": 2,
        "sent_s": 0.1,
        "token_s": [0.2, 0.3],
    }
    found = request_from(good, "here")
    assert found.ttft_s == pytest.approx(0.1)
    assert found.tpot_s == pytest.approx(0.1)
    assert found.late_s == pytest.approx(0.1)
    for change in (
        {"outcome": "fine"}, {"input_len": 0}, {"input_len": True}, {"token_s": [0.3, 0.2]}, {"token_s": "x"},
        {"sent_s": 5.0}, {"arrival_s": math.nan}, {"more": 1}, {"output_tokens": -1}, {"blocks": [0.5]},
    ):  # fmt: skip
        with pytest.raises(InputError, match="here"):
            request_from({**good, **change}, "here")


def test_a_generator_that_binds_says_so() -> None:
    from rackline.validation.observed import GeneratorLimits

    assert GeneratorLimits(late_p99_s=0.002, lag_p99_s=0.02).binds
    assert not GeneratorLimits(late_p99_s=0.002, lag_p99_s=0.003).binds
    assert not GeneratorLimits().binds


def test_a_blocked_generator_measures_its_own_lag(hostile: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from rackline.lab import load_generator

    usual = load_generator._Run._saw

    def slow(self: load_generator._Run) -> None:
        time.sleep(0.03)
        usual(self)

    monkeypatch.setattr(load_generator._Run, "_saw", slow)
    found = observe_load(requests_of([WELL] * 20), prompts_to(hostile), PATIENT)
    assert found.generator.binds
    assert found.generator.lag_p99_s >= 0.03
    run = ObservedRun(run_id="x", requests=found.requests, generator=found.generator)
    assert json.loads(run.line())["generator"]["binds"] is True


def test_a_server_of_several_models(hostile: Server) -> None:
    assert target(hostile.url, endpoint="chat").served_name == "hostile"
    with pytest.raises(InputError, match="hostile"):
        target(hostile.url, endpoint="chat", served_name="hostil")


def test_a_list_of_models_without_end_is_cut(hostile: Server) -> None:
    hostile.models = None
    with pytest.raises(InputError, match="more than 4,194,304 bytes"):
        target(hostile.url, endpoint="chat")


def test_names_that_a_terminal_would_obey_are_not_taken(hostile: Server) -> None:
    hostile.models = [{"id": "\x1b[2Jgone"}]
    with pytest.raises(InputError, match="no list of models"):
        target(hostile.url, endpoint="chat")
    hostile.models = [{"id": "\x1b[2Jgone"}, {"id": "here"}]
    assert target(hostile.url, endpoint="chat").served_name == "here"


def test_a_run_without_an_answer_fails(hostile: Server, capfd: pytest.CaptureFixture[str]) -> None:
    bad = next(length for length, what in BEHAVIOURS.items() if what == "escape sequences")
    words = f"observe {hostile.url} --rate inf --requests 2 --output 4 --yes --lengths fixed --input"
    assert run([*words.split(), str(bad)]) == 1
    found = capfd.readouterr()
    assert "no request was answered" in found.err
    assert not {"\x1b", "\x07", "\u202e"} & set(found.out + found.err)
    assert run([*words.split(), str(WELL)]) == 0


def test_a_load_of_classes_is_sent_as_it_is_simulated(hostile: Server, tmp_path: Path) -> None:
    """A shape, stretched to seconds: every class at its rate, each with its tier; 429 counts as refused."""
    refused = next(length for length, what in BEHAVIOURS.items() if what == "429 always")
    path = tmp_path / "classes.toml"
    path.write_text(
        f'[[classes]]\nname = "well"\nshare = 1\ninput = {WELL}\noutput = 4\n'
        f'[[classes]]\nname = "limited"\nrate = "3/s"\ninput = {refused}\noutput = 4\npriority = 1\n'
    )
    asked = {"load": "burst", "load_time": "2s", "rate": "10", "classes": str(path), "retries": 0, "yes": True}
    answer = rl.observe(hostile.url, **asked)  # type: ignore[arg-type]
    run = answer.result.run
    sent = [one.arrival_s for one in run.requests if one.class_name == "well"]
    assert len(run.requests) == answer.result.ahead.requests > 10
    assert max(one.arrival_s for one in run.requests) < 2.0
    assert len(sent) == pytest.approx(20, abs=14)
    by = {one["name"]: one for one in answer.to_dict()["by_class"]}
    assert by["well"]["finished"] == by["well"]["requests"] == len(sent)
    assert by["limited"]["refused"] == by["limited"]["requests"] > 0
    body = json.loads(Prompts(target=target(hostile.url, endpoint="completions")).body(_tiers(), 1))
    assert body["priority"] == 7
    line = json.loads(run.line())
    assert [request_from(one, "here").class_name for one in line["requests"]] == [
        one.class_name for one in run.requests
    ]
    with pytest.raises(InputError, match="a shorter `load_time`"):
        rl.observe(hostile.url, load="day", rate="10", input=WELL, output=4, yes=True)


def _tiers() -> Requests:
    return Requests(
        arrival_s=np.zeros(2), input_len=np.full(2, WELL), output_len=np.ones(2, int), priority=np.array([0, 7])
    )


@pytest.mark.parametrize(
    ("unwritten", "finished", "status"), [(True, 3, 2), (True, 0, 2), (False, 3, 0), (False, 0, 1)]
)
def test_the_status_of_an_observed_run(unwritten: bool, finished: int, status: int) -> None:
    """2 where the file could not be written, 1 where no request finished."""
    run = SimpleNamespace(counts={"finished": finished})
    answer: Any = SimpleNamespace(result=SimpleNamespace(unwritten=unwritten, run=run))
    assert find_verb("observe").status(answer) == status
