"""Commands that give one number agree: plan, compare, what-if × 1, explain, fit, price and simulate.

`NUMBERS` lists each number that several commands give, and how each of them says it: the same for ten deployments.
Figures of random arrivals (latencies of `simulate` beside those of a plan) are compared in tests/unit/test_served.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import pytest

import rackline as rl
from helpers import cluster
from rackline.search.choice import Choice
from rackline.search.plan import Plan

# Pairs of a model and a cluster, which `compare` puts side by side; rents of one kind, because it compares no others.
PAIRS = (
    (("llama-3.1-8b", "dgx-a100"), ("llama-3.1-8b", "l40s-8")),
    (("llama-3.1-70b", "dgx-h100"), ("llama-3.1-70b", "dgx-h200")),
    (("qwen3-32b", "dgx-h100"), ("mixtral-8x7b", "dgx-h100")),
    (("llama-3.1-405b", "dgx-b200"), ("qwen3-235b-a22b", "dgx-h200")),
    (("gpt-oss-120b", "dgx-b200"), ("deepseek-v3", "dgx-b200")),
)
LENGTHS = ((1000, 200), (2000, 100))  # prompt, answer
# each pair at lengths of its own: what commands share does not depend on both together, and twice as many take minutes
DEPLOYMENTS = [(pair, side, *LENGTHS[row % len(LENGTHS)]) for row, pair in enumerate(PAIRS) for side in (0, 1)]
PLANNED = ("tpot_s", "ttft_s", "requests_per_s", "batch_size", "num_chips", "output_tokens_per_s_per_chip")
COSTS = ("usd_per_mtok_input", "usd_per_mtok_output", "usd_per_mtok_output_all_in")
PARTS = ("tp", "pp", "ep", "moe_tp", "attention_dp")
LEAST_OVER_COST, MOST_OVER_COST = 0.75, 1.05


def asked_stack(pair: tuple[tuple[str, str], ...]) -> str:
    """The stack that plans are asked for: of the first pair all are compared, which takes three times as long."""
    return "auto" if pair == PAIRS[0] else "vllm"


@cache
def compared(pair: tuple[tuple[str, str], ...], given: int, made: int) -> Sequence[Mapping[str, float | None]]:
    """The values of both sides, by `compare`."""
    found = rl.compare(
        [f"{name}@{on}" for name, on in pair], use="batch", input=given, output=made, calibration=asked_stack(pair)
    )
    return [side.values for side in found.result.sides]


@dataclass
class Asked:
    """What seven commands say of one deployment: the plan, and of its single engine what the others say."""

    pair: tuple[tuple[str, str], ...]
    side: int
    given: int
    made: int

    @property
    def name(self) -> str:
        return self.pair[self.side][0]

    @property
    def on(self) -> str:
        return self.pair[self.side][1]

    @cached_property
    def plan(self) -> Plan:
        return rl.plan(
            self.name, on=self.on, use="batch", input=self.given, output=self.made, calibration=asked_stack(self.pair)
        ).result.plan

    @property
    def stack(self) -> str:
        """The stack of the plan, which is named to commands that compare none."""
        return self.plan.system.calibration.name

    @property
    def compared(self) -> Mapping[str, float | None]:
        return compared(self.pair, self.given, self.made)[self.side]

    @cached_property
    def varied(self) -> Choice:
        speed = f"hbm_bandwidth={cluster(self.on).chip.hbm_bytes_per_s / 1e12!r}TB/s"
        asked = {"on": self.on, "use": "batch", "input": self.given, "output": self.made, "what_if": speed}
        found = rl.plan(self.name, calibration=asked_stack(self.pair), **asked).result
        best = found.points[0].plan.best
        assert best is not None
        return best

    @cached_property
    def best(self) -> Choice:
        assert self.plan.best is not None
        return self.plan.best

    @property
    def used(self) -> float:
        """Share of the chips that are paid for."""
        return self.best.whole.num_chips / self.best.billed_chips

    @property
    def engine(self) -> Choice:
        """The cheapest single engine."""
        assert self.plan.aggregated is not None
        return self.plan.aggregated

    @property
    def layout(self) -> str:
        """Of one replica, nothing left free."""
        return ",".join(f"{part}={getattr(self.engine.layout, part)}" for part in PARTS)

    @property
    def chips_per_replica(self) -> int:
        return self.engine.layout.chips_per_replica

    @property
    def slots(self) -> int:
        """Ranks and micro-batches with sequences of their own."""
        return self.engine.layout.attention_dp * self.engine.layout.pp

    @property
    def label(self) -> str:
        """Its data types."""
        return self.engine.precision.label

    def explain(self, batch: int, context: float) -> dict[str, Any]:
        return rl.explain(
            self.name, on=self.on, calibration=self.stack, precision=self.label, layout=self.layout, batch=batch,
            context=context,
        ).to_dict()  # fmt: skip

    @cached_property
    def step(self) -> dict[str, Any]:
        """The plan's decode step."""
        return self.explain(self.engine.estimate.batch_size, self.given + self.made / 2)

    @cached_property
    def row(self) -> Any:
        """What fits, by `fit`."""
        found = rl.fit(
            self.name, on=self.on, calibration=self.stack, precision=self.label, layout=self.layout,
            context=self.given + self.made,
        )  # fmt: skip
        (row,) = found.result.capacity.rows
        return row

    @cached_property
    def sold(self) -> dict[str, Any]:
        """The bare cost, by `price`."""
        return rl.price(
            self.name, on=self.on, calibration=self.stack, precision=self.label, layout=self.layout, margin=0,
            utilisation=1, contexts=self.given, output=self.made, tpot="1d", margin_at="longest",
        ).to_dict()  # fmt: skip

    @cached_property
    def sold_step(self) -> dict[str, Any]:
        """The decode step of the batch that is sold."""
        return self.explain(int(self.sold["tiers"][0]["batch_size"]), self.given + self.made)

    @cached_property
    def run(self) -> Any:
        """A few requests, by `simulate`."""
        mode, policy = self.engine.mode, {"chunked": "chunked", "prefill_first": "prefill-first"}
        return rl.simulate(
            self.name, on=self.on, calibration=self.stack, precision=self.label, layout=self.layout,
            rate=self.engine.requests_per_s, requests=20, input=self.given, output=self.made,
            policy=policy.get(mode.admission),
            max_batched_tokens=mode.max_batched_tokens, max_num_seqs=self.engine.max_num_seqs,
        )  # fmt: skip

    @cached_property
    def ran(self) -> dict[str, Any]:
        return self.run.to_dict()

    @cached_property
    def simulated_fit(self) -> int:
        """Requests that the cache of a simulated replica holds, with the share of memory that plan and fit take."""
        spec = rl.simulate(
            self.name, on=self.on, calibration=self.stack, precision=self.label, layout=self.layout, replicas=1, rate=1,
            requests=1, input=self.given, output=self.made,
        ).result.run.server.pool.spec  # fmt: skip
        each = -(-(self.given + self.made) // spec.block_size) + -(-spec.fixed_tokens // spec.block_size)
        return spec.pool_tokens // spec.block_size // each * self.slots

    def usd_per_chip_hour(self, all_in: float, tokens_per_s_per_chip: float) -> float:
        """The rent that a cost of a million output tokens comes from."""
        return all_in / 1e6 * tokens_per_s_per_chip * 3600.0


Say = Callable[[Asked], float]


def _rents() -> dict[str, Say]:
    keys = ("usd_per_mtok_output_all_in", "output_tokens_per_s_per_chip")

    def of_run(a: Asked) -> float:
        each = a.ran["output_tokens_per_s"] / a.ran["deployment"]["num_chips"]
        return a.usd_per_chip_hour(a.ran["usd_per_mtok_output_all_in"], each)

    return {
        # paid in whole units, of which the answer may leave chips idle
        "plan": lambda a: a.used * a.usd_per_chip_hour(*(_said(a.best, key) for key in keys)),
        "compare": lambda a: a.used * a.usd_per_chip_hour(*(a.compared[key] or 0.0 for key in keys)),
        "what-if": lambda a: a.used * a.usd_per_chip_hour(*(_said(a.varied, key) for key in keys)),
        "simulate": of_run,
        "price": lambda a: a.sold["terms"]["usd_per_chip_hour"],
    }


def _said(choice: Choice, key: str) -> float:
    """As the headline has it: rates and costs of all that the paid chips serve, latencies of the main replicas."""
    return float(getattr(choice.whole if hasattr(choice.whole, key) else choice, key))


def _planned(key: str) -> dict[str, Say]:
    return {
        "plan": lambda a: _said(a.best, key),
        "compare": lambda a: a.compared[key] or 0.0,
        "what-if": lambda a: _said(a.varied, key),
    }


NUMBERS: dict[str, dict[str, Say]] = {
    **{key: _planned(key) for key in (*PLANNED, *COSTS)},
    "usd_per_chip_hour": _rents(),
    "chips of one engine": {
        "plan": lambda a: a.engine.num_chips,
        "simulate": lambda a: a.ran["deployment"]["num_chips"],
        "price": lambda a: a.sold["deployment"]["layout"]["dp"] * a.chips_per_replica,
    },
    "max_num_seqs": {
        "plan": lambda a: a.engine.max_num_seqs,
        "simulate": lambda a: a.ran["deployment"]["max_num_seqs"],
    },
    "decode step": {
        "plan": lambda a: a.engine.inside.decode.seconds,
        "explain": lambda a: a.step["seconds"],
    },
    "weights_bytes": {
        "plan": lambda a: float(a.engine.inside.memory.weight_total),
        "explain": lambda a: a.step["memory"]["weights_bytes"],
        "fit": lambda a: a.row.weights_bytes,
    },
    "hbm_bytes": {
        "plan": lambda a: a.engine.inside.memory.total,
        "explain": lambda a: a.step["memory"]["hbm_bytes"],
    },
    "KV cache of a sequence": {
        "fit": lambda a: a.row.kv_bytes_per_sequence,
        "explain": lambda a: a.sold_step["memory"]["kv_cache_bytes"] / a.sold_step["sequences_per_rank"]
        / a.engine.layout.pp,
    },
    "room for KV": {
        "fit": lambda a: a.row.kv_room_bytes,
        "explain": lambda a: a.sold_step["memory"]["free_bytes"] + a.sold_step["memory"]["kv_cache_bytes"],
    },
    "requests that fit": {
        "fit": lambda a: a.row.max_concurrency,
        "simulate": lambda a: a.simulated_fit,
    },
}  # fmt: skip


IN_EVERY_RUN = 4  # deployments; the others nightly


@pytest.fixture(
    params=[
        *DEPLOYMENTS[:IN_EVERY_RUN],
        *(pytest.param(other, marks=pytest.mark.nightly) for other in DEPLOYMENTS[IN_EVERY_RUN:]),
    ],
    ids=lambda deployment: f"{'@'.join(deployment[0][deployment[1]])}-{deployment[2]}",
    scope="module",
)
def asked(request: pytest.FixtureRequest, searched_once: object) -> Asked:
    return Asked(*request.param)


@pytest.mark.slow
def test_each_number_is_the_same_whoever_is_asked(asked: Asked) -> None:
    whole = asked.plan.aggregated is not None  # else only pools keep up with any rate, and only plans are compared
    rows = {name: ways for name, ways in NUMBERS.items() if whole or name in (*PLANNED, *COSTS)}
    said = {name: {who: float(say(asked)) for who, say in ways.items()} for name, ways in rows.items()}
    if whole and asked.sold["tiers"][0]["prefill_layout"] is not None:  # what is sold is no single engine
        del said["chips of one engine"]["price"]
        sold = asked.sold["tiers"][0]["usd_per_mtok_output_all_in"]  # the same where pools cost as much
        assert sold <= asked.engine.usd_per_mtok_output_all_in * (1.0 + 1e-9)
    apart = {name: values for name, values in said.items() if not _same(values)}
    assert apart == {}
    assert not whole or asked.step["binds"] == asked.engine.inside.decode.binds


def _same(values: Mapping[str, float]) -> bool:
    first, *others = values.values()
    return all(value == pytest.approx(first, rel=1e-9) for value in others)


def test_a_price_without_margin_is_a_plans_cost(asked: Asked) -> None:
    """With every slot taken all the time, a little below what a plan costs with random arrivals."""
    if asked.plan.aggregated is None:
        pytest.skip("no single engine keeps up with any rate")
    tier = asked.sold["tiers"][0]
    ratio = tier["usd_per_mtok_output_all_in"] / asked.engine.estimate.usd_per_mtok_output_all_in
    assert LEAST_OVER_COST < ratio < MOST_OVER_COST


def test_every_command_is_in_the_table() -> None:
    commands = {who for ways in NUMBERS.values() for who in ways}
    assert commands == {"plan", "compare", "what-if", "explain", "fit", "price", "simulate"}
    assert len(DEPLOYMENTS) == 10
    assert all(len(ways) > 1 for ways in NUMBERS.values())
