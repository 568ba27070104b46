"""Fleets, launch commands and what-if sweeps of a plan."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

import rackline as rl
from rackline.api.what_if import read_sweep, setting
from rackline.cli.main import run
from rackline.hardware import rack_bill
from rackline.search.launch import Replica, launch_command
from rackline.search.launch_plan import Checkpoints, checkpoint
from rackline.serving import Workload
from rackline.serving.fleet import Part, Traffic, fleet, packed_racks
from rackline.serving.workload import Mode


class TestFleet:
    def test_copies_power_and_rent(self) -> None:
        on = rl.cluster("gb200-nvl72")
        found = fleet(Traffic(tokens_per_s=1e6, peak_over_mean=2.0), 1e5, (Part(cluster=on, replica_chips=36),))
        assert (found.copies, found.num_chips, found.num_racks) == (20, 720, 10)
        assert found.utilisation == pytest.approx(0.5)
        assert found.power_w == pytest.approx(720 * on.power_w_per_chip)
        assert found.usd_per_hour == pytest.approx(720 * 3.30)
        assert found.usd_per_mtok_output_all_in == pytest.approx(720 * 3.30 / (1e6 * 3600) * 1e6)

    def test_c33_one_system_of_a_provider(self) -> None:
        """128,000 tokens/s of 378 to 502 million: 1/2,950 to 1/3,900."""
        on = rl.cluster("gb200-nvl72")
        for provider, share in ((378e6, 2953), (502e6, 3922)):
            traffic = Traffic(tokens_per_s=1e6, provider_tokens_per_s=provider)
            found = fleet(traffic, 128e3, (Part(cluster=on, replica_chips=72),))
            assert round(1 / found.copy_share) == share
            assert found.fleet_share == pytest.approx(1e6 / provider)

    def test_a_fleet_beyond_three_tiers_of_switches_has_no_network_count(self) -> None:
        on = rl.cluster("dgx-h100")
        found = fleet(Traffic(tokens_per_s=1e9), 1e5, (Part(cluster=on, replica_chips=8),))
        assert found.num_chips == 80_000
        assert rack_bill(on, 80_000).network_switches is None
        assert rack_bill(on, 65_536).network_switches == 5 * 64**2 // 4

    def test_offline_work_fills_the_valleys(self) -> None:
        on = rl.cluster("dgx-h100")
        needed = [
            fleet(
                Traffic(tokens_per_s=1e6, peak_over_mean=2.0, offline_share=share),
                1e4,
                (Part(cluster=on, replica_chips=8),),
            ).copies
            for share in (0.0, 0.25, 0.5, 1.0)
        ]
        assert needed == [200, 150, 100, 100]

    @settings(max_examples=40, deadline=None)
    @given(st.integers(1, 72), st.integers(1, 40), st.integers(1, 72), st.integers(1, 40))
    def test_racks_hold_all_chips_and_are_not_wasted(self, a: int, n: int, b: int, m: int) -> None:
        racks = packed_racks(72, [(a, n), (b, m)])
        assert racks * 72 >= a * n + b * m
        assert racks <= -(-n // (72 // a)) + -(-m // (72 // b))  # never more than each size in racks of its own

    def test_whole_units_are_paid_and_pools_share_hosts(self) -> None:
        on = rl.cluster("dgx-h100")  # hosts of eight
        alone = fleet(Traffic(tokens_per_s=1e6), 1e6, (Part(cluster=on, replica_chips=3),))
        assert (alone.num_chips, alone.billed_chips) == (3, 8)
        assert alone.usd_per_hour == pytest.approx(8 * on.usd_per_chip_hour)
        pools = (Part(cluster=on, replica_chips=2), Part(cluster=on, replica_chips=1, replicas=6))
        found = fleet(Traffic(tokens_per_s=2e6), 1e6, pools)
        assert (found.num_chips, found.billed_chips) == (16, 16)
        by_chip = replace(on, rented_chips=1)
        assert fleet(Traffic(tokens_per_s=1e6), 1e6, (Part(cluster=by_chip, replica_chips=3),)).billed_chips == 3

    @pytest.mark.parametrize(
        ("kept", "message"),
        [
            ({"tokens_per_s": 0.0}, "more than 0"),
            ({"tokens_per_s": 1.0, "peak_over_mean": 0.5}, "at least 1"),
            ({"tokens_per_s": 1.0, "offline_share": 1.5}, "0 to 1"),
        ],
    )
    def test_bad_traffic(self, kept: dict[str, float], message: str) -> None:
        with pytest.raises(rl.RacklineError, match=message):
            Traffic(**kept)


def _replica(**changes: object) -> Replica:
    model, on = rl.model("deepseek-v3"), rl.cluster("gb200-nvl72")
    base = Replica(
        model_id="deepseek-ai/DeepSeek-V3",
        layout=rl.Layout(tp=2, attention_dp=16, ep=32, pp=2),
        precision=rl.precision("native,kv=fp8", model, on.chip),
        mode=Mode(admission="chunked", max_batched_tokens=2048, two_batch_overlap=True),
        sequences_per_rank=64,
        workload=Workload(input_len=4000, output_len=1000),
        chips_per_host=8,
        num_experts=256,
    )
    return replace(base, **changes)


class TestLaunch:
    def test_vllm(self) -> None:
        words = launch_command("vllm", _replica()).words
        text = " ".join(words)
        assert words[:3] == ("vllm", "serve", "deepseek-ai/DeepSeek-V3")
        for part in (
            "--tensor-parallel-size 2",
            "--pipeline-parallel-size 2",
            "--data-parallel-size 16",
            "--enable-expert-parallel",
            "--max-num-seqs 64",
            "--max-num-batched-tokens 2048",
            "--max-model-len 5000",
            "--gpu-memory-utilization 0.9",
            "--kv-cache-dtype fp8",
            "--enable-dbo",
        ):
            assert part in text, part
        assert "--kv-transfer-config" not in text

    def test_sglang_counts_over_all_ranks(self) -> None:
        text = " ".join(launch_command("sglang", _replica()).words)
        for part in (
            "--tp-size 32",
            "--attn-dp-size 16",
            "--ep-size 32 --moe-a2a-backend deepep",
            f"--chunked-prefill-size {2048 * 16}",
            f"--max-running-requests {64 * 16}",
            "--enable-two-batch-overlap",
            "--nnodes 8",
        ):
            assert part in text, part

    def test_trtllm_puts_the_rest_into_a_file(self) -> None:
        command = launch_command("trtllm", _replica(layout=rl.Layout(attention_dp=8, ep=8)))
        assert "--tp_size 8 --ep_size 8" in " ".join(command.words)
        assert "enable_attention_dp: true" in command.options_file
        assert any("overlap" in note for note in command.lacks)

    @pytest.mark.parametrize("stack", ["vllm", "sglang", "trtllm"])
    def test_pools_are_told_their_role(self, stack: str) -> None:
        commands = [launch_command(stack, _replica(role=role)) for role in ("prefill", "decode")]
        marks = {
            "vllm": ("NixlConnector", "NixlConnector"),
            "sglang": ("--disaggregation-mode prefill", "--disaggregation-mode decode"),
            "trtllm": ("cache_transceiver_config:", "cache_transceiver_config:"),
        }[stack]
        for command, mark in zip(commands, marks, strict=True):
            assert mark in " ".join([*command.words, *command.options_file])

    def test_what_a_stack_cannot_do_is_said(self) -> None:
        mixed = _replica(layout=rl.Layout(attention_dp=16, ep=4, moe_tp=4))
        assert any("moe_tp=4" in note for note in launch_command("vllm", mixed).lacks)
        model, on = rl.model("deepseek-v3"), rl.cluster("gb200-nvl72")
        ids = Checkpoints(released="deepseek-ai/DeepSeek-V3")
        chosen, native = (rl.precision(label, model, on.chip) for label in ("fp4", "native"))
        assert "none is known" in checkpoint(ids, chosen, native).lack


class TestWhatIf:
    def test_ranges_and_lists(self) -> None:
        assert read_sweep("scale_up_size=8,72,144").values == ("8", "72", "144")
        assert read_sweep("hbm_bandwidth=1TB/s:100TB/s:3").values == ("1TB/s", "10TB/s", "100TB/s")
        assert len(read_sweep("hbm_capacity=100GB:400GB").values) == 5

    @pytest.mark.parametrize("text", ["", "x", "x=", "=3", "x=1:2TB", "x=1:2:99", "x=0:2:3", "x=1:2:3:4", "x=a:b"])
    def test_bad_ranges(self, text: str) -> None:
        with pytest.raises(rl.RacklineError, match="what-if"):
            read_sweep(text)

    def test_sparsity_and_kv_become_shapes(self) -> None:
        deepseek, llama = rl.model("deepseek-v3"), rl.model("llama-3.1-70b")
        own = deepseek.total_params / 37.5e9
        experts = int(setting("total_over_active", f"{own:.3f}", deepseek).partition("=")[2])
        assert experts == pytest.approx(256, abs=8)
        assert setting("kv_bytes_per_token", "327680", llama) == "architecture.attention.num_kv_heads=8"
        assert setting("kv_bytes_per_token", "70272", deepseek) == "architecture.attention.kv_lora_rank=512"
        assert setting("hbm_bandwidth", "8TB/s", llama) == "chip.hbm_bytes_per_s=8TB/s"
        with pytest.raises(rl.RacklineError, match="mixture"):
            setting("total_over_active", "8", llama)


SMALL = [
    "plan",
    "llama-3.1-8b",
    "--on",
    "dgx-h100",
    "--input",
    "1k",
    "--output",
    "200",
    "--precision",
    "fp8",
    "--tpot",
    "20ms",
]


def call(capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert run([*SMALL, "--calibration", "vllm", *more]) == 0
    return capsys.readouterr().out


def test_command_prints_fleet_and_commands(capsys: pytest.CaptureFixture[str]) -> None:
    text = call(
        capsys, "--traffic", "5M", "--peak-over-mean", "1.5", "--provider", "400M", "--engine", "vllm", "--launch"
    )
    for part in ("5.00M output tokens/s", "racks", "mean utilisation", "vllm serve meta-llama/Llama-3.1-8B"):
        assert part in text, part
    data = json.loads(call(capsys, "--traffic", "5M", "--launch", "--json"))
    assert data["fleet"]["copies"] >= 1
    assert data["launch"][0]["words"]
    assert all(" ".join(one["words"][:1]) in data["launch_script"] for one in data["launch"])


def test_more_memory_bandwidth_is_never_dearer(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    file = tmp_path / "what_if.svg"
    data = json.loads(call(capsys, "--what-if", "hbm_bandwidth=2TB/s:16TB/s:4", "--json", "--plot", str(file)))
    costs = [point["best"]["usd_per_mtok_output_all_in"] for point in data["points"]]
    # a rate is served to within 2 % of the highest that holds
    assert all(later <= earlier * 1.03 for earlier, later in itertools.pairwise(costs))
    assert file.stat().st_size > 1000
    assert "hbm_bandwidth" in call(capsys, "--what-if", "hbm_bandwidth=2TB/s,4TB/s")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--peak-over-mean", "2"], "--traffic"),
        (["--serving", "agregated"], "aggregated"),
        (["--serving", "aggregated", "--prefill-on", "dgx-h200"], "both"),
        (["--prefill-chips", "8"], "--prefill-on"),
        (["--engine", "vlm"], "vllm"),
        (["--launch", "--calibration", "unit"], "--engine vllm"),
        (["--what-if", "hbm_bandwidth=1", "--traffic", "5"], "hbm_bandwidth"),
        (["--traffic", "-5"], "--traffic"),
    ],
)
def test_refusals_are_one_line(more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_a_cluster_shows_its_racks_and_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["clusters", "gb200-nvl72"]) == 0
    text = capsys.readouterr().out
    for part in ("scale-up switches", "1,296", "2 hops", "top-of-rack switch"):
        assert part in text, part
    assert run(["clusters", "gb200-nvl72", "--set", "levels.scale_up.size=144", "--json"]) == 0
    rack = json.loads(capsys.readouterr().out)["rack"]
    assert rack["scale_up_switches"] == 36
    assert [path["hops"] for path in rack["paths"]] == [2, 6]
