"""`rackline explain`: one pass row by row."""

from __future__ import annotations

import json as json_text
import math
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rackline.cli.options import (
    Json,
    MaybeValue,
    On,
    Overrides,
    Value,
    check_file_to_write,
    find_calibration,
    memory_fraction,
    read_model_and_cluster,
    read_routing,
    tokens,
    whole,
)
from rackline.cli.screen import print_json, progress, screen
from rackline.errors import InputError, nearest_names

if TYPE_CHECKING:
    from rackline.arch import AnyModel
    from rackline.hardware import Cluster
    from rackline.parallel import Deployment, Layout, Precision, Routing, ServerMemory
    from rackline.passes import Batch, Calibration, StepPolicy
    from rackline.validation.intervals import Interval


def explain(
    model: str,
    /,
    *,
    on: On,
    batch: Value,
    context: Value,
    layout: str | None = None,
    prefill: MaybeValue = None,
    precision: str = "native",
    calibration: str = "auto",
    policy: str | None = None,
    routing: str | None = None,
    memory: Annotated[Value, Parameter(name="--memory-fraction")] = "0.9",
    sets: Overrides = None,
    json: Json = False,
    trace: str | None = None,
) -> None:
    """One pass row by row: formula, coefficients, numbers put in, seconds, share, what binds.

    Beside each row stands the same row on the blackboard: ideal roofline, no overhead, perfect overlap.

    Args:
        model: catalogue name, Hugging Face id, TOML file or config.json
        on: cluster: catalogue name or TOML file
        batch: sequences that decode on one replica; 0 for a pass with prompt tokens only
        context: tokens that each of them has cached, such as 8k
        layout: such as tp=8,ep=8; parts that are missing are 1 (moe_tp follows); by default the smallest that fits
        prefill: new tokens of one prompt on each rank in the same pass
        precision: native, bf16, fp8, fp4, mxfp4, int8, int4, or in parts such as fp8,kv=bf16
        calibration: how far kernels fall short of the peaks: auto (the stack measured most on the chip), trtllm, vllm,
            sglang, generic (all stacks), unit (ideal roofline) or a TOML file
        policy: how rows combine: blackboard, serial or overlap; the calibration's own by default
        routing: how tokens spread over experts: uniform, balanced or power-law=EXPONENT; by default
            as fitted to servers of the stack
        memory: share of HBM that the server may use
        sets: KEY=VALUE replaces a number of the model, cluster or chip; may be repeated
        json: print JSON (SI units) and nothing else
        trace: write a Chrome trace to FILE.json, for Perfetto or chrome://tracing
    """
    file = check_file_to_write(trace, "--trace")
    sequences = whole(batch, "--batch", minimum=0)
    new_tokens = tokens(prefill, "--prefill") if prefill is not None else 0.0
    if not sequences and not new_tokens:
        raise InputError(what="--batch", given=batch, allowed="at least 1, or 0 together with --prefill", nearest="1")
    context_len = tokens(context, "--context")
    fraction = memory_fraction(memory)
    step_policy = _policy(policy)
    found_model, cluster = read_model_and_cluster(model, on, sets=sets)

    from rackline.parallel import parse_layout
    from rackline.parallel import precision as find_precision
    from rackline.report.explain_report import Explanation, explain_report
    from rackline.serving.stack import stack_of

    numbers = find_calibration(calibration, cluster.chip)
    ask = _Ask(
        model=found_model,
        cluster=cluster,
        precision=find_precision(precision, found_model, cluster.chip),
        calibration=numbers,
        routing=read_routing(routing) or stack_of(numbers, cluster.chip.hbm_bytes).routing,
        sequences=sequences,
        context_len=context_len,
        new_tokens=new_tokens,
        memory_fraction=fraction,
    )
    with progress("looking for the smallest layout that fits"):
        chosen, how = (parse_layout(layout, found_model), "given") if layout is not None else ask.smallest()
    deployment: Deployment = ask.deployment(chosen)
    held = deployment.memory(
        sequences=float(sequences),
        context_len=max(context_len, new_tokens),
        server=ask.server,
    )
    explanation = Explanation.of(
        deployment,
        ask.batch(chosen),
        batch_size=sequences,
        memory=held,
        layout_choice=how,
        policy=step_policy,
    )
    if file is not None:
        from rackline.report.trace import chrome_trace

        title = f"{deployment.calibration.name} calibration, {explanation.time.policy}"
        passes = {title: explanation.time, "blackboard": explanation.ideal}
        file.write_text(json_text.dumps(chrome_trace(passes)), encoding="utf-8")
    known: list[Interval] = []
    if deployment.calibration.name != "unit" and explanation.time.policy != "blackboard":
        from rackline.validation.intervals import intervals

        metric = "decode_pass_s" if not new_tokens else "prefill_pass_s" if not sequences else "tpot_s"
        types = deployment.precision.expert_weights
        known = intervals({metric: explanation.time.seconds}, deployment.calibration.name, types)
    if json:
        data = explanation.as_dict()
        data["interval"] = {"low": known[0].low, "high": known[0].high} if known else None
        print_json(data)
        return
    out = screen()
    out.print(explain_report(explanation, width=out.width))
    for one in known:
        from rackline.report.wording import interval_text

        out.print(
            f"nine of ten measured passes ({one.group}, {one.num_cases} cases) lay within "
            f"{interval_text(one.metric, one.low, one.high)}",
            style="dim",
        )


def _policy(text: str | None) -> StepPolicy | None:
    match text:
        case None | "blackboard" | "serial" | "overlap":
            return text
        case _:
            allowed = ["blackboard", "serial", "overlap"]
            near = nearest_names(text, allowed, 1)
            raise InputError(what="--policy", given=text, allowed=", ".join(allowed), nearest=near[0] if near else None)


class _Ask:
    """What one pass is asked of, before its layout is known."""

    def __init__(
        self,
        *,
        model: AnyModel,
        cluster: Cluster,
        precision: Precision,
        calibration: Calibration,
        routing: Routing,
        sequences: int,
        context_len: float,
        new_tokens: float,
        memory_fraction: float,
    ) -> None:
        self.model, self.cluster, self.precision = model, cluster, precision
        self.calibration, self.routing = calibration, routing
        self.sequences, self.context_len, self.new_tokens = sequences, context_len, new_tokens
        self.memory_fraction = memory_fraction

    @property
    def server(self) -> ServerMemory:
        """What the stack of the calibration keeps of a chip, in passes of its own size or this one's."""
        from rackline.serving.stack import stack_of

        stack = stack_of(self.calibration, self.cluster.chip.hbm_bytes)
        return stack.memory(max(stack.max_batched_tokens, self.new_tokens), self.memory_fraction)

    def deployment(self, layout: Layout) -> Deployment:
        from rackline.parallel import Deployment

        return Deployment(
            model=self.model,
            cluster=self.cluster,
            layout=layout,
            precision=self.precision,
            calibration=self.calibration,
            routing=self.routing,
        )

    def batch(self, layout: Layout) -> Batch:
        """What the busiest rank works on in one pass of one micro-batch."""
        from rackline.passes import Batch

        ranks = layout.attention_dp * layout.pp
        prompts = 1.0 if self.new_tokens else 0.0
        return Batch(
            decode_sequences=float(math.ceil(self.sequences / ranks)),
            context_len=self.context_len,
            prefill_sequences=prompts,
            chunk_tokens=self.new_tokens,
            group_tokens=self.sequences / layout.pp + self.new_tokens * layout.attention_dp,
        )

    def smallest(self) -> tuple[Layout, str]:
        """The layout of the fewest chips that holds the batch, the fastest of those; how it was chosen."""
        from rackline.serving.capacity import capacity

        found = capacity(
            self.model,
            self.cluster,
            self.precision,
            context_len=max(self.context_len, self.new_tokens),
            server=self.server,
        )
        holding = [row.layout for row in found.rows if row.max_concurrency >= max(self.sequences, 1)]
        if not holding:
            roomiest = max(found.rows, key=lambda row: (row.max_concurrency, row.kv_room_bytes))
            return roomiest.layout, "none holds the batch; this one holds the most"
        chips = min(layout.chips_per_replica for layout in holding)
        equal = [layout for layout in holding if layout.chips_per_replica == chips]

        def seconds(layout: Layout) -> float:
            return float(self.deployment(layout).table().seconds(self.batch(layout)))

        fastest = min(equal, key=seconds)
        which = f", the fastest of {len(equal)} such" if len(equal) > 1 else ""
        return fastest, f"the fewest chips that hold the batch{which}"
