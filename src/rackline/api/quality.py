"""Target quality and loss law: texts of `budget` → objects."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rackline.errors import InputError, RacklineError, UnknownNameError, nearest_names
from rackline.late import late
from rackline.units import parse_count

with late:
    from rackline import arch, catalog, scaling


MOST_TOKENS = 1e21
MOST_PARAMS = 1e18
DEFAULT_LAW, DEFAULT_JOINT_LAW = "besiroglu", "ludziejewski"
_MIXTURE = re.compile(r"^(?P<total>[^@]+?)-a(?P<active>[^@]+)@(?P<tokens>.+)$", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The model whose quality is wanted: its parameters and the tokens that it was trained on."""

    total_params: float
    active_params: float
    tokens: float


def quality_of(text: str) -> Quality:
    """Read SIZE@TOKENS, TOTAL-aACTIVE@TOKENS or NAME@TOKENS.

    Raises:
        InputError: another form.
    """
    size, at, tokens = text.rpartition("@")
    if not (at and size and tokens):
        raise InputError(what="quality_of", given=text, allowed="SIZE@TOKENS such as 70b@15T", nearest="70b@15T")
    count = _amount(tokens, "tokens of `quality_of`", MOST_TOKENS)
    name = size.strip()
    if re.match(r"^[\d.+-]", name):
        mixture = _MIXTURE.match(text)
        if mixture is None:
            params = _amount(name, "size of `quality_of`", MOST_PARAMS)
            return Quality(total_params=params, active_params=params, tokens=count)
        total = _amount(mixture["total"], "size of `quality_of`", MOST_PARAMS)
        active = _amount(mixture["active"], "active size of `quality_of`", MOST_PARAMS)
        if active > total:
            raise InputError(
                what="quality_of",
                given=text,
                allowed="TOTAL-aACTIVE@TOKENS; a model is not smaller than its active part",
                nearest=f"{mixture['active']}-a{mixture['total']}@{tokens}",
            )
        return Quality(total_params=total, active_params=active, tokens=count)

    found = arch.model(name)
    if isinstance(found, arch.Model) and not found.is_moe:  # laws count all parameters of a dense model
        return Quality(total_params=found.total_params, active_params=found.total_params, tokens=count)
    return Quality(total_params=found.total_params, active_params=found.active_params, tokens=count)


def laws_of(
    name: str | None, wanted: Quality | None, experts: float, *, mixture: bool
) -> tuple[scaling.LossLaw, scaling.LossLaw]:
    """The law of the wanted model and that of the new one: the same but for their numbers of experts.

    Raises:
        InputError: an unknown law, or one that knows nothing of mixtures for a mixture.
    """
    if name is not None and name.endswith(".csv"):
        if mixture or (wanted is not None and wanted.total_params > wanted.active_params):
            raise InputError(
                what="law", given=name, allowed="ludziejewski for mixtures: these runs are of dense models"
            )
        fitted = scaling.fit_file(name).law
        return fitted, fitted
    of_wanted = 1.0
    if wanted is not None and wanted.total_params > wanted.active_params:
        of_wanted = float(scaling.routed_num_experts(wanted.total_params, wanted.active_params))
    if mixture or of_wanted > 1.0:
        try:
            return scaling.joint_law(of_wanted, name or DEFAULT_JOINT_LAW), scaling.joint_law(
                experts, name or DEFAULT_JOINT_LAW
            )
        except UnknownNameError as error:
            raise _unknown_law(name or "") from error
    try:
        law = scaling.loss_law(name or DEFAULT_LAW)
    except UnknownNameError as error:
        raise _unknown_law(name or "") from error
    except RacklineError:
        if name is None:
            raise
        law = scaling.joint_law(1.0, name)
    return law, law


def _amount(text: str, name: str, maximum: float) -> float:
    """A count in which 70b means 70B and 15t means 15T."""
    spelled = text.strip()
    spelled = spelled[:-1] + spelled[-1:].upper() if spelled[-1:] in ("b", "t", "m") else spelled
    return parse_count(spelled, name=name, minimum=1.0, maximum=maximum)


def _unknown_law(name: str) -> InputError:
    known = catalog.names("laws")
    near = nearest_names(name, known, 1)
    return InputError(
        what="law",
        given=name,
        allowed=f"{', '.join(known)}, a TOML file or a CSV file of losses",
        nearest=near[0] if near else None,
    )
