"""Context parallelism: one published method a file, chosen by name."""

from rackline.errors import unknown_name
from rackline.training.contexts.all_gather import ALL_GATHER
from rackline.training.contexts.method import ContextMethod, ContextName
from rackline.training.contexts.ring import RING
from rackline.training.contexts.ulysses import ULYSSES

METHODS: dict[str, ContextMethod] = {one.name: one for one in (RING, ALL_GATHER, ULYSSES)}


def context_method(name: str) -> ContextMethod:
    """A method by name. Raises InputError for an unknown one."""
    if name not in METHODS:
        raise unknown_name("context_parallel", name, METHODS)
    return METHODS[name]


__all__ = ["METHODS", "ContextMethod", "ContextName", "context_method"]
