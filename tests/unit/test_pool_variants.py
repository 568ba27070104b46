"""Speculative decoding and attention-feed-forward splits of a plan's decode pool."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import rackline as rl
from helpers import system
from rackline.api.plan_parts import speculations_of
from rackline.cli.main import run
from rackline.passes import Batch, Calibration
from rackline.passes.calibration import CollectiveCalibration
from rackline.search.extensions import _Attention, _exchange_s, layer_s, speculation_rows, split_attention_ffn
from rackline.serving import Workload
from rackline.serving.workload import Speculation, usual_speculation

WORK = Workload(input_len=4096, output_len=1024)


def _deployment(**layout: int) -> rl.Deployment:
    model, on = rl.model("deepseek-v3"), rl.cluster("gb200-nvl72")
    return rl.Deployment(
        model=model,
        cluster=on,
        layout=rl.Layout(**layout),
        precision=rl.precision("fp8", model, on.chip),
        calibration=rl.calibration("auto", on.chip),
    )


SERVES = system("deepseek-v3", label="fp8", calibration="auto", routing=rl.Routing())


class TestSpeculation:
    def test_it_pays_most_at_small_batches(self) -> None:
        rows = speculation_rows(
            SERVES,
            rl.Layout(attention_dp=16, ep=16),
            SERVES.precision,
            WORK,
            [usual_speculation(k) for k in (1, 3)],
            largest_batch=512,
            tpot_limit_s=0.05,
        )
        plain, one, three = rows
        assert plain.breakeven == pytest.approx(1.0)
        for row in (one, three):
            gain = plain.tpot_s / row.tpot_s
            assert 1.0 < gain[0] <= row.speculation.tokens_per_step
            assert gain[0] > gain[-1]
        # more drafts win alone, fewer when the batch is large
        assert three.tpot_s[0] < one.tpot_s[0]
        assert three.tpot_s[-1] > one.tpot_s[-1]
        for row in rows:
            at = int(np.flatnonzero(row.sequences_per_rank == row.best_batch)[0])
            assert row.tpot_s[at] <= 0.05
            rate = row.best_batch * 16 / row.tpot_s[at] / 16
            assert row.output_tokens_per_s_per_chip == pytest.approx(rate)

    def test_drafts_that_nobody_accepts_never_pay(self) -> None:
        rows = speculation_rows(
            SERVES,
            rl.Layout(tp=8, ep=8),
            SERVES.precision,
            WORK,
            [Speculation(draft_tokens=2, tokens_per_step=1.0)],
            largest_batch=64,
            tpot_limit_s=None,
        )
        assert rows[1].pays_up_to == 0
        assert np.all(rows[1].breakeven > 1.0)

    def test_break_even_is_where_both_take_the_same_time(self) -> None:
        of = (SERVES, rl.Layout(attention_dp=8, ep=8), SERVES.precision, WORK)
        first = speculation_rows(
            *of, [Speculation(draft_tokens=2, tokens_per_step=2.0)], largest_batch=64, tpot_limit_s=None
        )
        needed = float(first[1].breakeven[10])
        again = speculation_rows(
            *of, [Speculation(draft_tokens=2, tokens_per_step=needed)], largest_batch=64, tpot_limit_s=None
        )
        assert again[1].tpot_s[10] == pytest.approx(again[0].tpot_s[10])

    def test_options(self) -> None:
        assert speculations_of(None) is None
        assert speculations_of("usual") == []
        assert speculations_of("1,3=2.9") == [usual_speculation(1), Speculation(draft_tokens=3, tokens_per_step=2.9)]
        for bad in ("x", "0", "3=", "3=9", "99"):
            with pytest.raises(rl.RacklineError):
                speculations_of(bad)


class TestAttentionFfn:
    def test_ping_pong_by_walking_through_the_stages(self) -> None:
        """Micro-batches through attention, out, experts and back, layer after layer, agree with the closed form."""
        for times, count in (((1.0, 1.0, 0.5, 0.5), 2), ((1.0, 1.0, 0.5, 0.5), 4), ((2.0, 1.0, 0.2, 0.3), 3)):
            a, f, d, c = times
            stages = (a, d, f, c)
            free, ready = [0.0] * 4, [0.0] * count
            rounds = 400
            half = 0.0
            for turn in range(rounds):
                for stage, seconds in enumerate(stages):
                    for batch in range(count):
                        start = max(free[stage], ready[batch])
                        free[stage] = ready[batch] = start + seconds
                if turn == rounds // 2 - 1:
                    half = ready[0]
            walked = (ready[0] - half) / (rounds / 2)
            closed = layer_s(*(np.array(t) for t in times), count)
            assert float(closed) == pytest.approx(walked, rel=1e-6)

    @pytest.mark.parametrize("on", ["gb200-nvl72", "h100-96"])
    def test_an_exchange_between_the_pools_is_a_row_of_the_fabric(self, on: str) -> None:
        """Under unit bytes over the link alone; a message step costs alpha, and the outer latency beyond a domain."""
        cluster = rl.cluster(on)
        sent, chips = np.array([1e6]), np.array([16.0])

        def seconds(numbers: Calibration) -> float:
            serves = replace(system("deepseek-v3", on=on, label="fp8"), calibration=numbers)
            holder = _Attention.of(serves, serves.model, rl.Layout(tp=8, ep=8), WORK)
            assert holder is not None
            return float(_exchange_s(holder, sent, chips)[0])

        up, out = cluster.levels
        level, later = (up, 0.0) if up.size >= 16 else (out, out.latency_s - up.latency_s)
        wire = 1e6 / level.bytes_per_s_each_way
        assert seconds(rl.calibration("unit")) == pytest.approx(wire, rel=1e-12)
        fitted = replace(
            rl.calibration("unit"),
            collectives={"all_to_all": CollectiveCalibration(overheads_s=(3e-6,), ramps=(0.5,), alpha_s=2e-6)},
        )
        fixed = 3e-6 + 2e-6 + later
        assert seconds(fitted) == pytest.approx(fixed + wire + 0.5 * (fixed * wire) ** 0.5, rel=1e-12)

    def test_a_split_adds_up_and_keeps_its_limit(self) -> None:
        found = split_attention_ffn(SERVES, WORK, tpot_limit_s=0.05)
        assert found is not None
        assert found.num_chips <= 72
        assert found.tpot_s <= 0.05
        rate = found.attention_ranks * found.sequences_per_rank / found.tpot_s / found.num_chips
        assert found.output_tokens_per_s_per_chip == pytest.approx(rate)
        layer = float(
            layer_s(
                *(np.array(x) for x in (found.attention_s, found.ffn_s, found.dispatch_s, found.combine_s)),
                found.micro_batches,
            )
        )
        assert found.tpot_s == pytest.approx(58 * layer + 3 * found.micro_batches * found.attention_s)
        # the two halves of a layer are those of the whole table
        whole = _deployment(attention_dp=found.ffn_chips, ep=found.ffn_chips).table()
        per_rank = found.sequences_per_rank / found.micro_batches
        tokens = per_rank * found.attention_ranks
        rows = {
            row.name: row.seconds
            for row in whole.time(
                Batch(decode_sequences=tokens / found.ffn_chips, context_len=WORK.mean_context, group_tokens=tokens)
            ).rows
            if row.group == "experts"
        }
        assert sum(rows.values()) / 58 == pytest.approx(found.ffn_s, rel=1e-6)

    def test_limits_and_refusals(self) -> None:
        assert split_attention_ffn(SERVES, WORK, tpot_limit_s=1e-4) is None
        dense = replace(SERVES, model=rl.model("llama-3.1-8b"))
        with pytest.raises(rl.RacklineError, match="mixture"):
            split_attention_ffn(dense, WORK)


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "plan",
        "gpt-oss-120b",
        "--on",
        "dgx-b200",
        "--input",
        "1k",
        "--output",
        "200",
        "--tpot",
        "20ms",
        "--speculate",
        "usual",
        "--attention-ffn",
    ]
    assert run([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["draft_tokens"] for row in data["speculation"]] == [0, 1, 2, 3, 4]
    assert data["attention_ffn"]["num_chips"] <= 8
    assert run(words) == 0
    text = capsys.readouterr().out
    for part in ("speculative decoding", "pays below", "attention and experts on chips of their own"):
        assert part in text
