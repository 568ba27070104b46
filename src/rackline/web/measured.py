"""Published measurements that ship with the library, beside what it predicts: for the page."""

from __future__ import annotations

import functools
import importlib.resources
import json
import tomllib
from typing import Any

from rackline.errors import RacklineError
from rackline.late import late

with late:
    from rackline import catalog, parallel, pricing, validation
    from rackline.validation import published


_MOSTLY_OUTPUT = 4.0  # output over prompt tokens from which on a server's time per output token is about a decode step


@functools.cache
def _cases() -> dict[str, dict[str, Any]]:
    """The cases as they are written, by id."""
    lines = published.published().read_text(encoding="utf-8").splitlines()
    return {case["id"]: case for case in map(json.loads, lines)}


@functools.cache
def beside(kind: str) -> list[dict[str, Any]]:
    """Published measurements that stand beside curves: entries of a kind of `measured.toml`."""
    file = importlib.resources.files("rackline.web").joinpath("measured.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))[kind]


def parity() -> dict[str, Any]:
    """Every measured value with the predicted one."""
    rows: list[dict[str, Any]] = []
    for score in validation.validate([published.published()]).scores:
        case = _cases()[score.case_id]
        rows.append(
            {
                "id": score.case_id,
                "kind": case["kind"],
                "metric": score.metric,
                "measured": score.measured,
                "predicted": score.predicted,
                "model": catalog.canonical_name("models", score.groups["model"]) or score.groups["model"],
                "chip": score.groups["chip"],
                "stack": score.groups["stack"],
                "version": case.get("stack_version", ""),
                "precision": score.groups["precision"],
                "chips": case["num_chips"],
                "source": case["source"],
            }
        )
    return {"rows": rows}


def asked_prices() -> dict[str, Any]:
    """What hosts of open models ask for a million tokens of short prompts [USD]."""
    rows: list[dict[str, Any]] = []
    for sheet in pricing.all_sheets():
        tier = sheet.standard
        if sheet.model is not None and tier is not None:
            usd = {"input": tier.input_usd, "cached": tier.cached_input_usd, "output": tier.output_usd}
            per_mtok = {name: None if one is None else 1e6 * one for name, one in usd.items()}
            rows.append({"model": sheet.model, "provider": sheet.provider, "date": sheet.date, **per_mtok})
    return {"rows": rows}


def decode_points(deployment: parallel.Deployment) -> list[dict[str, Any]]:
    """Measured decode steps of a deployment: sequences, their mean context [tokens], the step [s].

    A static batch's time per token is its mean step. A server's time per output token contains the prefill of others:
    it counts where requests have at least four output tokens for each prompt token.
    """
    return [
        {
            "id": case["id"],
            "batch_size": case.get("batch_size") or case["concurrency"],
            "context_len": case["input_len"] + case["output_len"] / 2,
            "seconds": case["measured"].get("token_s") or case["measured"]["tpot_s"],
            "stack": f"{case['stack']} {case.get('stack_version', '')}".strip(),
            "source": case["source"],
        }
        for case in _cases().values()
        if _is_of(case, deployment) and _is_decode(case)
    ]


def _is_of(case: dict[str, Any], deployment: parallel.Deployment) -> bool:
    layout, chip = deployment.layout, deployment.cluster.chip
    if (case["chip"], case["num_chips"]) != (chip.name, layout.chips_per_replica):
        return False
    try:
        named = catalog.model_record(case["model"]).name
    except RacklineError:  # a model that only the case describes
        return False
    if named != deployment.model.name:
        return False
    types = parallel.precision(case["precision"], deployment.model, chip)
    degrees = {"tp": 1, "pp": 1, "attention_dp": 1, "ep": 1, **case["layout"]}
    same = all(getattr(layout, name) == degrees[name] for name in ("tp", "pp", "attention_dp", "ep"))
    return same and types.short() == deployment.precision.short()


def _is_decode(case: dict[str, Any]) -> bool:
    if case["kind"] == "static-batch":
        return "token_s" in case["measured"] and bool(case.get("output_len"))
    return case["kind"] == "serve" and case["output_len"] >= _MOSTLY_OUTPUT * case["input_len"]
