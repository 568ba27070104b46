"""What is shared is made once: many cases of one deployment, solved together, give what each gives alone."""

from __future__ import annotations

import pytest

from rackline.errors import RacklineError
from rackline.passes.row import PassNumbers
from rackline.passes.table import TimeTable
from rackline.validation.cases import Case
from rackline.validation.predict import Predictor
from rackline.validation.resolve import Resolver

KINDS: dict[str, dict[str, object]] = {
    "serve": {"input_len": 1000, "output_len": 200, "concurrency": 8},
    "static-batch": {"input_len": 1000, "output_len": 200, "batch_size": 8},
    "max-throughput": {"input_len": 1000, "output_len": 200},
}


def cases(kind: str, count: int) -> list[Case]:
    found: list[Case] = []
    for number in range(count):
        values = {key: int(str(value)) + 37 * number for key, value in KINDS[kind].items()}
        found.append(
            Case(
                case_id=f"{kind}-{number}",
                kind=kind,
                where="here",
                measured={},
                model="llama-3.1-8b",
                chip="h100-sxm",
                num_chips=2,
                stack=("vllm", "trtllm", "sglang")[number % 3],
                precision="bf16",
                layout={"tp": 1 + number % 2},
                values=values,
            )
        )
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_cases_together_give_what_each_gives_alone(kind: str) -> None:
    many = cases(kind, 12)
    together = Predictor(resolver=Resolver()).predict_all(many)
    for case, found in zip(many, together, strict=True):
        assert found == pytest.approx(Predictor(resolver=Resolver()).predict(case), rel=1e-12)


def test_a_case_without_an_answer_leaves_the_others_theirs() -> None:
    many = cases("serve", 6)
    too_long = Case(
        **{name: getattr(many[0], name) for name in Case.__slots__ if name != "values"}
        | {"values": {**many[0].values, "input_len": 50_000_000}}
    )
    alone = Predictor(resolver=Resolver()).predict_all(many)
    mixed = Predictor(resolver=Resolver()).predict_all([too_long, *many])
    assert isinstance(mixed[0], RacklineError)
    assert mixed[1:] == [pytest.approx(found, rel=1e-12) for found in alone]


def test_rates_are_put_into_a_table_once_a_deployment_and_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    build = TimeTable.build.__func__

    def counted(cls: type[TimeTable], numbers: PassNumbers, policy: str) -> TimeTable:
        built.append(policy)
        return build(cls, numbers, policy)

    monkeypatch.setattr(TimeTable, "build", classmethod(counted))
    Predictor(resolver=Resolver()).predict_all(cases("serve", 60))
    assert len(built) == 6  # three stacks and two layouts
