"""The tree of errors: one line each, what was given, what is allowed, where, and the nearest name."""

import pickle

import pytest

from rackline import errors
from rackline.errors import InputError, RacklineError, nearest_names


def test_message_names_place_value_allowed_and_nearest() -> None:
    error = InputError(
        what="chip", given="h1000", allowed="a catalogue name", where="a.toml, line 3", nearest="h100-sxm"
    )
    assert str(error) == ("a.toml, line 3: chip: got 'h1000', allowed: a catalogue name; nearest: h100-sxm")
    assert (error.what, error.given, error.allowed) == ("chip", "h1000", "a catalogue name")
    assert (error.where, error.nearest) == ("a.toml, line 3", "h100-sxm")


def test_empty_parts_are_left_out() -> None:
    assert str(InputError(what="tp", given=3, allowed="")) == "tp: got 3"
    assert str(InputError(what="", given=3, allowed="even")) == "got 3, allowed: even"


def test_every_message_is_one_line() -> None:
    assert "\n" not in str(InputError(what="a\nb", given="c\nd", allowed="e\n f"))
    assert str(RacklineError("two\nlines")) == "two lines"


@pytest.mark.parametrize(
    "kind",
    [
        errors.UnitError,
        errors.UnknownNameError,
        errors.CatalogError,
        errors.ConfigError,
        errors.LayoutError,
        errors.PrecisionError,
    ],
)
def test_all_are_input_errors_and_survive_a_process_border(kind: type[InputError]) -> None:
    error = kind(what="tp", given=3, allowed="1, 2, 4", where="plan", nearest="4")
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(error, InputError)
    assert isinstance(error, RacklineError)
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert copy.nearest == "4"


def test_nearest_names_ranks_by_likeness_and_ignores_case() -> None:
    known = ["h100-sxm", "h200-sxm", "tpu-v5e", "a100-sxm-80gb"]
    assert nearest_names("H100-SMX", known)[0] == "h100-sxm"
    assert nearest_names("h100", known)[0] == "h100-sxm"
    assert nearest_names("zzzzqq", known) == []
    assert len(nearest_names("x100-sxm", known, n=1)) == 1
    assert nearest_names("", known) == []
