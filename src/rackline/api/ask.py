"""`ask`: a file of questions, each answered; lists of values ask every combination."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, cast

from rackline.api.answer import Answer, Watch, answer_of, asks, find_verb
from rackline.api.question import Question, option, options, question
from rackline.api.verbs import Entry
from rackline.errors import InputError, RacklineError, require
from rackline.files import parse_json, parse_toml, read_text
from rackline.late import late
from rackline.units import several

with late:
    from rackline.report import plan_report

MOST_QUESTIONS = 10_000
_JSON = re.compile(r"\s*(\{|\[\s*\{)")  # how JSON begins and TOML does not


@question
class AskQuestion(Question):
    """What are the answers to a file of questions?"""

    file: str = option(
        "text",
        'TOML with [[questions]] such as ask = "plan", model = "llama-3.1-70b", on = ["dgx-h100", "dgx-h200"], or '
        "JSON with a list of the same; a list of values asks one question per value, several lists ask every "
        "combination",
        kw_only=False,
    )


class AskedData(TypedDict):
    """A question as it was asked, with its answer (of the schema of that question's answers) or its error."""

    question: dict[str, Any]
    answer: NotRequired[dict[str, Any]]
    error: NotRequired[str]


class AnswersData(TypedDict):
    """The questions of a file in their order."""

    answers: list[AskedData]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question of a file, with its answer or what is wrong with it.

    Args:
        question: as it was asked, lists taken apart.
        answer: None where there is none.
        error: empty where there is an answer.
    """

    question: Mapping[str, Any]
    answer: Answer[Any, Any] | None
    error: str = ""

    def to_dict(self) -> AskedData:
        """The question with its answer, or with its error."""
        if self.answer is None:
            return {"question": dict(self.question), "error": self.error}
        found = self.answer.to_dict()
        return {"question": found.pop("question"), "answer": found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The questions of a file in their order.

    Args:
        answers: each with its answer or error.
    """

    answers: tuple[Asked, ...]


def _text(answer: Answer[AskQuestion, Answers], width: int) -> Iterable[Any]:
    rows = [(str(one.question.get("ask", "?")), _words(one.question), *_outcome(one)) for one in answer.result.answers]
    yield plan_report.answers_table(rows)


def _outcome(one: Asked) -> tuple[str, bool]:
    """What is shown of an answer, and whether it is one."""
    return (one.error, False) if one.answer is None else (one.answer.verb.summary(one.answer), True)


def _words(question: Mapping[str, Any]) -> str:
    parts = {name: value for name, value in question.items() if name not in ("ask", "model", "on")}
    head = " on ".join(str(question[name]) for name in ("model", "on") if name in question)
    return " ".join([head, *(f"{name}={value}" for name, value in parts.items())]).strip()


def _data(answer: Answer[AskQuestion, Answers]) -> AnswersData:
    return {"answers": [one.to_dict() for one in answer.result.answers]}


def _summary(answer: Answer[AskQuestion, Answers]) -> str:
    found = answer.result.answers
    failed = sum(one.answer is None for one in found)
    return f"{len(found) - failed} of {several(len(found), 'question')} answered"


def _rows(answer: Answer[AskQuestion, Answers]) -> Iterable[Any]:
    for one in answer.result.answers:
        words, answered = _outcome(one)
        yield {**one.question, "answer": words if answered else None, "error": None if answered else words}


@asks(
    AskQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    data=_data,
    status=lambda answer: 2 if any(one.answer is None for one in answer.result.answers) else 0,
    entry=Entry(
        group="Programs",
        place=0,
        line="Answer a file of questions: one table, one JSON.",
        request={
            "file": "questions.toml",
            "uploads": {
                "questions.toml": '[[questions]]\nask = "fit"\nmodel = "llama-3.1-8b"\non = ["dgx-h100", "l40s-8"]\n'
            },
        },
        is_long=True,
        examples="""
    rackline ask questions.toml
    rackline ask questions.toml --json

with questions.toml such as

    [[questions]]
    ask = "fit"
    model = ["llama-3.1-70b", "deepseek-v3"]
    on = ["dgx-h200", "gb200-nvl72"]
    context = "32k"
""",
    ),
)
def ask(question: AskQuestion, watch: Watch) -> Answers:
    """Answer a file of questions: one table, one JSON; a bad question is a row with its error.

    Example:
        >>> import rackline as rl
        >>> from pathlib import Path
        >>> file = Path("questions.toml")
        >>> _ = file.write_text('[[questions]]\\nask = "fit"\\nmodel = "llama-3.1-8b"\\non = ["dgx-h100", "l40s-8"]')
        >>> rl.ask("questions.toml")
        <ask: 2 of 2 questions answered>
        >>> file.unlink()
    """
    asked = list(itertools.islice(_expanded(read_questions(question.file)), MOST_QUESTIONS + 1))
    require(
        len(asked) <= MOST_QUESTIONS,
        what=question.file,
        given="more",
        allowed=f"at most {MOST_QUESTIONS:,} questions, with lists expanded",
    )
    found: list[Asked] = []
    with watch.counting("asking", "answered") as done:
        for number, one in enumerate(asked, start=1):
            found.append(ask_one(one))
            done(_words(one), number, len(asked))
    return Answers(answers=tuple(found))


def ask_one(data: Mapping[str, Any]) -> Asked:
    """Answer one question of a file; what is wrong with it becomes its error."""
    try:
        verb = find_verb(str(data.get("ask", "")))
        if verb.question is AskQuestion:
            raise InputError(what="ask", given="ask", allowed="a question that is not a file of questions")
        answer = answer_of(verb.question.from_data(data), verb.solve)
    except RacklineError as error:
        return Asked(question=data, answer=None, error=str(error))
    return Asked(question=data, answer=answer)


def read_questions(file: str) -> list[Mapping[str, Any]]:
    """The questions of a TOML or JSON file, as they are written.

    Raises:
        InputError: not such a file.
    """
    text = read_text(file, what="questions", allowed="a TOML or JSON file of questions")
    allowed = '[[questions]] with ask = "plan" and its options, or a JSON list of the same'
    try:
        data: Any = parse_json(text) if file.endswith(".json") or _JSON.match(text) else parse_toml(text)
    except ValueError as error:
        raise InputError(what=file, given=str(error), allowed=allowed) from None
    if isinstance(data, Mapping):
        table = cast("Mapping[str, Any]", data)
        require(set(table) == {"questions"}, what=file, given=", ".join(table) or "nothing", allowed=allowed)
        data = table["questions"]
    listed = cast("list[Any]", data) if isinstance(data, list) else None
    if listed is None or not all(isinstance(one, Mapping) for one in listed):
        raise InputError(what=file, given="something else", allowed=allowed)
    return listed


def _expanded(questions: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Every combination of the lists that stand in place of one value."""
    for data in questions:
        try:
            known = options(find_verb(str(data.get("ask", ""))).question)
        except RacklineError:
            yield data
            continue
        lists = {
            name: cast("list[Any]", value)
            for name, value in data.items()
            if isinstance(value, list) and name in known and not known[name].several and known[name].kind != "settings"
        }
        for values in itertools.product(*lists.values()):
            yield {**data, **dict(zip(lists, values, strict=True))}
