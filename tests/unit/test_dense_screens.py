"""Screens of a dense model do not speak of experts; those of a mixture do."""

from __future__ import annotations

import pytest

from rackline.cli.main import run

DENSE, MIXTURE = "llama-3.1-8b", "qwen3-30b-a3b"
PLAN = "plan {model} --on dgx-h100 --chips 2 --input 2k --output 200 --calibration vllm"
SCREENS = (
    PLAN,
    f"{PLAN} --full",
    f"{PLAN} --launch",
    "plan {model} --on l40s-8 --chips 1 --input 2k --output 200 --calibration vllm --tpot 1ms",
    "explain {model} --on dgx-h100 --batch 8 --context 2k",
    "explain {model} --on dgx-h100 --batch 0 --prefill 2k --context 2k --layout tp=2",
    "simulate {model} --on dgx-h100 --layout tp=1 --chips 1 --rate 2 --requests 60 --input 1k --output 50",
    "price {model} --on dgx-h100 --calibration vllm",
    "compare {model}@dgx-h100 {model}@dgx-a100 --input 1k --output 100 --calibration vllm",
    "compare {model} llama-3.1-70b",
    "fit {model} --on dgx-h100",
    "fit {model} --on l4-8 --chips 1 --context 100k",
    "tiers {model} --on dgx-h100",
    "models {model}",
)


@pytest.mark.parametrize("command", SCREENS)
def test_the_screen_of_a_dense_model_has_no_experts(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.format(model=DENSE).split()) in (0, 1)
    screen = capsys.readouterr().out.lower()
    assert DENSE in screen
    for word in ("expert", "log-normal", "moe_tp"):
        assert word not in screen, word


@pytest.mark.parametrize("command", [f"{PLAN} --full", "explain {model} --on dgx-h100 --batch 8 --context 2k"])
def test_the_screen_of_a_mixture_has_them(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.format(model=MIXTURE).split()) == 0
    assert "expert" in capsys.readouterr().out.lower()
