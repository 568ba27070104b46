"""The question of `observe`: a server, the load that is sent to it, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from rackline.api import fields as shared
from rackline.api import traffic_fields as traffic
from rackline.api.model_question import ModelQuestion
from rackline.api.option import MOST_TOKENS, Quantity, option, whole

if TYPE_CHECKING:
    from rackline.api.option import ClusterLike, LayoutLike, ModelLike

MOST_REQUESTS = 20_000
_SENT, _BOUNDS, _SERVER = "How requests are sent", "Bounds", "What the server runs on"
_DAY_S = 86400.0
_MOST_USD = 1e6


def _seconds(help_text: str) -> dict[str, object]:
    return {**option("seconds", help_text, unit="s", maximum=_DAY_S, group=_BOUNDS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveQuestion(ModelQuestion):
    """What does a live server do under a stated load, request by request and token by token?"""

    ask: ClassVar[str] = "observe"

    url: str = field(
        kw_only=False,
        metadata=option(
            "text", "address of an OpenAI-compatible server, such as http://localhost:8000", positional=True
        ),
    )
    trace: str | None = field(default=None, metadata=traffic.TRACE)
    rate: Quantity | None = field(default=None, metadata=traffic.RATE)
    users: Quantity | None = field(default=None, metadata=traffic.USERS)
    requests: Quantity = field(
        default="100",
        metadata=whole(
            f"largest number of requests sent, up to {MOST_REQUESTS:,}", maximum=MOST_REQUESTS, group="Traffic"
        ),
    )
    input: Quantity | None = field(default=None, metadata=traffic.INPUT)
    output: Quantity | None = field(default=None, metadata=traffic.OUTPUT)
    lengths: str = field(default="fixed", metadata=traffic.LENGTHS)
    mix: str | None = field(default=None, metadata=traffic.MIX)
    arrival_cv: Quantity = field(default="1", metadata=traffic.ARRIVAL_CV)
    diurnal_amplitude: Quantity = field(default="0", metadata=traffic.DIURNAL_AMPLITUDE)
    turns: Quantity | None = field(default=None, metadata=traffic.TURNS)
    think_time: Quantity = field(default="0s", metadata=traffic.THINK_TIME)
    system_prompt: Quantity = field(default="0", metadata=traffic.SYSTEM_PROMPT)
    tool_calls: Quantity | None = field(default=None, metadata=traffic.TOOL_CALLS)
    tool_time: Quantity = field(default="0s", metadata=traffic.TOOL_TIME)
    tool_output: Quantity | None = field(default=None, metadata=traffic.TOOL_OUTPUT)
    session_lengths: str = field(default="geometric", metadata=traffic.SESSION_LENGTHS)
    rate_scale: Quantity = field(default="1", metadata=traffic.RATE_SCALE)
    seed: Quantity = field(default="0", metadata=traffic.SEED)
    time_unit: str | None = field(default=None, metadata=traffic.TIME_UNIT)
    skip_bad: bool = field(default=False, metadata=traffic.SKIP_BAD)
    served_name: str | None = field(
        default=None,
        metadata=option("text", "model as the server names it; by default the only one that it lists", group=_SENT),
    )
    endpoint: str = field(
        default="completions",
        metadata=option("text", "where requests go: completions or chat", choices=("completions", "chat"), group=_SENT),
    )
    prompts: str = field(
        default="tokens",
        metadata=option(
            "text",
            "how synthetic prompts are sent: tokens (ids, exact in length; completions only) or words (about one token "
            "each)",
            choices=("tokens", "words"),
            group=_SENT,
        ),
    )
    vocabulary: Quantity | None = field(
        default=None,
        metadata=whole(
            "random token ids are drawn below this number; by default 10,000, or the vocabulary of `model`",
            minimum=2,
            maximum=MOST_TOKENS,
            group=_SENT,
        ),
    )
    natural_ends: bool = field(
        default=False,
        metadata=option(
            "switch",
            "let answers end where the model ends them; by default ignore_eos and min_tokens ask for the whole length, "
            "which vLLM, SGLang and llama.cpp know and OpenAI refuses",
            group=_SENT,
        ),
    )
    key_env: str | None = field(
        default=None,
        metadata=option(
            "text",
            "environment variable that holds the API key; without it no key is sent. Keys are never stored or printed",
            group=_SENT,
        ),
    )
    yes: bool = field(
        default=False, metadata=option("switch", "send the load without asking; its tokens and cost are printed first")
    )
    save: str | None = field(
        default=None,
        metadata=option("text", "file for the observed run, such as observed.jsonl, which validate reads", short="o"),
    )
    usd_per_mtok_input: Quantity | None = field(
        default=None,
        metadata=option(
            "count",
            "price of prompt tokens, for the cost estimate",
            unit="USD/Mtok",
            maximum=_MOST_USD,
            zero=True,
            group=_BOUNDS,
        ),
    )
    usd_per_mtok_output: Quantity | None = field(
        default=None,
        metadata=option(
            "count",
            "price of output tokens, for the cost estimate",
            unit="USD/Mtok",
            maximum=_MOST_USD,
            zero=True,
            group=_BOUNDS,
        ),
    )
    max_time: Quantity = field(
        default="10min",
        metadata=_seconds("longest time of the whole run; what is not sent by then is not, what is in flight is cut"),
    )
    timeout: Quantity = field(default="2min", metadata=_seconds("longest time of one request"))
    stall: Quantity = field(default="60s", metadata=_seconds("longest pause without a byte"))
    retries: Quantity = field(
        default="3",
        metadata=whole("retries of a request after HTTP status 429 or 503", minimum=0, maximum=100, group=_BOUNDS),
    )
    model: ModelLike | None = field(
        default=None,
        metadata=option(
            "object",
            "the model as rackline knows it: catalogue name, Hugging Face id, TOML file or config.json; validate and "
            "calibrate need it",
            group=_SERVER,
        ),
    )
    on: ClusterLike | None = field(default=None, metadata=shared.within(shared.ON, _SERVER))
    chips: Quantity | None = field(default=None, metadata=shared.within(shared.CHIPS, _SERVER))
    layout: LayoutLike | None = field(
        default=None, metadata=option("text", "parallel layout, such as tp=8", group=_SERVER)
    )
    precision: str = field(default="native", metadata=shared.within(shared.PRECISION, _SERVER))
    stack: str | None = field(
        default=None,
        metadata=option("text", "serving stack, such as vllm or vllm=0.11.1", group=_SERVER),
    )
    max_num_seqs: Quantity | None = field(
        default=None, metadata=whole("running sequences per rank, if not the stack's default", group=_SERVER)
    )
    max_batched_tokens: Quantity | None = field(
        default=None, metadata=whole("token budget of a pass, if not the stack's default", group=_SERVER)
    )
    kv_tokens: Quantity | None = field(
        default=None, metadata=whole("KV cache capacity per rank in tokens, if it is known", group=_SERVER)
    )

    @property
    def high_priority_share(self) -> float:
        """All requests are equal to a server that is observed."""
        return 0.0

    @property
    def cache_hit(self) -> float:
        """What a live server finds in its cache follows from the prompts."""
        return 0.0

    @property
    def prefix_caching(self) -> bool:
        """The server's own choice."""
        return False
