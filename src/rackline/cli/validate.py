"""`rackline validate`: predict measured cases and print how far off the predictions are."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from rackline.cli.options import Json, MaybeValue, check_file_to_write, tokens, whole
from rackline.cli.plot import PlotFile, PlotLook, read_plot
from rackline.cli.screen import counting, print_json, progress, screen
from rackline.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rackline.validation.cases import CaseSet
    from rackline.validation.scoreboard import Score, Scoreboard

LeftOut = Literal["model", "chip", "stack", "source"]
Format = Literal["vllm", "genai-perf", "aiperf", "inferencex"]
_MOST_WARNINGS = 20


def validate(
    *files: str,
    json: Json = False,
    plot: PlotFile = None,
    plot_theme: PlotLook = "auto",
    calibration: str = "auto",
    strict: Annotated[bool, Parameter(negative=())] = False,
    stored: str | None = None,
    write_stored: str | None = None,
    write_docs: str | None = None,
    refit: LeftOut | None = None,
    ablation: Annotated[bool, Parameter(negative=())] = False,
    write_bands: str | None = None,
    write_stacks: str | None = None,
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
        calibration: auto (the case's own stack), a stack, unit (ideal roofline) or a TOML file
        strict: exit 1 when a case has no prediction
        stored: compare with a scoreboard written earlier; exit 1 when a median or p90 got worse or support fell
        write_stored: write the scoreboard to FILE.json, for --stored
        write_docs: write the scoreboard (refits, ablation) into the marked block of a Markdown page
        refit: refit the serving numbers without each model, chip or stack in turn and score what was left out; with
            training cases alone, the training numbers without each source, model family or chip
        ablation: switch each effect of serving off in turn, refit the other numbers and score all cases
        write_bands: write the error bands of these cases to FILE.toml; with --refit from the refits that left them out
        write_stacks: fit the training numbers to the training cases and write the training stacks into FOLDER
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
        from rackline.validation.importers import Given, import_results

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
    from rackline.validation import validate as run
    from rackline.validation.page import write_docs as fill_page
    from rackline.validation.stored import read_stored, stored_form, worse_than
    from rackline.validation.stored import write_stored as store

    if write_stacks is not None:
        _write_stacks(files, write_stacks)
        return
    if refit is not None or ablation:
        for name, value in (("--plot", plot), ("--stored", stored), ("--write-stored", write_stored)):
            if value is not None:
                raise InputError(what=name, given=value, allowed="only without --refit and --ablation")
        if ablation and (refit is not None or write_bands is not None):
            raise InputError(what="--ablation", given="with other refits", allowed="--ablation alone")
        if ablation:
            _ablation(files, calibration, json, write_docs)
        elif refit is not None:
            _refit(files, refit, calibration, json, write_docs, write_bands)
        return
    drawing = read_plot(plot, "rackline.validation.figure:FIGURES", look=plot_theme)
    bands_file = check_file_to_write(write_bands, "--write-bands")
    store_file = check_file_to_write(write_stored, "--write-stored")
    before = read_stored(Path(stored)) if stored else None
    start = time.perf_counter()
    with progress("predicting cases"):
        board = run(files, calibration)
    elapsed_s = time.perf_counter() - start
    _warn(board)
    if write_docs is not None and len(board.both_ways) and len(board.both_ways) == board.num_cases:
        from rackline.validation.speculation import write_docs as fill_speculation

        fill_speculation(board.both_ways, Path(write_docs))
    elif write_docs is not None:
        fill_page(stored_form(board, files), Path(write_docs))
    if store_file is not None:
        store(board, files, store_file)
    if bands_file is not None:
        _write_bands(board.scores, files, bands_file)
    if drawing is not None:
        drawing.write(board)
    worse = worse_than(before, board) if before is not None else []
    if json:
        print_json({**board.as_dict(), **({"worse": worse} if before is not None else {})})
    else:
        from rackline.validation.report import scoreboard_report

        out = screen()
        out.print(scoreboard_report(board, elapsed_s=elapsed_s, width=out.width))
    for line in worse:
        print(f"worse: {line}", file=sys.stderr)
    if worse or (strict and board.unsupported):
        sys.stdout.flush()
        raise SystemExit(1)


def _refit(
    files: tuple[str, ...],
    by: LeftOut,
    calibration: str,
    json: bool,
    write_docs: str | None,
    write_bands: str | None,
) -> None:
    """Leave each one out in turn."""
    from rackline.validation import read_cases
    from rackline.validation.refit import refit

    cases = read_cases(files)
    if all(case.kind == "train" for case in cases.cases):
        _refit_training(cases, by, json, write_docs, write_bands)
        return
    if by == "source":
        raise InputError(what="--refit", given=by, allowed="model, chip or stack; source for training cases alone")
    from rackline.validation.refit_report import refit_report, write_refit_docs

    bands_file = check_file_to_write(write_bands, "--write-bands")
    start = time.perf_counter()
    with counting(f"refitting without each {by}", "fitted without") as done:
        found = refit(cases, by, calibration=calibration, done=done)
    elapsed_s = time.perf_counter() - start
    _warn(found.board)
    if write_docs is not None:
        write_refit_docs(found, Path(write_docs))
    if bands_file is not None:
        from rackline.validation.run import score_cases

        # what was left out stands for a new model; kinds of cases that no number is fitted to are scored as they are
        kinds = {score.groups["kind"] for score in found.board.scores}
        others = [s for s in score_cases(cases, calibration, num_worst=0).scores if s.groups["kind"] not in kinds]
        _write_bands([*found.board.scores, *others], files, bands_file)
    if json:
        print_json({**found.as_dict(), "elapsed_s": elapsed_s})
        return
    out = screen()
    out.print(refit_report(found, elapsed_s=elapsed_s, width=out.width))


def _refit_training(cases: CaseSet, by: LeftOut, json: bool, write_docs: str | None, write_bands: str | None) -> None:
    """Leave each source, model family or chip of training cases out in turn."""
    from rackline.validation.train_refit import refit_training
    from rackline.validation.train_report import train_refit_report, write_train_refit_docs

    if write_bands is not None:
        raise InputError(what="--write-bands", given=write_bands, allowed="only for served cases")
    if by == "stack":
        raise InputError(what="--refit", given=by, allowed="source, model or chip for training cases", nearest="source")
    start = time.perf_counter()
    with counting(f"refitting without each {by}", "fitted without") as done:
        found = refit_training(cases, by, done=done)
    elapsed_s = time.perf_counter() - start
    if write_docs is not None:
        write_train_refit_docs(found, Path(write_docs))
    if json:
        print_json({**found.as_dict(), "elapsed_s": elapsed_s})
        return
    screen().print(train_refit_report(found, elapsed_s=elapsed_s))


def _write_stacks(files: tuple[str, ...], folder: str) -> None:
    """Fit the training numbers and write the stacks that hold them."""
    from rackline.validation import read_cases
    from rackline.validation.train_refit import fitted_stacks
    from rackline.validation.train_stacks import write_stacks as write

    target = Path(folder)
    if not target.is_dir():
        raise InputError(what="--write-stacks", given=folder, allowed="a folder that exists")
    with progress("fitting the training numbers"):
        stacks = fitted_stacks(read_cases(files))
    for path in write(stacks, target):
        print(f"written: {path}", file=sys.stderr)


def _ablation(files: tuple[str, ...], calibration: str, json: bool, write_docs: str | None) -> None:
    """Switch each effect off in turn."""
    from rackline.validation import read_cases
    from rackline.validation.ablation import ablation
    from rackline.validation.ablation import write_docs as fill_page
    from rackline.validation.refit_report import ablation_report

    start = time.perf_counter()
    with counting("refitting without each effect", "fitted without") as done:
        rows = ablation(read_cases(files), calibration=calibration, done=done)
    elapsed_s = time.perf_counter() - start
    if write_docs is not None:
        fill_page(rows, Path(write_docs))
    if json:
        print_json({"effects": [row.as_dict() for row in rows], "elapsed_s": elapsed_s})
        return
    screen().print(ablation_report(rows, elapsed_s=elapsed_s))


def _write_bands(scores: Iterable[Score], files: tuple[str, ...], target: Path) -> None:
    """Write the error bands of these values."""
    from rackline.validation.bands import make_bands, to_toml

    target.write_text(to_toml(make_bands(scores), files), encoding="utf-8")


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
