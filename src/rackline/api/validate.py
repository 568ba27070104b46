"""`validate`: predict measured cases, or turn results of a benchmark into cases."""

from __future__ import annotations

from pathlib import Path

from rackline.api import validated
from rackline.api.answer import asks
from rackline.api.validated import (
    Ablation,
    Format,
    Found,
    Imported,
    LeftOut,
    StacksWritten,
    Validated,
    ValidateQuestion,
)
from rackline.api.verbs import Entry
from rackline.api.watch import Watch
from rackline.errors import InputError
from rackline.files import check_outputs, write_text
from rackline.late import late

with late:
    from rackline import validation
    from rackline.validation import ablation, importers, refit, scoreboard, train_fit
    from rackline.validation import cases as validation_cases


@asks(
    ValidateQuestion,
    text=validated.text_of,
    summary=validated.summary_of,
    rows=validated.rows_of,
    data=validated.data_of,
    figures={"parity": validated.figure_of},
    files=validated.FILES,
    notes=validated.notes,
    status=validated.status,
    refuse=validated.refuse,
    entry=Entry(
        group="Measure",
        place=2,
        line="Compare predictions with measured cases.",
        usual=("calibration", "stored", "import_format", "output"),
        request={
            "files": ["cases.jsonl"],
            "uploads": {
                "cases.jsonl": '{"id": "a", "kind": "static-batch", "source": "own", "model": "llama-3.1-8b", '
                '"chip": "h100-sxm", "num_chips": 1, "stack": "trtllm", "precision": "bf16", '
                '"layout": {"tp": 1}, "batch_size": 8, "input_len": 1000, "output_len": 100, '
                '"measured": {"token_s": 0.008}}\n'
            },
        },
        is_long=True,
        examples="""
    rackline validate cases.jsonl --plot parity.html
    rackline validate cases.jsonl --calibration unit --json
    rackline validate --import vllm result.json --chip h100-sxm \\
      --num-chips 4 --layout tp=4 --precision fp8 -o cases.jsonl
""",
    ),
)
def validate(question: ValidateQuestion, watch: Watch) -> Found:
    """Predict measured cases and print how far off the predictions are, by metric, model, chip, stack and precision.

    A case that cannot be predicted is counted and named, never dropped. With an import format, results of a benchmark
    are turned into cases instead.

    Example:
        >>> import rackline as rl
        >>> rl.validate("no-such-cases.jsonl")
        Traceback (most recent call last):
        ...
        rackline.errors.InputError: ...
    """
    files = question.files
    if question.import_format is not None:
        return _import(question, files, question.import_format)
    allowed = "only with `import_format`, which says what the results lack"
    question.refuse("model", "chip", "output", "layout", allowed=allowed)
    if question.write_stacks is not None:
        return _write_stacks(files, question.write_stacks, watch)
    if question.stored is not None and (question.ablation or question.refit is not None):
        raise InputError(what="stored", given=question.stored, allowed="only without `refit` and `ablation`")
    if question.ablation:
        if question.refit is not None:
            raise InputError(what="ablation", given="with other refits", allowed="`ablation` alone")
        return _ablation(files, question.calibration, watch)
    if question.refit is not None:
        return _refit(files, question.refit, question.calibration, watch)

    before = scoreboard.read_stored(Path(question.stored)) if question.stored else None
    with watch.moving("predicting cases"):
        board = validation.validate(files, question.calibration)
    return Validated(board=board, worse=None if before is None else tuple(scoreboard.worse_than(before, board)))


def _import(question: ValidateQuestion, files: tuple[str, ...], import_format: Format) -> Imported:
    target = None if question.output is None else Path(question.output)
    check_outputs({"output": target}, {f"files {name}": name for name in files})
    given = importers.Given(
        model=question.model,
        chip=question.chip,
        num_chips=question.num_chips,
        layout=question.layout,
        precision=question.precision,
        stack=question.stack,
        input_len=question.input_len,
        output_len=question.output_len,
        concurrency=question.concurrency,
    )
    lines = importers.import_results(files, import_format, given)
    if target is not None:
        write_text(target, lines, what="output")
    return Imported(lines=lines, file=question.output)


def _refit(files: tuple[str, ...], by: LeftOut, calibration: str, watch: Watch) -> refit.Refit | train_fit.TrainRefit:
    """Leave each one out in turn."""
    cases = validation.read_cases(files)
    if all(case.kind == "train" for case in cases.cases):
        return _refit_training(cases, by, watch)
    if by == "source":
        raise InputError(what="refit", given=by, allowed="model, chip, stack, version, laboratory or half")
    with watch.counting(f"refitting without each {by}", "fitted without") as done:
        return refit.refit(cases, by, calibration=calibration, done=done)


def _refit_training(cases: validation_cases.CaseSet, by: LeftOut, watch: Watch) -> train_fit.TrainRefit:
    """Leave each source, model family or chip of training cases out in turn."""
    if by in ("stack", "version", "half", "laboratory"):
        raise InputError(what="refit", given=by, allowed="source, model or chip for training cases", nearest="source")
    with watch.counting(f"refitting without each {by}", "fitted without") as done:
        return train_fit.refit_training(cases, by, done=done)


def _ablation(files: tuple[str, ...], calibration: str, watch: Watch) -> Ablation:
    with watch.counting("refitting without each effect", "fitted without") as done:
        return Ablation(
            effects=tuple(ablation.ablation(validation.read_cases(files), calibration=calibration, done=done))
        )


def _write_stacks(files: tuple[str, ...], folder: str, watch: Watch) -> StacksWritten:
    """Fit the training numbers and write the stacks that hold them."""
    target = Path(folder)
    if not target.is_dir():
        raise InputError(what="write_stacks", given=folder, allowed="a folder that exists")
    with watch.moving("fitting the training parameters"):
        stacks = train_fit.fitted_stacks(validation.read_cases(files))
    written, failed = train_fit.write_stacks(stacks, target)
    return StacksWritten(files=tuple(str(path) for path in written), not_written=tuple(failed))
