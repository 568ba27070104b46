"""The question of `validate`, and of the import of benchmark results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from rackline.api.option import MOST_CHIPS, option, tokens, whole
from rackline.api.question import Question, question

if TYPE_CHECKING:
    from rackline.api.option import MaybeLayout, MaybeNumber, MaybeWhole, Texts

LeftOut = Literal["model", "chip", "stack", "version", "laboratory", "half", "source"]
Format = Literal["vllm", "genai-perf", "aiperf", "inferencex", "inference-perf", "guidellm"]
_IMPORT = "Only with --import"


def _imported(help_text: str, *, default: None = None) -> Any:
    return option("text", help_text, default=default, group=_IMPORT)


@question
class ValidateQuestion(Question):
    """How far off are the predictions of measured cases, by metric, model, chip, stack and precision?"""

    ask: ClassVar[str] = "validate"

    files: Texts = option(
        "text",
        "measured cases, one JSON object per line; with `import_format`, benchmark results",
        several=True,
        kw_only=False,
    )
    calibration: str = option(
        "text",
        "calibration: auto (the case's own stack), a stack, unit (ideal roofline) or a TOML file",
        default="auto",
    )
    strict: bool = option("switch", "exit with 1 if a case cannot be predicted", default=False)
    stored: str | None = option(
        "text",
        "compare with a stored scoreboard; exit with 1 if a median or p90 got worse or coverage fell",
        default=None,
    )
    refit: LeftOut | None = option(
        "text",
        "leave one group out: refit the serving parameters without each model, chip, stack, version of a stack, "
        "laboratory or half of the configurations in turn and score the held-out cases; with training cases only, "
        "the training parameters without each source, model family or chip",
        default=None,
        choices=get_args(LeftOut),
    )
    ablation: bool = option(
        "switch",
        "switch off each serving effect in turn, refit the other parameters and score all cases",
        default=False,
    )
    write_stacks: str | None = option(
        "text",
        "fit the training parameters to the training cases and write the training stacks to FOLDER",
        default=None,
        output=True,
    )
    import_format: Format | None = option(
        "text",
        f"import results of a load generator: {', '.join(get_args(Format))}; those that hold each request become "
        "observed runs",
        default=None,
        flag="--import",
        choices=get_args(Format),
    )
    output: str | None = option(
        "text",
        "file for the imported cases; standard output by default",
        default=None,
        short="o",
        group=_IMPORT,
        output=True,
    )
    model: str | None = _imported("model of the imported results, if the file does not name it as rackline does")
    chip: str | None = _imported("chip of the imported results")
    num_chips: MaybeWhole = whole(
        "number of chips that served the imported results", default=None, maximum=MOST_CHIPS, group=_IMPORT
    )
    layout: MaybeLayout = _imported("parallel layout of the imported results, such as tp=4")
    precision: str | None = _imported("data types, such as fp8; those of the released checkpoint by default")
    stack: str | None = _imported("serving software")
    input_len: MaybeNumber = tokens("mean prompt tokens, if the file does not say", default=None, group=_IMPORT)
    output_len: MaybeNumber = tokens("mean output tokens, if the file does not say", default=None, group=_IMPORT)
    concurrency: MaybeWhole = whole("concurrent requests, if the file does not say", default=None, group=_IMPORT)
