"""The real server of the lab: nothing is lost, policies are obeyed, trains depart on time; no timing is judged."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from rackline.lab.experiment import start_jax
from rackline.simulation import POLICIES, Requests, simulate

pytest.importorskip("jax", reason="JAX has no wheel on this platform")
start_jax()

from rackline.lab.jax_engine import JaxEngine, serve  # noqa: E402
from rackline.lab.serve import PROMPT, SLOTS, SlotClock, measured_clock, served_engine, simulated  # noqa: E402
from rackline.lab.transformer import logits  # noqa: E402


@pytest.fixture(scope="module")
def engine() -> JaxEngine:
    return served_engine(0)


def requests_at(arrival_s: list[float], output_len: list[int]) -> Requests:
    count = len(arrival_s)
    return Requests(
        arrival_s=np.array(arrival_s), input_len=np.full(count, PROMPT), output_len=np.array(output_len), name="test"
    )


@pytest.mark.parametrize("name", ["fcfs", "prefill-first", "decode-first"])
def test_all_are_served_in_order(engine: JaxEngine, name: str) -> None:
    found = serve(engine, requests_at([0.0] * 12, [1, 5, 3] * 4), POLICIES.find(name))
    assert np.isfinite(found.e2e_s).all()
    assert (found.e2e_s >= found.ttft_s).all()
    assert (found.ttft_s >= found.wait_s).all()
    assert (np.diff(found.wait_s) >= 0.0).all()  # first come, first served
    assert found.makespan_s == pytest.approx(found.e2e_s.max())
    assert (found.e2e_s[::3] == found.ttft_s[::3]).all()  # one token: the first is the last


def test_a_batch_is_served_to_its_end(engine: JaxEngine) -> None:
    found = serve(engine, requests_at([0.0] * (SLOTS + 1), [8] * (SLOTS + 1)), POLICIES.find("decode-first"))
    assert found.wait_s[-1] >= found.e2e_s[:-1].max() - 1e-9


def test_slots_are_refilled_while_others_decode(engine: JaxEngine) -> None:
    found = serve(engine, requests_at([0.0] * (SLOTS + 1), [2, *[30] * SLOTS]), POLICIES.find("fcfs"))
    assert found.wait_s[-1] < found.e2e_s[1:SLOTS].min()


def test_trains_depart_at_multiples_of_the_interval(engine: JaxEngine) -> None:
    interval_s = 0.1
    arrival = [0.01, 0.03, 0.12, 0.27]
    found = serve(engine, requests_at(arrival, [1] * 4), replace(POLICIES.find("trains"), interval_s=interval_s))
    departures = np.array(arrival) + found.wait_s
    assert (departures >= np.ceil(np.array(arrival) / interval_s) * interval_s).all()


def test_answers_are_those_of_the_transformer(engine: JaxEngine) -> None:
    """Sequences that come, leave and move between slots, prompts shorter than any that is compiled: the same tokens."""
    import jax
    import jax.numpy as jnp

    from rackline.lab.transformer import init

    params = init(jax.random.key(0), engine.shape)
    plain = jax.jit(partial(logits, shape=engine.shape))
    random = np.random.default_rng(0)
    texts = [random.integers(0, engine.shape.vocab_size, size, dtype=np.int32) for size in (5, 40, 64, 17)]
    engine.ready([PROMPT])
    found = {number: text.tolist() for number, text in enumerate(texts)}
    places: list[int] = []

    def noted() -> None:
        for place, number in enumerate(places):
            found[number].append(int(engine.newest[place]))

    for number in range(3):
        engine.enter(texts[number])
        places.append(number)
    noted()
    engine.step()
    noted()
    engine.leave(0)
    places = [2, 1]
    engine.step()
    noted()
    engine.enter(texts[3])
    places.append(3)
    found[3].append(int(engine.newest[2]))
    engine.step()
    noted()
    for number, text in found.items():
        size = len(texts[number])
        whole = np.pad(np.array(text, dtype=np.int32), (0, 80 - len(text)))
        wanted = jnp.argmax(plain(params, whole), axis=-1)[size - 1 : len(text) - 1]
        assert text[size:] == wanted.tolist()


def test_a_clock_knows_every_batch(engine: JaxEngine) -> None:
    clock = measured_clock(engine, 1)
    assert len(clock.step_s) == SLOTS
    assert min(*clock.step_s, clock.prompt_s) > 0.0


def test_simulated_server_has_the_same_slots() -> None:
    clock = SlotClock(step_s=(0.010,) * SLOTS, prompt_s=0.002)
    found = simulate(requests_at([0.0] * (SLOTS + 1), [3] * (SLOTS + 1)), simulated(clock, POLICIES.find("fcfs")))
    # eight prompts, two steps; the ninth enters when a slot is free
    assert found.ttft_s[0] == pytest.approx(0.016)
    assert found.e2e_s[0] == pytest.approx(0.036)
    assert found.ttft_s[-1] == pytest.approx(0.038)
