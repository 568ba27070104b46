"""The question of `validate`, and of the import of benchmark results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from rackline.api.option import MOST_CHIPS, Option, Quantity, option, tokens, whole
from rackline.api.question import Question

if TYPE_CHECKING:
    from rackline.api.option import LayoutLike, Texts

LeftOut = Literal["model", "chip", "stack", "version", "laboratory", "half", "source"]
Format = Literal["vllm", "genai-perf", "aiperf", "inferencex", "inference-perf", "guidellm"]
_IMPORT = "Only with --import"


def _imported(help_text: str) -> dict[str, Option]:
    return option("text", help_text, group=_IMPORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateQuestion(Question):
    """How far off are the predictions of measured cases, by metric, model, chip, stack and precision?"""

    ask: ClassVar[str] = "validate"

    files: Texts = field(
        kw_only=False,
        metadata=option(
            "text",
            "measured cases, one JSON object per line; with `import_format`, benchmark results",
            positional=True,
            several=True,
        ),
    )
    calibration: str = field(
        default="auto",
        metadata=option(
            "text", "calibration: auto (the case's own stack), a stack, unit (ideal roofline) or a TOML file"
        ),
    )
    strict: bool = field(default=False, metadata=option("switch", "exit with 1 if a case cannot be predicted"))
    stored: str | None = field(
        default=None,
        metadata=option(
            "text",
            "compare with a stored scoreboard; exit with 1 if a median or p90 got worse or coverage fell",
        ),
    )
    refit: LeftOut | None = field(
        default=None,
        metadata=option(
            "text",
            "leave one group out: refit the serving parameters without each model, chip, stack, version of a stack, "
            "laboratory or half of the configurations in turn and score the held-out cases; with training cases only, "
            "the training parameters without each source, model family or chip",
            choices=get_args(LeftOut),
        ),
    )
    ablation: bool = field(
        default=False,
        metadata=option(
            "switch", "switch off each serving effect in turn, refit the other parameters and score all cases"
        ),
    )
    write_stacks: str | None = field(
        default=None,
        metadata=option(
            "text",
            "fit the training parameters to the training cases and write the training stacks to FOLDER",
            output=True,
        ),
    )
    import_format: Format | None = field(
        default=None,
        metadata=option(
            "text",
            f"import results of a load generator: {', '.join(get_args(Format))}; those that hold each request become "
            "observed runs",
            flag="--import",
            choices=get_args(Format),
        ),
    )
    output: str | None = field(
        default=None,
        metadata=option(
            "text", "file for the imported cases; standard output by default", short="o", group=_IMPORT, output=True
        ),
    )
    model: str | None = field(
        default=None,
        metadata=_imported("model of the imported results, if the file does not name it as rackline does"),
    )
    chip: str | None = field(default=None, metadata=_imported("chip of the imported results"))
    num_chips: Quantity | None = field(
        default=None,
        metadata=whole("number of chips that served the imported results", maximum=MOST_CHIPS, group=_IMPORT),
    )
    layout: LayoutLike | None = field(
        default=None, metadata=_imported("parallel layout of the imported results, such as tp=4")
    )
    precision: str | None = field(
        default=None, metadata=_imported("data types, such as fp8; those of the released checkpoint by default")
    )
    stack: str | None = field(default=None, metadata=_imported("serving software"))
    input_len: Quantity | None = field(
        default=None, metadata=tokens("mean prompt tokens, if the file does not say", group=_IMPORT)
    )
    output_len: Quantity | None = field(
        default=None, metadata=tokens("mean output tokens, if the file does not say", group=_IMPORT)
    )
    concurrency: Quantity | None = field(
        default=None, metadata=whole("concurrent requests, if the file does not say", group=_IMPORT)
    )
