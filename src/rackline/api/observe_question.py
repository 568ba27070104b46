"""The question of `observe`: a server, the load that is sent to it, and its bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rackline.api.groups import CHIPS, ON, PRECISION, ModelQuestion, Traffic
from rackline.api.option import MOST_TOKENS, option, shared, whole
from rackline.api.question import question

if TYPE_CHECKING:
    from rackline.api.option import ClusterLike, MaybeLayout, MaybeNumber, MaybeWhole, ModelLike, Number, Whole

MOST_REQUESTS = 20_000
_SENT, _BOUNDS, _SERVER = "How requests are sent", "Bounds", "What the server runs on"
_DAY_S = 86400.0
_MOST_USD = 1e6


def _seconds(help_text: str, *, default: str) -> Any:
    return option("seconds", help_text, default=default, unit="s", maximum=_DAY_S, group=_BOUNDS)


@question
class ObserveQuestion(Traffic, ModelQuestion):
    """What does a live server do under a stated load, request by request and token by token?"""

    ask: ClassVar[str] = "observe"

    url: str = option("text", "address of an OpenAI-compatible server, such as http://localhost:8000", kw_only=False)
    requests: Whole = whole(
        f"largest number of requests sent, up to {MOST_REQUESTS:,}",
        default="100",
        maximum=MOST_REQUESTS,
        group="Traffic",
    )
    served_name: str | None = option(
        "text",
        "model as the server names it; by default the only one that it lists",
        default=None,
        group=_SENT,
    )
    endpoint: str = option(
        "text",
        "where requests go: completions or chat",
        default="completions",
        choices=("completions", "chat"),
        group=_SENT,
    )
    prompts: str = option(
        "text",
        "how synthetic prompts are sent: tokens (ids, exact in length; completions only) or words (about one token "
        "each)",
        default="tokens",
        choices=("tokens", "words"),
        group=_SENT,
    )
    vocabulary: MaybeWhole = whole(
        "random token ids are drawn below this number; by default 10,000, or the vocabulary of `model`",
        default=None,
        minimum=2,
        maximum=MOST_TOKENS,
        group=_SENT,
    )
    natural_ends: bool = option(
        "switch",
        "let answers end where the model ends them; by default ignore_eos and min_tokens ask for the whole length, "
        "which vLLM, SGLang and llama.cpp know and OpenAI refuses",
        default=False,
        group=_SENT,
    )
    key_env: str | None = option(
        "text",
        "environment variable that holds the API key; without it no key is sent. Keys are never stored or printed",
        default=None,
        group=_SENT,
    )
    yes: bool = option("switch", "send the load without asking; its tokens and cost are printed first", default=False)
    save: str | None = option(
        "text",
        "file for the observed run, such as observed.jsonl, which validate reads",
        default=None,
        short="o",
    )
    usd_per_mtok_input: MaybeNumber = option(
        "count",
        "price of prompt tokens, for the cost estimate",
        default=None,
        unit="USD/Mtok",
        maximum=_MOST_USD,
        zero=True,
        group=_BOUNDS,
    )
    usd_per_mtok_output: MaybeNumber = option(
        "count",
        "price of output tokens, for the cost estimate",
        default=None,
        unit="USD/Mtok",
        maximum=_MOST_USD,
        zero=True,
        group=_BOUNDS,
    )
    max_time: Number = _seconds(
        "longest time of the whole run; what is not sent by then is not, what is in flight is cut",
        default="10min",
    )
    timeout: Number = _seconds("longest time of one request", default="2min")
    stall: Number = _seconds("longest pause without a byte", default="60s")
    retries: Whole = whole(
        "retries of a request after HTTP status 429 or 503", default="3", minimum=0, maximum=100, group=_BOUNDS
    )
    model: ModelLike | None = option(
        "object",
        "the model as rackline knows it: catalogue name, Hugging Face id, TOML file or config.json; validate and "
        "calibrate need it",
        default=None,
        group=_SERVER,
    )
    on: ClusterLike | None = shared(ON, default=None, group=_SERVER)
    chips: MaybeWhole = shared(CHIPS, default=None, group=_SERVER)
    layout: MaybeLayout = option("text", "parallel layout, such as tp=8", default=None, group=_SERVER)
    precision: str = shared(PRECISION, default="native", group=_SERVER)
    stack: str | None = option("text", "serving stack, such as vllm or vllm=0.11.1", default=None, group=_SERVER)
    max_num_seqs: MaybeWhole = whole(
        "running sequences per rank, if not the stack's default", default=None, group=_SERVER
    )
    max_batched_tokens: MaybeWhole = whole(
        "token budget of a pass, if not the stack's default", default=None, group=_SERVER
    )
    kv_tokens: MaybeWhole = whole("KV cache capacity per rank in tokens, if it is known", default=None, group=_SERVER)
