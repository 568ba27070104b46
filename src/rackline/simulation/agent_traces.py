"""Recorded tasks of agents: a reader for each public format, recognised by the keys of its first object.

Where a format says when calls began and ended, but not what they waited for, a call waits for the last of its agent
that had ended, a subagent for the call before it, and the next call of the parent for subagents that had ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, cast

from rackline.errors import InputError, nearest_name, require
from rackline.files import read_lines
from rackline.simulation.calls import HASH_TOKENS, Before, Calls
from rackline.simulation.requests import Requests

CHARACTERS_A_TOKEN = 4.0
"""Characters of a token of English text, for files without counts (OpenAI, help.openai.com: what are tokens)."""
MAX_CHARACTERS = 512 * 2**20
_MOONCAKE_TOKENS = 512  # of a block of a Mooncake trace without a header (arXiv:2407.00079)
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError)

Document = Mapping[str, Any]


class Line(NamedTuple):
    """An object of a file, and where it stands."""

    where: str
    number: int
    data: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """A format.

    Args:
        name: for messages.
        looks: what it looks like, for messages.
        knows: whether the first object of a file is of it.
        read: adds the tasks of the objects of a file to the calls.
        is_estimate: whether lengths are taken from characters.
    """

    name: str
    looks: str
    knows: Callable[[Document], bool]
    read: Callable[[Calls, Sequence[Line], Reading], None]
    is_estimate: bool = False


@dataclass(slots=True, kw_only=True)
class Reading:
    """State while files are read.

    Args:
        skip_bad: skip malformed objects and count them.
        answer_tokens: of calls whose answer has no length; None where there is none [tokens].
        skipped: malformed ones so far [count].
        tasks: numbers of tasks, by their names in the file.
        paths: contexts so far [count].
    """

    skip_bad: bool = False
    answer_tokens: int | None = None
    skipped: int = 0
    tasks: dict[object, int] = field(default_factory=dict[object, int])
    paths: int = 0

    def task(self, name: object) -> int:
        """Number of a task."""
        return self.tasks.setdefault(name, len(self.tasks))

    def path(self) -> int:
        """Number of a new context."""
        self.paths += 1
        return self.paths - 1

    def each(self, lines: Sequence[Line], read: Callable[[Line], None]) -> None:
        """Read objects one by one; a malformed one is an error with its place, or skipped and counted."""
        for line in lines:
            try:
                read(line)
            except _MALFORMED as error:
                self.skipped += 1
                if not self.skip_bad:
                    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
                    raise InputError(
                        what="task", given=json.dumps(line.data)[:80], allowed=f"whole tasks ({reason[:80]})",
                        where=line.where, nearest="--skip-bad",
                    ) from error  # fmt: skip


@dataclass(slots=True, kw_only=True)
class _Timed:
    """A call of an agent with its times [s], lengths [tokens] and block ids, or a subagent with its own calls."""

    start_s: float
    end_s: float
    prompt: int = 0
    answer: int = 0
    blocks: Sequence[object] | None = None
    inner: list[_Timed] | None = None

    def __post_init__(self) -> None:
        if self.end_s < self.start_s or min(self.prompt, self.answer) < 0:
            raise ValueError("a call that ends before it begins, or a length below 0")


class _Ended(NamedTuple):
    """A call that was added, and when it had ended [s]."""

    call: int
    end_s: float


def _add_agent(
    calls: Calls, reading: Reading, task: int, items: Sequence[_Timed], spawner: _Ended | None, line: int
) -> _Ended | None:
    """Add the calls of an agent and its subagents; returns the one that ended last."""
    path, longest = reading.path(), 0
    own: list[_Ended] = []
    forks: list[_Ended] = []
    for item in sorted(items, key=lambda one: one.start_s):
        last = max((one for one in own if one.end_s <= item.start_s + 1e-9), key=lambda one: one.end_s, default=spawner)
        if item.inner is not None:
            done = _add_agent(calls, reading, task, item.inner, last, line)
            forks += [done] if done is not None else []
            continue
        joined = [one for one in forks if one.end_s <= item.start_s + 1e-9]
        forks = [one for one in forks if one not in joined]
        if item.prompt < longest:  # compacted
            path = reading.path()
        longest = item.prompt + item.answer
        waits = [one for one in (last, *joined) if one is not None]
        before = [Before(one.call, max(item.start_s - one.end_s, 0.0)) for one in waits]
        number = calls.add(
            task, item.prompt, item.answer, path=path, before=before, start_s=0.0 if before else item.start_s,
            blocks=item.blocks, line=line,
        )  # fmt: skip
        own.append(_Ended(number, item.end_s))
    return max([*own, *forks], key=lambda one: one.end_s, default=None)


def _blocks(scope: object, row: Document) -> list[tuple[object, object]] | None:
    """The block ids of a prompt within their scope; None where it has none."""
    ids = row.get("hash_ids")
    if ids is not None and not isinstance(ids, list):
        raise ValueError("hash_ids are no list")
    return None if ids is None else [(scope, one) for one in cast("list[object]", ids)]


# Weka and AgentX: one object a session (aiperf docs/tutorials/weka-trace.md)


def _weka(calls: Calls, lines: Sequence[Line], reading: Reading) -> None:
    calls.hash_tokens = int(lines[0].data.get("block_size", HASH_TOKENS))

    def items(rows: Sequence[Document], scope: object, shift_s: float) -> list[_Timed]:
        found: list[_Timed] = []
        for row in rows:
            start_s = float(row["t"]) + shift_s
            if row.get("type") == "subagent":
                inner = cast("list[Document]", row["requests"])
                # relative to the marker, or to the start of the trace
                first_s = min((float(one["t"]) for one in inner), default=0.0)
                relative = first_s < float(row["t"]) - 1e-6
                found.append(
                    _Timed(start_s=start_s, end_s=start_s, inner=items(inner, scope, start_s if relative else shift_s))
                )
                continue
            found.append(
                _Timed(
                    start_s=start_s, end_s=start_s + float(row.get("api_time") or 0.0), prompt=int(row["in"]),
                    answer=int(row["out"]), blocks=_blocks(scope, row),
                )
            )  # fmt: skip
        return found

    def read(line: Line) -> None:
        data = line.data
        name = data.get("id", line.where)
        scope = (line.where, name) if data.get("hash_id_scope", "local") == "local" else ""
        _add_agent(
            calls, reading, reading.task((line.where, name)), items(data["requests"], scope, 0.0), None, line.number
        )

    reading.each(lines, read)


# Agentic Mooncake v1 and v2, and Mooncake with sessions (ai-dynamo/dynamo, trace format and DynoSim replay)


def _mooncake(calls: Calls, lines: Sequence[Line], reading: Reading) -> None:
    header = lines[0].data if "version" in lines[0].data and "input_length" not in lines[0].data else None
    calls.hash_tokens = int((header or {}).get("block_size", _MOONCAKE_TOKENS))
    is_local = (header or {}).get("hash_id_scope") == "local"
    known: dict[object, int] = {}
    last: dict[object, int] = {}

    def waits(row: Document, session: object) -> list[Before]:
        pause_s = 1e-3 * (float(row.get("delay") or 0.0) + float(row.get("tool_wait_ms") or 0.0))
        if "dependencies" in row:
            found: list[Before] = []
            for one in row["dependencies"]:
                call, more_s = known[one["predecessor"]], 1e-3 * float(one.get("delay_ms", one.get("delay", 0.0)))
                if one.get("trigger", "completion") == "dispatch":  # it waits for what that one waits for
                    found += [Before(call, pause_s + more_s) for call, pause_s in calls.before[call]]
                else:
                    found.append(Before(call, more_s))
            return found
        if "wait_for" in row or "request_id" in row:
            return [Before(known[one], pause_s) for one in row.get("wait_for") or ()]
        return [Before(last[session], pause_s)] if session in last else []

    def read(line: Line) -> None:
        row = line.data
        session = row.get("session_id", line.number)
        before = waits(row, session)
        name = row.get("play_id", row.get("task_id"))
        if name is None and before:
            task = calls.task[before[0].call]
        else:
            task = reading.task(name if name is not None else str(session).split(":")[0])
        start_s = 0.0 if before else 1e-3 * float(row.get("timestamp") or row.get("not_before_ms") or 0.0)
        scope = name if is_local else ""
        number = calls.add(
            task, int(row["input_length"]), int(row["output_length"]), path=_path_of(calls, reading, before, row),
            before=before, start_s=start_s, line=line.number, blocks=_blocks(scope, row),
        )  # fmt: skip
        known[row.get("request_id", number)] = last[session] = number

    reading.each(lines if header is None else lines[1:], read)


def _path_of(calls: Calls, reading: Reading, before: Sequence[Before], row: Document) -> int:
    """The context that a prompt goes on with: that of a call before it, unless it is shorter."""
    grows = [one.call for one in before if calls.input_len[one.call] <= int(row["input_length"])]
    return reading.path() if not grows or row.get("prefix_reset") else calls.path[grows[0]]


# OpenTelemetry: spans of the GenAI conventions as OTLP JSON (open-telemetry/semantic-conventions-genai)

_CALLS = ("chat", "text_completion", "generate_content")


def _otel(calls: Calls, lines: Sequence[Line], reading: Reading) -> None:
    spans = [
        (line, span)
        for line in lines
        for resource in line.data.get("resourceSpans", ())
        for scope in resource.get("scopeSpans", ())
        for span in scope.get("spans", ())
    ]
    parents = {span["spanId"]: span.get("parentSpanId") or "" for _, span in spans}
    kinds = {span["spanId"]: _attributes(span).get("gen_ai.operation.name") for _, span in spans}
    agents: dict[object, dict[str, list[_Timed]]] = {}
    places: dict[object, int] = {}

    def agent_of(span_id: str) -> str:
        while span_id and kinds.get(span_id) != "invoke_agent":
            span_id = parents.get(span_id, "")
        return span_id

    def read(line: Line) -> None:
        span, facts = line.data, _attributes(line.data)
        kind = facts.get("gen_ai.operation.name")
        if kind not in (*_CALLS, "invoke_agent"):
            return
        name = facts.get("gen_ai.conversation.id", span["traceId"])
        start_s, end_s = (1e-9 * int(span[key]) for key in ("startTimeUnixNano", "endTimeUnixNano"))
        task = agents.setdefault(name, {})
        places.setdefault(name, line.number)
        mine = task.setdefault(agent_of(parents[span["spanId"]]), [])
        if kind == "invoke_agent":
            mine.append(_Timed(start_s=start_s, end_s=end_s, inner=task.setdefault(span["spanId"], [])))
            return
        prompt, answer = (int(facts[f"gen_ai.usage.{side}_tokens"]) for side in ("input", "output"))
        mine.append(_Timed(start_s=start_s, end_s=end_s, prompt=prompt, answer=answer))

    reading.each([Line(line.where, line.number, span) for line, span in spans], read)
    origin_s = min((one.start_s for task in agents.values() for some in task.values() for one in some), default=0.0)
    for name, task in agents.items():
        for one in chain.from_iterable(task.values()):
            one.start_s, one.end_s = one.start_s - origin_s, one.end_s - origin_s
        _add_agent(calls, reading, reading.task(name), task.get("", []), None, places[name])


def _attributes(span: Document) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in span.get("attributes", ())}


# Conversations (ShareGPT, chat messages) and inputs of aiperf (docs/tutorials/custom-dataset.md): texts


def _tokens(text: object) -> int:
    if isinstance(text, list):  # parts of a message
        return sum(_tokens(cast("Document", one).get("text", "")) for one in cast("list[object]", text))
    return max(round(len(str(text or "")) / CHARACTERS_A_TOKEN), 1)


def _add_chain(
    calls: Calls, reading: Reading, line: Line, name: object, steps: Sequence[tuple[int, int, float]]
) -> None:
    """Add a task of calls one after another: (prompt, answer [tokens], pause before it [s])."""
    path, task, before = reading.path(), reading.task(name), list[int]()
    for prompt, answer, pause_s in steps:
        waits = [Before(call, pause_s) for call in before]
        before = [calls.add(task, prompt, answer, path=path, before=waits, line=line.number)]


def _conversations(calls: Calls, lines: Sequence[Line], reading: Reading) -> None:
    def read(line: Line) -> None:
        context, steps = 0, list[tuple[int, int, float]]()
        for one in line.data.get("conversations") or line.data["messages"]:
            size = _tokens(one.get("value", one.get("content")))
            if one.get("from", one.get("role")) in ("gpt", "assistant", "model", "chatgpt"):
                steps.append((context, size, 0.0))
            context += size
        _add_chain(calls, reading, line, line.where, steps)

    reading.each(lines, read)


def _turns(calls: Calls, lines: Sequence[Line], reading: Reading) -> None:
    def read(line: Line) -> None:
        context, steps = 0, list[tuple[int, int, float]]()
        for one in line.data["turns"]:
            context += sum(map(_tokens, one.get("texts") or [one.get("text", one.get("prompt"))]))
            steps.append((context, _answer(one, reading), 1e-3 * float(one.get("delay") or 0.0)))
            context += steps[-1][1]
        _add_chain(calls, reading, line, (line.where, line.data.get("session_id")), steps)

    reading.each(lines, read)


def _payloads(calls: Calls, lines: Sequence[Line], reading: Reading) -> None:
    def read(line: Line) -> None:
        for session in line.data["data"]:
            steps = [
                (sum(_tokens(message.get("content")) for message in one["messages"]), _answer(one, reading), 0.0)
                for one in session["payloads"]
            ]
            _add_chain(calls, reading, line, (line.where, session["session_id"]), steps)

    reading.each(lines, read)


def _answer(row: Document, reading: Reading) -> int:
    """Length of an answer [tokens]."""
    for key in ("output_length", "max_tokens", "max_completion_tokens"):
        if row.get(key) is not None:
            return int(row[key])
    if reading.answer_tokens is None:
        raise InputError(what="output", given="nothing", allowed="tokens of an answer, which the file does not have")
    return reading.answer_tokens


def _has(*names: str) -> Callable[[Document], bool]:
    return lambda data: all(name in data for name in names)


FORMATS = (
    TraceFormat(
        name="Weka", looks="an object with requests of t, in, out", read=_weka,
        knows=lambda data: isinstance(data.get("requests"), list) and any("t" in one for one in data["requests"]),
    ),
    TraceFormat(name="OpenTelemetry", looks="resourceSpans of OTLP JSON", knows=_has("resourceSpans"), read=_otel),
    TraceFormat(
        name="agentic Mooncake", looks="rows of input_length and request_id or session_id", read=_mooncake,
        knows=lambda data: ("input_length" in data and ("request_id" in data or "session_id" in data))
        or ("version" in data and "block_size" in data),
    ),
    TraceFormat(
        name="conversations", looks="conversations or messages", read=_conversations, is_estimate=True,
        knows=lambda data: "conversations" in data or "messages" in data,
    ),
    TraceFormat(name="aiperf turns", looks="rows of turns", knows=_has("turns"), read=_turns, is_estimate=True),
    TraceFormat(
        name="aiperf inputs", looks="data of payloads", read=_payloads, is_estimate=True,
        knows=lambda data: isinstance(data.get("data"), list) and all("payloads" in one for one in data["data"]),
    ),
)  # fmt: skip


def read_tasks(
    path: str,
    known: Sequence[str] = (),
    *,
    cap_s: float = inf,
    skip_bad: bool = False,
    answer_tokens: int | None = None,
) -> tuple[Requests, TraceFormat]:
    """Read recorded tasks; returns them and their format.

    Args:
        path: file of JSON or JSON lines, or a folder of such files.
        known: names that the path might have meant, for messages.
        cap_s: longest pause between calls [s].
        skip_bad: skip malformed objects and count them.
        answer_tokens: of calls whose answer has no length [tokens].

    Raises:
        InputError: no such file, none of the formats, or a malformed object.
    """
    place = Path(path)
    require(
        place.exists(),
        what="agents",
        given=path,
        allowed=f"a file or folder of tasks, or {', '.join(known)}",
        nearest=nearest_name(path, known),
    )
    files = sorted(one for one in place.glob("*.json*") if one.is_file()) if place.is_dir() else [place]
    lines = [line for file in files for line in _lines(file)]
    require(lines, what="agents", given="no object", allowed="JSON or JSON lines of tasks", where=path)
    found = next((one for one in FORMATS if one.knows(lines[0].data)), None)
    if found is None:
        keys = ", ".join(map(str, lines[0].data))[:80]
        tried = "; ".join(f"{one.name} ({one.looks})" for one in FORMATS)
        raise InputError(what="agents", given=f"an object of {keys or 'nothing'}", allowed=tried, where=lines[0].where)
    calls, reading = Calls(), Reading(skip_bad=skip_bad, answer_tokens=answer_tokens)
    try:
        found.read(calls, lines, reading)
    except _MALFORMED as error:
        raise InputError(
            what="agents", given=json.dumps(lines[0].data)[:80], allowed=f"{found.name} ({found.looks})",
            where=lines[0].where,
        ) from error  # fmt: skip
    return calls.requests(place.name, cap_s=cap_s, skipped=reading.skipped), found


def _lines(file: Path) -> Iterator[Line]:
    """The objects of a file: those of its lines, of one list, or one object over several lines."""
    texts = list(read_lines(file, what="agents", allowed="JSON or JSON lines", max_characters=MAX_CHARACTERS))
    try:
        values = [(number, json.loads(text)) for number, text in enumerate(texts, start=1) if text.strip()]
    except ValueError as error:
        try:
            values = [(1, json.loads("".join(texts)))]
        except ValueError:
            raise InputError(
                what="agents", given=str(error)[:80], allowed="JSON or JSON lines", where=str(file)
            ) from None
    for number, value in values:
        rows = cast("list[object]", value) if isinstance(value, list) else [value]
        for place, row in enumerate(rows, start=1):
            where = f"{file}:{number}" if len(rows) == 1 else f"{file}, object {place}"
            if not isinstance(row, dict):
                raise InputError(what="agents", given=str(row)[:80], allowed="JSON objects", where=where)
            yield Line(where, number if len(rows) == 1 else place, cast("Document", row))
