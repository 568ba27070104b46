"""Pictures of docs/images and the page docs/figures.md, drawn by `bench/refresh_docs.py --only figures`.

Each picture is the figure of a command, light and dark. Pictures of measured cases need the data beside the project.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from shown import ROOT, shape  # a sibling in this folder

from rackline.cli.main import run
from rackline.display.figure import THEME_NAMES, Figure, ThemeName

IMAGES = ROOT / "docs" / "images"
PAGE = ROOT / "docs" / "figures.md"
WORDS = re.compile(r"role-(title-text|axis-title|legend-title|legend-label)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure of the page.

    Args:
        name: of its file.
        shows: what one sees.
        command: that draws it, without `rackline` and `--plot`.
        measured: whether it needs the measured cases beside the project.
    """

    name: str
    shows: str
    command: str
    measured: bool = False


PICTURES = (
    Picture(
        name="plan",
        shows="`plan`: what each speed for a user costs, with one engine and with separate pools, and the limits",
        command="plan deepseek-v3 --on gb200-nvl72 --input 4k --output 1k --tpot 30ms --ttft 2s",
    ),
    Picture(
        name="what-if",
        shows="`plan --what-if`: the cheapest deployment while one quantity varies",
        command="plan llama-3.1-70b --on dgx-h100 --input 2k --output 500 --tpot 30ms "
        "--what-if hbm_bandwidth=2TB/s:12TB/s:5",
    ),
    Picture(
        name="rejected",
        shows="`plan`: what was rejected by the least, limit by limit, beside the best",
        command="plan deepseek-v3 --on gb200-nvl72 --input 4k --output 1k --tpot 30ms --ttft 2s --plot-kind rejected",
    ),
    Picture(
        name="waterfall",
        shows="`explain`: where the time of a pass goes, row by row, and what binds",
        command="explain deepseek-v3 --on gb200-nvl72 --batch 4096 --context 4k",
    ),
    Picture(
        name="roofline",
        shows="`explain`: the rows of a pass under the roofs of the chip",
        command="explain deepseek-v3 --on gb200-nvl72 --batch 4096 --context 4k --plot-kind roofline",
    ),
    Picture(
        name="memory",
        shows="`explain`: what the fullest chip holds",
        command="explain deepseek-v3 --on gb200-nvl72 --batch 4096 --context 4k --plot-kind memory",
    ),
    Picture(
        name="batch",
        shows="`explain`: time of a decode step and output against the batch, at several contexts",
        command="explain deepseek-v3 --on gb200-nvl72 --batch 4096 --context 4k --plot-kind batch",
    ),
    Picture(
        name="fit",
        shows="`fit`: memory of a chip, layout by layout",
        command="fit deepseek-v3 --on gb200-nvl72 --context 32k",
    ),
    Picture(
        name="misfit",
        shows="`train`, `plan` and `fit` where nothing fits: memory by part, as asked and with each change",
        command="train llama-3.1-8b --on dgx-h100 --chips 1 --global-batch 1M --tokens 1B --plot-kind memory",
    ),
    Picture(
        name="compare",
        shows="`compare`: each number over that of the first",
        command="compare dgx-h100 gb200-nvl72 mi355x-8",
    ),
    Picture(
        name="tails",
        shows="`simulate`: latency tails",
        command="simulate llama-3.1-8b --on dgx-h100 --chips 2 --rate 20 --requests 2000 --input 1k --output 200 "
        "--lengths lognormal",
    ),
    Picture(
        name="timeline",
        shows="`simulate`: latency by arrival time",
        command="simulate llama-3.1-8b --on dgx-h100 --chips 2 --rate 30 --requests 150 --input 1k --output 200 "
        "--plot-kind timeline",
    ),
    Picture(
        name="occupancy",
        shows="`simulate`: requests that decode and that wait, over time",
        command="simulate llama-3.1-8b --on dgx-h100 --chips 2 --rate 30 --requests 300 --input 1k --output 200 "
        "--compare policy=prefill-first --plot-kind occupancy",
    ),
    Picture(
        name="percentiles",
        shows="`simulate`: latency percentiles, policy against policy",
        command="simulate llama-3.1-8b --on dgx-h100 --chips 2 --rate 30 --requests 300 --input 1k --output 200 "
        "--compare policy=prefill-first --plot-kind percentiles",
    ),
    Picture(
        name="served",
        shows="`simulate`: requests as they are served",
        command="simulate llama-3.1-8b --on dgx-h100 --chips 2 --rate 30 --requests 300 --input 1k --output 200 "
        "--compare policy=prefill-first --plot-kind served",
    ),
    Picture(
        name="step",
        shows="`train`: where the time of a step goes, for the fastest layouts",
        command="train llama-3.1-70b --on dgx-h100 --chips 256 --tokens 15T --global-batch 8M",
    ),
    Picture(
        name="pipeline",
        shows="`train`: what each stage of the pipeline does when",
        command="train llama-3.1-70b --on dgx-h100 --chips 256 --tokens 15T --global-batch 8M --layout tp=8,pp=4 "
        "--schedule zb-h1 --plot-kind pipeline",
    ),
    Picture(
        name="train-memory",
        shows="`train`: memory of the fullest chip, for the fastest layouts",
        command="train llama-3.1-70b --on dgx-h100 --chips 256 --tokens 15T --global-batch 8M --plot-kind memory",
    ),
    Picture(
        name="lifetime",
        shows="`budget`: cost over the whole life against size",
        command="budget --quality-of 70b@15T --traffic 50M --months 2 --rl 10T",
    ),
    Picture(
        name="quality",
        shows="`budget`: sizes and tokens that reach the same loss",
        command="budget --quality-of 70b@15T --traffic 50M --months 2 --rl 10T --plot-kind quality",
    ),
    Picture(
        name="afford",
        shows="`afford`: how many users a monthly budget serves, by way to pay for the chips",
        command="afford llama-3.1-70b --on dgx-h100 --budget 40k/month --input 4k --output 1k --tpot 30ms --ttft 2s "
        "--think-time 20s",
    ),
    Picture(
        name="over-time",
        shows="`simulate`: replicas that follow the load of a day under four policies",
        command="simulate llama-3.1-70b --on dgx-h100 --chips 64 --layout tp=4 --load day --rate 20 --autoscale hpa "
        "--autoscale dynamo-planner --autoscale fixed",
    ),
    Picture(
        name="concurrency",
        shows="`simulate`: hit rate, time and cost of an agent's task against the number of tasks in progress",
        command="simulate glm-5.2 --on dgx-b300 --layout tp=8 --precision fp4,kv=fp8 --engine sglang "
        "--memory-fraction 0.85 --agents agentx --longest-pause 5min --requests 2000 --concurrency 4,8,16,32",
    ),
    Picture(
        name="classes",
        shows="`simulate`: latency percentiles of three classes of requests on the same chips",
        command="simulate llama-3.1-8b --on dgx-h100 --chips 2 --layout tp=1 --rate 16 "
        "--classes docs/how-to/classes.toml --plot-kind classes",
    ),
    Picture(
        name="price",
        shows="`price`: what to charge and what it costs, over the length of the prompt",
        command="price deepseek-v3 --on gb200-nvl72",
    ),
    Picture(
        name="margins",
        shows="`price --against`: a provider's prices over the cost of each mode and context tier",
        command="price gpt-oss-20b --on dgx-h100 --layout tp=1,pp=1 --calibration vllm --against bedrock "
        "--plot-kind margins",
    ),
    Picture(
        name="price-modes",
        shows="`price`: what to charge by mode and context tier, each in its own cheapest layout",
        command="price deepseek-v3 --on gb200-nvl72 --plot-kind modes",
    ),
    Picture(
        name="price-map",
        shows="`infer-prices`: what price sheets reveal",
        command="infer-prices --all",
    ),
    Picture(
        name="tiers",
        shows="`tiers`: where to keep the cache of a prompt",
        command="tiers deepseek-v3 --on gb200-nvl72 --prompt 8k --reuses 10",
    ),
    Picture(
        name="verdicts",
        shows="`lecture`: what holds, and what holds only under a condition",
        command="lecture",
    ),
    Picture(
        name="errors",
        shows="`calibrate`: errors on measurements that were not fitted, by kind of operation",
        command="calibrate ../shared/measured/ops/gemm.csv ../shared/measured/ops/attention_decode.csv "
        "../shared/measured/ops/attention_prefill.csv ../shared/measured/ops/mla_decode.csv "
        "../shared/measured/ops/moe.csv ../shared/measured/ops/collective.csv",
        measured=True,
    ),
    Picture(
        name="parity-served",
        shows="`validate`: predicted over measured, servings",
        command="validate ../shared/measured/serving.jsonl",
        measured=True,
    ),
    Picture(
        name="parity",
        shows="`validate`: predicted over measured",
        command="validate cases/training.jsonl.gz",
    ),
    Picture(
        name="tutorial-engineer",
        shows="time of a decode step and output against the batch, for the inference engineer's tutorial",
        command="explain llama-3.1-70b --on dgx-h100 --batch 64 --context 2k --layout tp=4 --plot-kind batch",
    ),
    Picture(
        name="tutorial-planner",
        shows="two machines side by side, for the capacity planner's tutorial",
        command="compare dgx-h100 dgx-h200",
    ),
    Picture(
        name="tutorial-training",
        shows="memory of the fullest chip by layout, for the training lead's tutorial",
        command="train llama-3.1-8b --on dgx-h100 --chips 64 --tokens 1T --global-batch 4M --plot-kind memory",
    ),
    Picture(
        name="tutorial-architect",
        shows="rows of a pass under the roofs of a faster memory, for the chip architect's tutorial",
        command="explain llama-3.1-70b --on dgx-h100 --batch 64 --context 8k --layout tp=8 "
        "--set hbm_bytes_per_s=6.7TB/s --plot-kind roofline",
    ),
    Picture(
        name="tutorial-analyst",
        shows="price and cost over the length of the prompt, for the price analyst's tutorial",
        command="price llama-3.1-70b --on dgx-h100 --layout tp=8",
    ),
    Picture(
        name="tutorial-learner",
        shows="a step and its output against the batch on eight chips, for the learner's tutorial",
        command="explain llama-3.1-70b --on dgx-h100 --batch 64 --context 2k --layout tp=8 --plot-kind batch",
    ),
)

_HEAD = """# Figures

Every answer that has something to look at is drawn with `--plot FILE`: `.svg`, `.png` or `.pdf`; `.html`, one page that
holds all it needs, works without network, shows the numbers under the pointer and follows the reader's light or dark
theme; `.json`, the figure as data. Images are drawn by vl-convert, which comes with the extra `plot`
(`pip install 'rackline[plot]'`); `.json` needs nothing. `--plot-kind` chooses where an answer has several figures
(`--help` names them, the first is the default), `--plot-theme light` or `dark` the look.

A figure is data: a [Vega-Lite](https://vega.github.io/vega-lite/) specification with its rows inside, in SI units.
In Python `rl.explain(...).plot()` returns it; JupyterLab and VS Code draw it by themselves, `save` writes a file,
`rows` are the numbers, `to_dict()` the specification. One theme draws all of them; a test holds its colours to a
contrast of 3 and more and apart for readers who do not see red, green or blue.

The pictures below are drawn by `bench/refresh_docs.py`; those of `calibrate` and `validate` need measured cases that
are not part of the repository.
"""


def file_of(picture: Picture, look: ThemeName) -> Path:
    """Where a picture lies."""
    return IMAGES / f"{picture.name}{'' if look == 'light' else '-dark'}.svg"


def made(picture: Picture) -> Figure:
    """The figure, from its command.

    Raises:
        SystemExit: the command failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        specification = Path(folder) / "figure.json"
        with contextlib.redirect_stdout(io.StringIO()):
            code = run([*shlex.split(picture.command), "--plot", str(specification)])
        if code:
            raise SystemExit(f"{picture.name}: exit {code}")
        return Figure.from_dict(json.loads(specification.read_text(encoding="utf-8")))


def structure(svg: str) -> dict[str, list[str]]:
    """Return what stays in a drawing while its numbers move.

    Returns:
        The words of its title, axes and legend, and its layers of marks with how many each has.
    """
    words: list[str] = []
    layers: list[str] = []
    for group in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}g"):
        kind = group.get("class", "")
        if WORDS.search(kind):
            words.extend(shape(text) for text in group.itertext() if text.strip())
        elif "role-mark" in kind:
            layers.append(f"{kind.split()[0]} × {len(group)}")
    return {"words": words, "layers": layers}


def page() -> str:
    """The page that shows the pictures."""
    parts = [_HEAD]
    for picture in PICTURES:
        light, dark = (f"images/{file_of(picture, look).name}" for look in THEME_NAMES)
        plain = picture.shows.replace("`", "")
        parts.append(
            f"## {picture.name}\n\n{picture.shows[0].upper()}{picture.shows[1:]}:\n"
            f"`rackline {picture.command} --plot {picture.name}.svg`\n\n"
            f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
            f'<img alt="{plain}" src="{light}"></picture>\n'
        )
    return "\n".join(parts)
