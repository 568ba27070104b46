"""Tables of a new release or chip as entries of the catalogue, beside what is stored of it.

A group of kernels is a class and data type on one chip under one stack. Where the stored numbers describe its new times
as well as numbers fitted to them do on rows that no fit saw, they stay, and cover the new release too. Else numbers
that are drawn to the stored ones take their place, and the stored ones become those of older versions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, ClassVar, Literal, assert_never, cast

import numpy as np

from rackline.catalog import names, release_numbers
from rackline.catalog.index import file_of
from rackline.errors import InputError
from rackline.files import parse_toml, rounded, shipped_toml, toml_text
from rackline.fitting.fit import Group, KernelFit, terms_of, version_of
from rackline.fitting.run import CalibrationResult
from rackline.fitting.solver import SEEDS, Errors, Values, half_of_families, held_out_errors, is_worse, is_worth
from rackline.fitting.tables import Measurements
from rackline.fitting.write import GENERIC, Entry, collective_entries, held_collectives, kernel_entries

Verdict = Literal["new", "replaced", "as stored", "rejected"]


@cache
def ships() -> Mapping[str, tuple[str, ...]]:
    """Names of the calibrations that ship, `fitted` and `by_hand`, and the classes that are `held` back."""
    return {key: tuple(values) for key, values in shipped_toml("rackline.fitting", "ships.toml").items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class OnboardedGroup:
    """What became of the rows of one group.

    Args:
        chip, stack, op_class, dtype: of the kernels; of a collective, dtype is the number of ranks.
        errors: of numbers fitted to them, on rows and families of shapes that the fit did not see; beside stored
            numbers the ratio of the slower to the faster of predicted and measured, less one.
        stored_version: newest version of the stored numbers; empty where nothing is stored.
        stored_error: median error of the stored numbers on the new rows; NaN where nothing is stored [1].
        stated_error: median error that the stored entry states of its own rows; NaN likewise [1].
        verdict: what the catalogue has now.
        reason: why numbers were rejected.
    """

    json_keys: ClassVar = (
        "chip",
        "stack",
        "class=op_class",
        "dtype",
        "*errors",
        "stored_version",
        "stored_error",
        "stated_error",
        "verdict",
        "worse=is_worse",
        "reason",
    )

    chip: str
    stack: str
    op_class: str
    dtype: str
    errors: Errors
    stored_version: str = ""
    stored_error: float = math.nan
    stated_error: float = math.nan
    verdict: Verdict = "new"
    reason: str = ""

    @property
    def error(self) -> float:
        """Median error of the numbers that the catalogue has now, on new rows that they were not fitted to [1]."""
        own = math.nan if self.errors.median_error is None else self.errors.median_error
        return self.stored_error if self.verdict in ("as stored", "rejected") else own

    @property
    def is_worse(self) -> bool:
        """Whether the release is described worse than its entry was before; never where nothing was stored."""
        return not math.isnan(self.stated_error) and is_worse(self.error, self.stated_error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Onboarding:
    """Entries of a release or chip.

    Args:
        groups: of kernels and collectives.
        texts: name of a calibration → its file with the new entries.
    """

    groups: tuple[OnboardedGroup, ...]
    texts: Mapping[str, str]


def of_release(tables: Iterable[Measurements], stack: str, version: str, chip: str) -> list[Measurements]:
    """The tables of a release, of a chip, or of both; the versions before it that they hold are left out.

    Args:
        stack, version: of the release; empty for all stacks.
        chip: name; empty for all.

    Raises:
        InputError: the tables hold nothing of it.
    """
    known = list(tables)
    found = [
        replace(one, older=())
        for one in known
        if (not stack or (one.stack == stack and release_numbers(one.stack_version) == release_numbers(version)))
        and chip in ("", one.chip)
    ]
    if not found:
        held = dict.fromkeys(f"{one.stack}={one.stack_version}" if stack else one.chip for one in known)
        raise InputError(
            what="release" if stack else "chip",
            given=f"{stack}={version}" if stack else chip,
            allowed=f"what the tables measure: {', '.join(sorted(held))}" + (f" (on {chip})" if chip and stack else ""),
        )
    return found


def onboard(result: CalibrationResult, citation: str) -> Onboarding:
    """Put fits beside the entries of the catalogue.

    Args:
        result: fits of the tables of a release or chip.
        citation: where the tables are from.

    Raises:
        InputError: a stack that the catalogue has no calibration of.
    """
    entries: dict[str, _Entries] = {}

    def of(stack: str) -> _Entries:
        if stack not in names("calibrations"):
            allowed = f"a stack of the catalogue: {', '.join(ships()['fitted'])}"
            raise InputError(what="stack of a table", given=stack, allowed=allowed)
        return entries.setdefault(stack, _Entries.of(stack))

    groups = [of(fit.group.stack).put(fit, result.rejected.get(fit.group.key, "")) for fit in result.kernels]
    for fit in held_collectives(result.collectives)[0]:
        place = of(fit.stack if fit.of_stack else GENERIC)
        stored, *_ = [place.put_entry("collective", entry) for entry in collective_entries(fit)]
        groups.append(
            OnboardedGroup(
                chip=fit.chip,
                stack=fit.stack,
                op_class=fit.op_class,
                dtype=str(fit.group_size),
                errors=fit.errors,
                stored_version=str(stored.get("stack_version", "")),
                stated_error=cast("float", stored.get("median_error", math.nan)),
                verdict="replaced" if stored else "new",
            )
        )
    return Onboarding(
        groups=tuple(groups),
        texts={stack: one.text(citation) for stack, one in entries.items() if one.changed},
    )


@dataclass(frozen=True, slots=True)
class _Entries:
    """A calibration's file as plain data, and which of its entries are new.

    Args:
        data: of the file.
        comments: at its head.
        changed: keys of new and extended entries, such as "operation.12.*".
    """

    data: dict[str, Any]
    comments: list[str]
    changed: list[str]

    @classmethod
    def of(cls, stack: str) -> _Entries:
        """The file of a stack, the user's own before the shipped one."""
        text = file_of("calibrations", stack).read_text(encoding="utf-8")
        comments = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
        return cls(parse_toml(text), comments, [])

    def put(self, fit: KernelFit, reason: str) -> OnboardedGroup:
        """Put the entries of a fit in, where the stored ones do not describe its rows as well."""
        group = fit.group
        classes = [group.work.op_class, *(one.op_class for one in group.work.others)]
        stored = [self._stored("operation", (group.chip, name, group.work.dtype)) for name in classes]
        found = OnboardedGroup(
            chip=group.chip,
            stack=group.stack,
            op_class=group.work.op_class,
            dtype=group.work.dtype,
            errors=fit.errors,
            verdict="rejected" if reason else "new",
            reason=reason,
        )
        if all(stored):
            fit, stored_error, gains = _drawn(fit, _values(group, stored))
            found = replace(
                found,
                errors=fit.errors,
                stored_version=str(stored[0].get("stack_version", "")),
                stored_error=stored_error,
                stated_error=float(stored[0].get("median_error", math.nan)),
                verdict="rejected" if reason else "replaced" if gains else "as stored",
            )
        match found.verdict:
            case "as stored":
                for entry in stored:
                    self._extend(entry, group.stack_version)
            case "new" | "replaced":
                for entry in kernel_entries(fit):
                    self.put_entry("operation", entry)
            case "rejected":
                self.comments.append(
                    f"  {group.stack_version} on {group.chip} {found.op_class} {found.dtype}: {reason}"
                )
            case _:
                assert_never(found.verdict)
        return found

    def put_entry(self, table: str, entry: Entry) -> Entry:
        """Put an entry in place of the stored one, which becomes that of an older version, and return that one."""
        entries = self.data.setdefault(table, [])
        stored = self._stored(table, _key(entry))
        place = next((at for at, one in enumerate(entries) if one is stored), len(entries))
        entries[place : place + 1] = [entry]
        self.changed.append(f"{table}.{place}.*")
        version = str(stored.get("stack_version", ""))
        if release_numbers(version) and version != entry["stack_version"] and self.data["name"] != GENERIC:
            self.data.setdefault(f"older_{table}", []).append(stored)
        return stored

    def text(self, citation: str) -> str:
        """The file with its new entries."""
        accessed = datetime.now(UTC).date().isoformat()
        source = {"fields": self.changed, "kind": "measured", "citation": citation, "accessed": accessed}
        return toml_text(rounded({**self.data, "sources": [*self.data["sources"], source]}), self.comments)

    def _stored(self, table: str, key: tuple[object, ...]) -> Entry:
        nothing: Entry = {}
        return next((one for one in self.data.get(table, []) if _key(one) == key), nothing)

    def _extend(self, entry: Entry, version: str) -> None:
        """Have an entry describe a version more."""
        before = str(entry.get("stack_version", ""))
        if before == version:
            return
        oldest = min((before, version), key=release_numbers)
        entry["stack_version"] = max((before, version), key=release_numbers)
        if release_numbers(oldest):
            entry["oldest_version"] = min((str(entry.get("oldest_version", oldest)), oldest), key=release_numbers)
        place = next(at for at, one in enumerate(self.data["operation"]) if one is entry)
        self.changed.append(f"operation.{place}.*")


def _key(entry: Entry) -> tuple[object, ...]:
    return entry["chip"], entry["class"], entry.get("dtype", entry.get("group_size"))


def _values(group: Group, stored: Sequence[Entry]) -> Values:
    """The numbers of stored entries as values of the fit of a group."""
    classes = dict(zip(["", *(one.op_class for one in group.work.others)], stored, strict=True))

    def stated(name: str, usual: float) -> float:
        op_class, _, own = name.rpartition(".")
        return float(classes[op_class].get(own, usual))

    shares = ("eta_compute", "eta_memory")
    return {term.name: stated(term.name, float(term.name.endswith(shares))) for term in terms_of(group.work)}


def _drawn(fit: KernelFit, known: Values) -> tuple[KernelFit, float, bool]:
    """The fit of a group drawn to known numbers, their median error, and whether the fit gains on them on rows that it
    did not see."""
    group = fit.group
    table = version_of(group, known, group.measured_s)
    own, stored = held_out_errors(table, known)
    masks = {str(seed): half_of_families(group.families, seed) for seed in SEEDS}
    tested = {name: mask for name, mask in masks.items() if not mask.all()}
    family = held_out_errors(table, known, tested)[0] if tested else None

    def quantile(errors: np.ndarray[Any, Any] | None, share: float) -> float | None:
        return None if errors is None else float(np.quantile(errors, share))

    errors = replace(
        fit.errors,
        median_error=quantile(own, 0.5),
        p90_error=quantile(own, 0.9),
        family_median_error=quantile(family, 0.5),
        family_p90_error=quantile(family, 0.9),
    )
    values = table.fit(np.ones(len(group.measured_s), dtype=np.bool_), known)
    drawn = replace(fit, values=values, errors=errors, oldest_version="", older=())
    return drawn, float(np.median(stored)), is_worth(own, stored)
