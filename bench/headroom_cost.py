"""What headroom costs: 20 common questions, with the usual headroom and without.

    uv run python bench/headroom_cost.py

Prints for each question the cost with headroom over the cost without, and the median.
"""

from __future__ import annotations

from statistics import median

import rackline as rl

USES = ({"use": "chat"}, {"use": "agents"}, {"use": "summarise"}, {"input": 1000, "output": 1000, "tpot": "30ms"})
DEPLOYMENTS = (
    ("llama-3.1-8b", "dgx-h100"),
    ("llama-3.1-70b", "dgx-h100"),
    ("qwen3-30b-a3b", "dgx-h200"),
    ("gpt-oss-120b", "dgx-b200"),
    ("deepseek-v3", "dgx-b200"),
)


def main() -> None:
    """Ask and print."""
    ratios: list[float] = []
    for model, on in DEPLOYMENTS:
        for use in USES:
            answer = rl.plan(model, on=on, **use).result
            risk = answer.risk
            if risk is None or risk.usd_without is None:
                print(f"{model} on {on} for {use}: {answer.plan.reason or 'no limits'}")
                continue
            ratios.append(risk.usd / risk.usd_without)
            print(f"{model} on {on} for {use}: ${risk.usd:.3g} and ${risk.usd_without:.3g}, {ratios[-1]:.2f}")
    print(f"median of {len(ratios)}: {median(ratios):.2f}, largest {max(ratios):.2f}")


if __name__ == "__main__":
    main()
