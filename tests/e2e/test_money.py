"""Twenty questions about money, asked on the command line; each answer by arithmetic from catalogue files alone."""

from __future__ import annotations

import json
import math
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml

import rackline
from rackline.cli.main import run

DATA = Path(rackline.__file__).parent / "catalog" / "data"
TERMS = tomllib.loads((Path(rackline.__file__).parent / "pricing" / "terms.toml").read_text(encoding="utf-8"))
QUESTIONS: list[dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("money.toml").read_text(encoding="utf-8")
)["questions"]  # fmt: skip
HOURS = 730.0  # of a month
INPUT, OUTPUT = 1155.0, 211.0  # of chat: means of Azure's conversations of 2023
RESULTS = """Model,GPU,TP,Engine,ISL,OSL,Concurrency,TPOT (ms),Output tok/s
meta-llama/Llama-3.1-8B-Instruct,h100-sxm,1,vllm,1024,256,1,3.0,333
meta-llama/Llama-3.1-8B-Instruct,h100-sxm,1,vllm,1024,256,1,6.4,156
"""

Check = Callable[[dict[str, Any], str], None]
CHECKS: dict[str, Check] = {}


def checks(asks: str) -> Callable[[Check], Check]:
    """The arithmetic that answers a question of `money.toml`, named by its first words."""

    def keep(check: Check) -> Check:
        CHECKS[next(one["asks"] for one in QUESTIONS if one["asks"].startswith(asks))] = check
        return check

    return keep


@cache
def record(kind: str, name: str) -> dict[str, Any]:
    """A file of the catalogue, as text would be read by anybody."""
    return tomllib.loads((DATA / kind / f"{name}.toml").read_text(encoding="utf-8"))


def sizes(name: str) -> tuple[float, float, float]:
    """Parameters, those of the embedding, and elements of the cache of a token, of a dense model by its shapes."""
    shape = record("models", name)["architecture"]
    attention, width, layers = shape["attention"], shape["d_model"], shape["num_layers"]
    heads, pairs, size = (attention[key] for key in ("num_q_heads", "num_kv_heads", "head_dim"))
    layer = 2 * width * heads * size + 2 * width * pairs * size + 3 * width * shape["ffn"]["d_ff"]
    table = width * shape["vocab_size"]
    return layers * layer + 2.0 * table, table, 2.0 * layers * pairs * size


def ways(answer: dict[str, Any], offer: int = 0) -> dict[str, dict[str, Any]]:
    return {way["terms"]: way for way in answer["offers"][offer]["ways"]}


@pytest.mark.parametrize("one", QUESTIONS, ids=[f"{one['who']}: {one['asks'][:40]}" for one in QUESTIONS])
def test_a_question_about_money(one: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / ("results.csv" if one["command"].startswith("audit") else "made.yaml")
    if file.suffix == ".csv":
        file.write_text(RESULTS, encoding="utf-8")
    run([*(str(file) if word == "FILE" else word for word in shlex.split(one["command"])), "--json"])
    written = file.read_text(encoding="utf-8") if file.exists() else ""
    CHECKS[one["asks"]](json.loads(capsys.readouterr().out), written)


def test_five_kinds_of_people_ask_four_each() -> None:
    assert Counter(one["who"] for one in QUESTIONS) == dict.fromkeys(
        ("founder", "engineer", "planner", "analyst", "operator"), 4
    )
    assert set(CHECKS) == {one["asks"] for one in QUESTIONS}
    assert len(CHECKS) == 20
    assert all(one["by"] for one in QUESTIONS)


@checks("I have $5,000")
def _budget(answer: dict[str, Any], written: str) -> None:
    offer = answer["offers"][0]
    cost = record("clusters", "l40s-8")["usd_per_chip_hour"] * HOURS
    demand = ways(answer)["on demand"]
    chips = math.floor(5000 / cost)
    assert demand["num_chips"] == chips == 4
    assert demand["usd_per_month"] == pytest.approx(chips * cost)
    for way in offer["ways"]:
        pause_s = 30.0 + offer["ttft_s"] + (OUTPUT - 1) * offer["tpot_s"]
        per_s = way["requests_per_month"] / (HOURS * 3600)
        assert way["users"] == pytest.approx(per_s * pause_s, rel=0.01)
        assert way["usd_per_user"] * way["users"] == pytest.approx(way["usd_per_month"])
        assert way["usd_per_month"] <= 5000 < way["usd_per_month"] + way["usd_per_chip_hour"] * HOURS
        # a chip multiplies no more than its data sheet says
        flop = 2 * sizes("llama-3.1-8b")[0] * per_s * (INPUT + OUTPUT)
        assert flop < way["num_chips"] * record("chips", "l40s")["peak_flop_per_s"]["bf16"]
    assert offer["best"]["users"] == max(way["users"] for way in offer["ways"])


@checks("Which of two models")
def _which_model(answer: dict[str, Any], written: str) -> None:
    first, second = answer["offers"]
    # a fourth of the cache of each token: 4 pairs of heads in 28 layers against 8 in 32
    assert sizes("qwen2.5-7b")[2] < 0.5 * sizes("llama-3.1-8b")[2]
    assert (first["model"], second["model"]) == ("qwen2.5-7b", "llama-3.1-8b")
    assert first["best"]["users"] > second["best"]["users"]
    for offer in (first, second):
        best = offer["best"]
        chip = best["usd_per_chip_hour"] * HOURS
        assert best["num_chips"] == math.floor(10_000 / chip)
        assert best["usd_per_month"] == pytest.approx(best["num_chips"] * chip)
        known = [one["scores"][offer["model"]] for one in TERMS["quality"] if offer["model"] in one["scores"]]
        assert ([] if offer["quality"] is None else [offer["quality"]["score"]]) == known[:1]


@checks("Should I buy")
def _buying(answer: dict[str, Any], written: str) -> None:
    quotes = [338_000, 449_000, 580_000]  # of the five for a server of 8 B200, July 2026: ends and median
    capital, chip = median(quotes) / 8, record("chips", "b200-sxm")["rents"]
    running = record("clusters", "dgx-b200")["power_w_per_chip"] / 1000 * TERMS["power"]["usd_per_kwh"]
    months = capital / ((chip["on_demand"]["usd_per_chip_hour"] - running) * HOURS)
    demand, owned = ways(answer)["on demand"], ways(answer)["owned"]
    assert demand["break_even_months"] == pytest.approx(months)
    assert 14 < months < 15
    assert owned["bound_usd"] == pytest.approx(median(quotes))
    assert owned["usd_per_month"] == pytest.approx(8 * chip["owned"]["usd_per_chip_hour"] * HOURS)
    assert demand["requests_per_month"] == pytest.approx(3 * 3600 * HOURS)
    assert demand["bound_usd"] == 0


@checks("What does each of my 300")
def _each_user(answer: dict[str, Any], written: str) -> None:
    fleet, rents = answer["fleet"], record("chips", "h100-sxm")["rents"]
    assert fleet["billed_chips"] == 8
    month = 8 * rents["reserved_3y"]["usd_per_chip_hour"] * HOURS
    assert fleet["usd_per_month"] == pytest.approx(month)
    assert fleet["usd_per_user"] == pytest.approx(month / 300)
    response = fleet["interactive"]["response_s"]
    assert fleet["requests_per_s"] == pytest.approx(300 / (30.0 + response))
    assert fleet["usd_per_request"] == pytest.approx(month / (fleet["requests_per_s"] * HOURS * 3600))


@checks("Why does a 32B")
def _does_not_fit(answer: dict[str, Any], written: str) -> None:
    params, _, cached = sizes("qwen3-32b")
    held, chip = answer["memory"]["parts"], record("chips", "l40s")
    assert not answer["fits"]
    assert held["weights"] == pytest.approx(2 * params, rel=1e-3)
    assert held["KV cache"] == pytest.approx(2 * cached * 8000)
    assert held["weights"] > chip["hbm_bytes"]
    found = {change["setting"]: change for change in answer["misfit"]["changes"]}
    fp8 = found["--precision fp8,kv=bf16"]
    assert params < fp8["memory"]["parts"]["weights"] < 1.1 * params  # table and head stay in two bytes
    for change in found.values():
        free = record("chips", record("clusters", change["cluster"])["chip"])["hbm_bytes"]
        assert change["memory"]["held_bytes"] + change["memory"]["free_bytes"] == pytest.approx(free)
        if change["usd_per_mtok"] is not None:  # of one request alone: dollars an hour over its tokens
            usd = change["usd_per_hour"] * change["step_s"] / 3600 * 1e6
            assert change["usd_per_mtok"] == pytest.approx(usd, rel=1e-3)
    assert answer["misfit"]["cheapest"] == min(
        (change for change in found.values() if change["fits"]), key=lambda one: one["usd_per_mtok"]
    )["setting"]  # fmt: skip


@checks("Which command starts")
def _command(answer: dict[str, Any], written: str) -> None:
    (command,) = answer["launch"]
    words = command["words"]
    given = {word: words[at + 1] for at, word in enumerate(words[:-1]) if word.startswith("--")}
    params, table, cached = sizes("llama-3.1-8b")
    assert words[:3] == ["vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct"]
    assert (given["--tensor-parallel-size"], given["--quantization"], given["--kv-cache-dtype"]) == ("1", "fp8", "fp8")
    weights = params - 2 * table + 4 * table  # table and head stay in two bytes
    room = record("chips", "l40s")["hbm_bytes"] * float(given["--gpu-memory-utilization"]) - weights
    assert int(given["--max-num-seqs"]) * (INPUT + OUTPUT / 2) * cached < room
    assert int(given["--max-model-len"]) * cached < room


@checks("Which containers")
def _containers(answer: dict[str, Any], written: str) -> None:
    services = yaml.safe_load(written)["services"]
    seen: list[str] = []
    for service in services.values():
        devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        seen += [chip for device in devices for chip in device["device_ids"]]
    assert sorted(seen) == [str(chip) for chip in range(8)]
    assert answer["best"]["num_chips"] == 8
    engines = [name for name, one in services.items() if "deploy" in one]
    (router,) = set(services) - set(engines)
    assert len(engines) == 8
    words = " ".join(map(str, services[router]["command"]))
    assert all(f"http://{name}:" in words for name in engines)
    assert services[router]["ports"]


@checks("How fast can a single")
def _single_stream(answer: dict[str, Any], written: str) -> None:
    params, table, cached = sizes("llama-3.1-8b")
    least = 2 * (params - table + 1000 * cached) / record("chips", "h100-sxm")["hbm_bytes_per_s"]
    assert answer["blackboard"]["seconds"] == pytest.approx(least, rel=0.01)
    assert least < answer["seconds"] < 1.6 * least
    assert answer["binds"] == "hbm"


@checks("20 requests a second")
def _peak(answer: dict[str, Any], written: str) -> None:
    fleet, best = answer["fleet"], answer["best"]
    rate = best["requests_per_s"] / 8  # of a replica of one chip
    copies = math.ceil(20 * 1.8 / rate)
    assert fleet["copies"] == fleet["num_chips"] == copies
    assert fleet["billed_chips"] == 8 * math.ceil(copies / 8)
    assert fleet["utilisation"] == pytest.approx(20 / (copies * rate), rel=1e-6)
    hour = fleet["billed_chips"] * record("clusters", "dgx-h100")["usd_per_chip_hour"]
    assert fleet["usd_per_mtok_output_all_in"] == pytest.approx(hour / (20 * OUTPUT * 3600) * 1e6)
    # the same of eight busy replicas, which the first line of a plan without traffic says
    assert best["usd_per_mtok_output_all_in"] == pytest.approx(hour / (8 * rate * OUTPUT * 3600) * 1e6, rel=1e-6)


@checks("And if a host fails")
def _host_fails(answer: dict[str, Any], written: str) -> None:
    way = ways(answer)["on demand"]
    on_a_host = record("clusters", "dgx-h100")["chips_per_host"]
    assert way["spare_copies"] == min(on_a_host, way["copies"])
    chips = 8 * math.ceil((way["copies"] + way["spare_copies"]) / 8)
    assert way["num_chips"] == chips
    # the hosts that are left hold all that serve
    assert (chips / 8 - 1) * on_a_host >= way["copies"]
    usd = record("chips", "h100-sxm")["rents"]["on_demand"]["usd_per_chip_hour"]
    assert way["usd_per_month"] == pytest.approx(chips * usd * HOURS)


@checks("How many spare hosts")
def _spare_hosts(answer: dict[str, Any], written: str) -> None:
    way, known = ways(answer)["on demand"], TERMS["hosts"]
    hosts = math.ceil(way["copies"] / 8)
    days = known["repair_s"] / 86400
    down = days / (1 / known["failures_per_day"] + days)

    def enough(spare: int) -> float:
        of = hosts + spare
        return sum(math.comb(of, k) * down**k * (1 - down) ** (of - k) for k in range(spare + 1))

    spare = next(count for count in range(100) if enough(count) >= 0.9999)
    assert way["spare_copies"] == 8 * spare
    assert spare >= 1
    assert way["num_chips"] == 8 * math.ceil((way["copies"] + 8 * spare) / 8)


@checks("Own the base")
def _blend(answer: dict[str, Any], written: str) -> None:
    found = ways(answer)
    mixed = next(way for terms, way in found.items() if "at the peak" in terms)
    base, peak = (found[terms]["usd_per_chip_hour"] for terms in ("owned", "on demand"))
    assert peak == record("clusters", "l40s-8")["usd_per_chip_hour"]
    # users of a chip at its limit, from what a budget of many chips serves: copies are chips here
    chips = found["owned"]["num_chips"]
    moments = [(at + 0.5) / 20_000 for at in range(20_000)]
    swing = [1 + 0.8 * math.cos(2 * math.pi * at) for at in moments]
    costs: list[float] = []
    for most in (chips - 1 + 1e-6, chips):  # the load at the peak fills the last chip in part
        needed = Counter(max(math.ceil(most / 1.8 * one - 1e-9), 1) for one in swing)
        costs.append(
            min(
                sum(
                    share / 20_000 * (held * base + max(count - held, 0) * peak) for count, share in needed.items()
                )
                for held in range(chips + 1)
            )
        )  # fmt: skip
    assert costs[0] * HOURS * 0.999 <= mixed["usd_per_month"] <= costs[1] * HOURS * 1.001
    assert mixed["usd_per_month"] < min(way["usd_per_month"] for way in found.values() if way is not mixed)
    assert mixed["num_chips"] == chips


def _of_sheet(mode: str) -> tuple[float, float]:
    tiers = record("prices", "bedrock-llama-3.1-8b")["tiers"]
    one = next(tier for tier in tiers if tier["mode"] == mode)
    return one["usd_per_mtok_input"], one["usd_per_mtok_output"]


def _earns(answer: dict[str, Any], used: float) -> dict[str, dict[str, Any]]:
    """Margins by mode: paid over cost of the mean prompt of log-uniform lengths up to 8,000 tokens."""
    rows = {row["mode"]: row for row in answer["against"]["tiers"]}
    prompt = (8000 - 128) / math.log(8000 / 128)
    for mode, row in rows.items():
        given, made = _of_sheet(mode)
        paid = prompt * given + 1000 * made
        cost = prompt * row["usd_per_mtok_input_cost"] + 1000 * row["usd_per_mtok_output_cost"]
        assert row["margin"] == pytest.approx(paid / cost - 1, rel=0.01)
        assert row["verdict"].endswith("earns" if row["margin"] > 0 else "loses")
        sure = row["margin_low"] > 0 or row["margin_high"] < 0
        assert sure != row["verdict"].startswith("likely")
        # no request costs less than its multiplications at the peak, no output token less than its cache at full speed
        usd_s = record("clusters", "l40s-8")["usd_per_chip_hour"] / 3600 / (1.0 if mode == "batch" else used)
        (params, _, cached), chip = sizes("llama-3.1-8b"), record("chips", "l40s")
        assert cost > 2 * params * (prompt + 1000) / chip["peak_flop_per_s"]["bf16"] * usd_s * 1e6
        assert row["usd_per_mtok_output_cost"] > 2 * cached * prompt / chip["hbm_bytes_per_s"] * usd_s * 1e6
    standard = rows["standard"]
    assert standard["pays_from"] == pytest.approx(used / (1 + standard["margin"]))
    return rows


@checks("Does Bedrock earn")
def _at_sixty(answer: dict[str, Any], written: str) -> None:
    rows = _earns(answer, 0.6)
    assert set(rows) == {"standard", "batch"}
    assert answer["against"]["sheet"] == "bedrock-llama-3.1-8b"


@checks("What if it is used only 30")
def _at_thirty(answer: dict[str, Any], written: str) -> None:
    rows = _earns(answer, 0.3)
    assert rows["standard"]["pays_from"] > 0.3  # it loses, and from where it pays does not depend on the use
    assert rows["standard"]["margin"] < rows["batch"]["margin"]


@checks("What does cached input cost")
def _cached(answer: dict[str, Any], written: str) -> None:
    entry = 2 * sizes("llama-3.1-8b")[2] * 16_000
    assert answer["entry_bytes"] == pytest.approx(entry)
    drive = record("memory", "nvme-4tb")
    (held,) = [row for row in answer["tiers"] if row["name"] == "nvme-4tb"]
    usd_hour = drive["usd_per_hour"]
    hour = entry / drive["capacity_bytes"] * usd_hour / 16_000 * 1e6
    assert held["usd_per_mtok_hour_hold"] == pytest.approx(hour, rel=0.01)
    read = entry / drive["bytes_per_s"] / 3600 * usd_hour / 16_000 * 1e6
    assert held["usd_per_mtok_retrieve"] == pytest.approx(read, rel=0.01)


@checks("Are H100 cheaper")
def _h100_or_l40s(answer: dict[str, Any], written: str) -> None:
    sides = {side["name"].partition("@")[2] or side["name"]: side["values"] for side in answer["sides"]}
    chips = {"l40s-8": record("chips", "l40s"), "dgx-h100": record("chips", "h100-sxm")}
    for name, values in sides.items():
        rent = chips[name]["rents"]["on_demand"]["usd_per_chip_hour"]  # L40S has no other price: both are compared so
        usd = values["num_chips"] * rent / (values["output_tokens_per_s"] * 3600) * 1e6
        assert values["usd_per_mtok_output_all_in"] == pytest.approx(usd, rel=1e-6)
    first, second = chips.values()
    faster = max(
        second["hbm_bytes_per_s"] / first["hbm_bytes_per_s"],
        second["peak_flop_per_s"]["bf16"] / first["peak_flop_per_s"]["bf16"],
    )
    gain = sides["dgx-h100"]["output_tokens_per_s_per_chip"] / sides["l40s-8"]["output_tokens_per_s_per_chip"]
    # more memory holds larger batches, for which weights are read once: at most its ratio more
    assert 1 < gain < faster * second["hbm_bytes"] / first["hbm_bytes"]
    assert sides["dgx-h100"]["usd_per_mtok_output_all_in"] < sides["l40s-8"]["usd_per_mtok_output_all_in"]


@checks("What do I save on spot")
def _spot(answer: dict[str, Any], written: str) -> None:
    spot, demand, known = ways(answer)["spot"], ways(answer)["on demand"], TERMS["spot"]
    assert spot["usd_per_chip_hour"] == pytest.approx(known["ratio_to_on_demand"] * demand["usd_per_chip_hour"])
    up_s = HOURS * 3600 / -math.log(1 - known["interruptions_per_month"])
    serves = up_s / (up_s + known["return_s"])
    each = demand["users"] / demand["copies"]
    assert spot["users"] == pytest.approx(spot["copies"] * each * serves, rel=1e-6)
    assert 1 - serves < 1e-4  # what is lost is little where a replacement is to be had
    assert spot["copies"] == math.floor(5000 / (spot["usd_per_chip_hour"] * HOURS))
    assert spot["estimated"]
    assert not demand["estimated"]


@checks("Which pods")
def _pods(answer: dict[str, Any], written: str) -> None:
    taken = 0
    for document in yaml.safe_load_all(written):
        if document["kind"] != "Deployment":
            continue
        pod = document["spec"]["template"]["spec"]
        for container in pod["containers"]:
            limits = container.get("resources", {}).get("limits", {})
            if "nvidia.com/gpu" in limits:
                taken += document["spec"]["replicas"] * int(limits["nvidia.com/gpu"])
                assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
                assert "H100" in pod["nodeSelector"]["nvidia.com/gpu.product"]
    assert taken == answer["best"]["num_chips"] == answer["best"]["billed_chips"] == 8


@checks("At the planned rate")
def _limits_hold(answer: dict[str, Any], written: str) -> None:
    assert answer["ttft_s"]["p99"] <= 2.0
    assert answer["tpot_s"]["p99"] <= 0.08
    mean_s = answer["ttft_s"]["mean"] + (OUTPUT - 1) * answer["tpot_s"]["mean"]
    assert answer["e2e_s"]["mean"] == pytest.approx(mean_s, rel=0.01)
    assert answer["output_tokens_per_s"] == pytest.approx(answer["requests_per_s"] * OUTPUT, rel=0.01)
    assert answer["requests_per_s"] == pytest.approx(4.0, rel=0.1)  # of 800 that arrive at random, the last included
    decoding = answer["requests_per_s"] * (OUTPUT - 1) * answer["tpot_s"]["mean"]
    # latencies leave out the first requests, which find an idle server, and the last
    assert answer["decoding_sequences"] == pytest.approx(decoding, rel=0.12)


@checks("A vendor's table")
def _vendor(answer: dict[str, Any], written: str) -> None:
    params, table, _ = sizes("llama-3.1-8b")
    least = 2 * (params - table) / record("chips", "h100-sxm")["hbm_bytes_per_s"]
    assert 0.003 < least < 0.0064
    first, second = answer["rows"]
    assert (first["verdict"], second["verdict"]) == ("explained", "plausible")
    bound = next(one for one in first["findings"] if one["check"] == "decode")["bound"]
    # the audit grants what fewer bytes might: at most a tenth less than two bytes of each weight take
    assert 0.9 * least < bound <= least * 1.001


def test_each_file_says_where_its_numbers_are_from() -> None:
    """The arithmetic above stands on these numbers, so each has a source."""
    for kind, names in {"chips": ("l40s", "h100-sxm", "b200-sxm"), "clusters": ("l40s-8", "dgx-h100")}.items():
        assert all(record(kind, name)["sources"] for name in names)
