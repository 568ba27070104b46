"""`rackline validate`: predict measured cases and print how far off the predictions are."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from rackline.cli.options import Json, MaybeValue, check_file_to_write, tokens, whole
from rackline.cli.screen import print_json, progress, screen
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.validate.scoreboard import Scoreboard

Format = Literal["vllm", "genai-perf", "aiperf", "inferencex"]
_MOST_WARNINGS = 20


def validate(
    *files: str,
    json: Json = False,
    plot: str | None = None,
    calibration: str = "auto",
    strict: Annotated[bool, Parameter(negative=())] = False,
    stored: str | None = None,
    write_stored: str | None = None,
    write_docs: str | None = None,
    import_format: Annotated[Format | None, Parameter(name="--import")] = None,
    output: Annotated[str | None, Parameter(name=["--output", "-o"])] = None,
    model: str | None = None,
    chip: str | None = None,
    num_chips: MaybeValue = None,
    layout: str | None = None,
    precision: str | None = None,
    stack: str | None = None,
    input_len: MaybeValue = None,
    output_len: MaybeValue = None,
    concurrency: MaybeValue = None,
) -> None:
    """Predict measured cases and print how far off the predictions are, by metric, model, chip, stack and precision.

    A case that cannot be predicted is counted and named, never dropped. With --import, results of a benchmark are
    turned into cases instead.

    Args:
        files: cases, one JSON object a line; with --import, results of a benchmark
        json: print JSON (SI units) and nothing else
        plot: write the parity plot to FILE.html, .svg or .png
        calibration: auto (the case's own stack), a stack, unit (ideal roofline) or a TOML file
        strict: exit 1 when a case has no prediction
        stored: compare with a scoreboard written earlier; exit 1 when a median or p90 got worse or support fell
        write_stored: write the scoreboard to FILE.json, for --stored
        write_docs: write the scoreboard into the marked block of a Markdown page
        import_format: read results of vllm bench serve, genai-perf, aiperf or InferenceX
        output: file for the imported cases; standard output by default
        model: of the imported results, where the file does not say or says it by another name
        chip: of the imported results
        num_chips: all chips that served the imported results
        layout: how they were used, such as tp=4
        precision: data types, such as fp8; that of the released checkpoint by default
        stack: serving software
        input_len: mean prompt tokens, where the file does not say
        output_len: mean generated tokens, where the file does not say
        concurrency: requests in flight, where the file does not say
    """
    if not files:
        raise InputError(what="FILE", given="nothing", allowed="one or more files, one JSON object a line")
    if import_format is not None:
        from rackline.validate.importers import Given, import_results

        given = Given(
            model=model,
            chip=chip,
            num_chips=whole(num_chips, "--num-chips") if num_chips is not None else None,
            layout=layout,
            precision=precision,
            stack=stack,
            input_len=tokens(input_len, "--input-len") if input_len is not None else None,
            output_len=tokens(output_len, "--output-len") if output_len is not None else None,
            concurrency=whole(concurrency, "--concurrency") if concurrency is not None else None,
        )
        lines = import_results(files, import_format, given)
        target = check_file_to_write(output, "--output")
        if target is None:
            sys.stdout.write(lines)
        else:
            target.write_text(lines, encoding="utf-8")
            print(f"{lines.count(chr(10))} cases written to {target}", file=sys.stderr)
        return
    for name, value in (("--model", model), ("--chip", chip), ("--output", output), ("--layout", layout)):
        if value is not None:
            raise InputError(what=name, given=value, allowed="only with --import, which says what the results lack")
    from rackline.report.svg import check_plot_path
    from rackline.validate import validate as run
    from rackline.validate.stored import read_stored, stored_form, worse_than
    from rackline.validate.stored import write_docs as fill_page
    from rackline.validate.stored import write_stored as store

    figure_file = check_plot_path(plot) if plot else None
    store_file = check_file_to_write(write_stored, "--write-stored")
    before = read_stored(Path(stored)) if stored else None
    start = time.perf_counter()
    with progress("predicting cases"):
        board = run(files, calibration)
    elapsed_s = time.perf_counter() - start
    _warn(board)
    if write_docs is not None:
        fill_page(stored_form(board, files), Path(write_docs))
    if store_file is not None:
        store(board, files, store_file)
    if figure_file is not None:
        from rackline.report.svg import write_figure
        from rackline.validate.figure import parity_figure

        write_figure(parity_figure(board), figure_file)
    worse = worse_than(before, board) if before is not None else []
    if json:
        print_json({**board.as_dict(), **({"worse": worse} if before is not None else {})})
    else:
        from rackline.validate.report import scoreboard_report

        out = screen()
        out.print(scoreboard_report(board, elapsed_s=elapsed_s, width=out.width))
    for line in worse:
        print(f"worse: {line}", file=sys.stderr)
    if worse or (strict and board.unsupported):
        sys.stdout.flush()
        raise SystemExit(1)


def _warn(board: Scoreboard) -> None:
    """Say where cases are wrong in themselves: one line a cause, with its first place."""
    lines: dict[str, list[str]] = {}
    for case in board.bad_input:
        lines.setdefault(case.cause, []).append(case.where)
    for cause, places in list(lines.items())[:_MOST_WARNINGS]:
        more = f" (and {len(places) - 1:,} more)" if len(places) > 1 else ""
        print(f"warning: {places[0]}{more}: {cause}", file=sys.stderr)
    if len(lines) > _MOST_WARNINGS:
        print(f"warning: {len(lines) - _MOST_WARNINGS:,} more causes; --json has all", file=sys.stderr)
