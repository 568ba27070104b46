"""Images and sound of requests in the answers about serving: tokens, encoders and memory, the same in all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rackline as rl
from helpers import VISION_CONFIG
from rackline.arch import Media, MediaPart, Model, with_media
from rackline.arch.hf_towers import tower_of
from rackline.errors import HubError, InputError, UnknownNameError
from rackline.parallel import LayoutGrid, build_table, enumerate_layouts, precision as find_precision
from rackline.passes import UNIT, Batch

ON: dict[str, Any] = {"on": "dgx-h100"}
TOKENS = 2 * (32 * 32 + 2)  # of two images of 1024 by 1024
TOWER = tower_of(VISION_CONFIG, "vision")
IMAGE = MediaPart(tower=TOWER, view=TOWER.image(1024, 1024), items=2)


@pytest.fixture(scope="module")
def vl(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("vl")
    (folder / "config.json").write_text(json.dumps(VISION_CONFIG), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("layout", ["tp=1", "tp=4"])
def test_rows_of_the_encoder_add_up_to_its_pass(vl: str, layout: str) -> None:
    encoded = rl.encode(vl, images=2, prompt=50, layout=layout, **ON).result
    with_images = rl.explain(vl, batch=0, context=1, prefill=50, images=2, layout=layout, **ON).result.explanation
    text = rl.explain(vl, batch=0, context=1, prefill=50 + TOKENS, layout=layout, **ON).result.explanation
    assert with_images.prefill_tokens == encoded.prompt_tokens == 50 + TOKENS
    assert with_images.time.seconds - text.time.seconds == pytest.approx(encoded.towers[0].seconds, rel=1e-3)
    rows = [row for row in with_images.rows if row.row.group == "vision tower"]
    assert sum(row.seconds for row in rows) == pytest.approx(encoded.towers[0].seconds, rel=1e-3)
    flop = sum(row.time.amounts.get("compute", 0.0) for row in rows)
    assert flop * int(layout[-1]) == pytest.approx(encoded.towers[0].flop, rel=1e-3)


def test_chunks_of_a_prompt_take_what_its_whole_takes(vl: str) -> None:
    found = rl.explain(vl, batch=0, context=1, prefill=948, images=2, layout="tp=1", **ON).result.explanation

    def tower_s(chunk: float, before: float) -> float:
        time = found.table.time(Batch(prefill_sequences=1.0, chunk_tokens=chunk, prefix_tokens=before))
        return sum(row.seconds for row in time.rows if row.group == "vision tower" and row.used)

    assert tower_s(1000, 0) + tower_s(2000, 1000) == pytest.approx(tower_s(3000, 0))


def test_a_decode_step_has_no_encoder(vl: str) -> None:
    plain = rl.explain(vl, batch=32, context=1000 + TOKENS, layout="tp=1", **ON).result.explanation
    images = rl.explain(vl, batch=32, context=1000, images=2, layout="tp=1", **ON).result.explanation
    assert images.time.seconds == plain.time.seconds
    assert images.memory.weights["vision_tower"] == plain.memory.weights["towers"] == 2.0 * TOWER.model.total_params
    assert images.memory.weight_total == plain.memory.weight_total  # an engine loads the tower for text as well


def test_a_grid_of_layouts_has_the_rows_of_each(vl: str) -> None:
    model = with_media(rl.model(vl), Media(parts=(IMAGE,), prompt_len=3000.0))
    assert isinstance(model, Model)
    cluster = rl.cluster("dgx-h100")
    layouts = enumerate_layouts(model, 8)
    types = find_precision("bf16", model, cluster.chip)
    batch = Batch(prefill_sequences=1.0, chunk_tokens=np.array([3000.0]))
    together = build_table(model, cluster, LayoutGrid.of(layouts), types, UNIT).seconds(batch)
    for layout, seconds in zip(layouts, together[:, 0], strict=True):
        assert build_table(model, cluster, layout, types, UNIT).seconds(batch)[0] == pytest.approx(seconds)


def test_a_tower_whose_heads_cannot_be_spread_runs_whole_on_each_chip() -> None:
    from rackline.parallel import Layout
    from rackline.parallel.work import tower_bytes, tower_layout

    assert tower_layout(TOWER.model, Layout(tp=3)) == Layout(tp=1)
    held = tower_bytes(with_media(rl.model("llama-3.1-8b"), Media(parts=(IMAGE,))), Layout(tp=3))
    assert float(held["vision_tower"]) == 2.0 * TOWER.model.total_params


def test_fit_holds_the_tower_and_longer_contexts(vl: str) -> None:
    plain = rl.fit(vl, context=1000 + TOKENS, layout="tp=1", **ON).result.capacity
    images = rl.fit(vl, context=1000, images=2, layout="tp=1", **ON).result.capacity
    assert images.context_len == plain.context_len
    assert images.rows[0].weights_bytes == plain.rows[0].weights_bytes
    bare = rl.fit(replace(rl.model(vl), tower_params=0), context=1000 + TOKENS, layout="tp=1", **ON).result.capacity
    held = images.rows[0].weights_bytes - bare.rows[0].weights_bytes
    assert held == 2.0 * TOWER.model.total_params


def test_plan_and_simulation_pay_the_encoder(vl: str) -> None:
    asked: dict[str, Any] = {"output": 100, "chips": 1, "layout": "tp=1", "serving": "aggregated", **ON}
    precision = {"precision": "bf16"}
    plain = rl.plan(vl, input=1000 + TOKENS, ttft="1s", **asked, **precision)
    images = rl.plan(vl, input=1000, images=2, ttft="1s", **asked, **precision)
    best, other = images.result.plan.best, plain.result.plan.best
    assert best.requests_per_s < other.requests_per_s
    assert best.usd_per_mtok_input > other.usd_per_mtok_input
    assert best.inside.memory.weights["vision_tower"] == 2.0 * TOWER.model.total_params
    data = images.to_dict()
    assert data["media"][0]["tokens"] == TOKENS
    printed = "\n".join(
        getattr(part, "plain", str(part)) for part in images.text(100) if not hasattr(part, "renderables")
    )
    assert "each prompt brings 2 images of 1024x1024 pixels" in printed
    run: dict[str, Any] = {"output": 100, "chips": 1, "rate": 2, "requests": 300, "layout": "tp=1", **ON}
    served = rl.simulate(vl, input=1000, images=2, **run).to_dict()
    without = rl.simulate(vl, input=1000 + TOKENS, **run).to_dict()
    encoder_s = rl.encode(vl, images=2, prompt=1000, layout="tp=1", **ON).result.towers[0].seconds
    assert served["ttft_s"]["mean"] - without["ttft_s"]["mean"] == pytest.approx(encoder_s, rel=0.2)


def test_the_simulated_server_takes_the_encoder_once_a_prompt(vl: str) -> None:
    """One request at a time: its time to first token is that of its pass."""
    run: dict[str, Any] = {"output": 5, "chips": 1, "users": 1, "requests": 3, "layout": "tp=1", **ON}
    images = rl.simulate(vl, input=1000, images=2, **run).to_dict()["ttft_s"]["mean"]
    text = rl.simulate(vl, input=1000 + TOKENS, **run).to_dict()["ttft_s"]["mean"]
    encoder_s = rl.encode(vl, images=2, prompt=1000, layout="tp=1", **ON).result.towers[0].seconds
    assert images - text == pytest.approx(encoder_s, rel=0.05)


def test_conversations_bring_images_with_each_message(vl: str) -> None:
    run: dict[str, Any] = {"output": 50, "chips": 1, "rate": 1, "requests": 40, "turns": 3, "think_time": "1s", **ON}
    images = rl.simulate(vl, input=200, images=1, prefix_caching=True, **run).result.requests
    text = rl.simulate(vl, input=200, prefix_caching=True, **run).result.requests
    assert images.input_len.sum() > text.input_len.sum() + 40 * 1026 * 0.99


def test_price_has_a_price_of_the_images(vl: str) -> None:
    found = rl.price(vl, images=2, contexts="4k,32k", layout="tp=1", **ON)
    media = found.result.offered.media[0]
    assert (media.until_len, media.tokens) == (4000, TOKENS)
    encoder_s = rl.encode(vl, images=2, prompt=1, layout="tp=1", **ON).result.towers[0].seconds
    assert media.encoder_chip_s == pytest.approx(encoder_s, rel=0.35)
    tokens_usd = TOKENS * found.result.offered.tiers[0].input_usd
    assert media.usd > tokens_usd
    terms, rent = found.result.offered.terms, found.result.offered.rent
    encoders_usd = rent.usd_per_chip_hour / 3600.0 * terms.price_over_cost * media.encoder_chip_s
    assert media.usd - tokens_usd == pytest.approx(encoders_usd)
    assert rl.price(vl, contexts="4k", layout="tp=1", **ON).result.offered.media == ()


def test_what_has_no_tower_is_refused(vl: str) -> None:
    with pytest.raises((HubError, UnknownNameError)):
        rl.fit("llama-3.1-8b", images=1, offline=True, **ON)
    with pytest.raises(InputError, match=r"audio: got 30\.0, allowed: `images` alone, which the vision tower"):
        rl.fit(vl, audio="30s", **ON)
    with pytest.raises(InputError, match="image_size"):
        rl.fit(vl, images=1, image_size="0x1", **ON)
    with pytest.raises(InputError, match="model object"):
        rl.fit(rl.model(vl), images=1, **ON)
