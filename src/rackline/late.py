"""Imports that load a module when it is first used.

    from rackline.late import late

    with late:
        from rackline.report import plan_report

imports `plan_report` for type checkers and readers like any module, and runs it, with all that it imports, when an
attribute of it is first asked for. So a question says at the top of its file what it stands on, and a command line that
only prints its help loads none of it.

Packages below this one are late everywhere: importing a module of a package does not run what the package hands out.
So a module never imports from its own package a name that its `__init__` hands out; a test reads the imports.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from os.path import isfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rackline.errors import InputError

if TYPE_CHECKING:
    from importlib.resources.abc import TraversableResources

_OWN = f"{__name__.partition('.')[0]}."


class _LateModule(ModuleType):
    """A module that has not run; `__getattr__` is asked for what it does not have yet."""

    def __getattr__(self, name: str) -> Any:
        if late.is_on:
            raise AttributeError(name)  # so that the import system looks for a module of this name
        if name in ("__file__", "__all__") or not (name.startswith("__") and name.endswith("__")):
            _run(self)
            if name in self.__dict__:
                return self.__dict__[name]
            if "__getattr__" in self.__dict__:  # of a package that hands out names itself
                return self.__dict__["__getattr__"](name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        """Bind a name, but not a module of a package that hands out something else by this name once it has run.

        `rackline.serving.capacity` is a module, and `serving.capacity` the function in it.
        """
        loader = getattr(self.__dict__.get("__spec__"), "loader", None)
        if (
            isinstance(loader, _Loader)
            and not loader.begun
            and isinstance(value, ModuleType)
            and loader.hands_out(name)
        ):
            return
        super().__setattr__(name, value)


class _Package(ModuleType):
    """A package that has run; a name that it binds itself, such as a function `plan`, stays before a module of it."""

    def __setattr__(self, name: str, value: object) -> None:
        own = self.__dict__.get(name)
        if own is None or isinstance(own, ModuleType) or value is not sys.modules.get(f"{self.__name__}.{name}"):
            super().__setattr__(name, value)


class _Loader:
    """Makes a module and keeps it from running."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lock = threading.RLock()
        self.begun = False

    def hands_out(self, name: str) -> bool:
        """Whether the package's `__all__` has this name; read from its text, since it has not run."""
        return f'"{name}"' in Path(self.path).read_text(encoding="utf-8")

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module."""
        return _LateModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing yet."""

    def get_resource_reader(self, name: str) -> TraversableResources:
        """A reader of the files beside a package that has not run yet."""
        from importlib.resources.readers import FileReader

        return FileReader(self)  # pyright: ignore[reportArgumentType]


def _run(module: ModuleType) -> None:
    """Run a module once."""
    spec = module.__spec__
    if spec is None or not isinstance(loader := spec.loader, _Loader):
        return
    with loader.lock:
        if loader.begun:  # by this thread, which is in the middle of it; or by another, which is done
            return
        above = sys.modules[module.__name__.rpartition(".")[0]]
        real = PathFinder.find_spec(module.__name__, above.__path__)
        if real is None or real.loader is None:
            raise ModuleNotFoundError(f"No module named {module.__name__!r}", name=module.__name__)
        module.__file__ = real.origin
        loader.begun = True
        try:
            real.loader.exec_module(module)
        except BaseException:
            loader.begun = False
            raise
        module.__spec__, module.__loader__ = real, real.loader
        module.__class__ = ModuleType if real.submodule_search_locations is None else _Package


class _Late:
    """Imports of this package below a `with` of it are late."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    @property
    def is_on(self) -> bool:
        """Whether this thread is below a `with`."""
        return threading.get_ident() in self._threads

    def __enter__(self) -> None:
        self._threads.add(threading.get_ident())

    def __exit__(self, *raised: object) -> None:
        self._threads.discard(threading.get_ident())

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A package of this one, or a module below a `with`, as one that does not run yet; none of the others."""
        if not fullname.startswith(_OWN):
            return None
        for folder in path or ():
            place = f"{folder}/{fullname.rpartition('.')[2]}"
            is_package = isfile(f"{place}/__init__.py")
            if is_package or (self.is_on and isfile(f"{place}.py")):
                loader = _Loader(f"{place}/__init__.py" if is_package else f"{place}.py")
                spec = ModuleSpec(fullname, loader, is_package=is_package)  # pyright: ignore[reportArgumentType]
                if is_package:
                    spec.submodule_search_locations = [place]
                return spec
        return None


late = _Late()
sys.meta_path.insert(0, late)


_EXTRA_OF = {
    "fastapi": "web",
    "fsspec": "sweep",
    "jax": "lab",
    "jinja2": "web",
    "optax": "lab",
    "polars": "sweep",
    "ray": "ray",
    "starlette": "web",
    "uvicorn": "web",
    "vl_convert": "plot",
}
"""Module → the extra that installs it."""


def load_optional(module: str, *, what: str, instead: str = "", nearest: str | None = None) -> Any:
    """A module of an extra, loaded where it is needed.

    Args:
        module: its name, such as polars.
        what: who needs it, in the reader's words ("rackline sweep", "--plot").
        instead: what works without it; may be empty.
        nearest: the nearest value that works without it, if there is one.

    Returns:
        The module.

    Raises:
        InputError: it is not installed; the line names the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing_extra(error, what=what, instead=instead, nearest=nearest) from None


def missing_extra(
    error: ModuleNotFoundError, *, what: str, instead: str = "", nearest: str | None = None
) -> InputError | ModuleNotFoundError:
    """What to say of a module that is not there: the extra that brings it, or the error itself where none does.

    Args:
        error: of the import.
        what, instead, nearest: as for `load_optional`.

    Returns:
        The error to raise.
    """
    module = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF.get(module)
    if extra is None:
        return error
    allowed = f"the extra {extra} (pip install 'rackline[{extra}]'; in a clone: uv run --extra {extra} rackline ...)"
    return InputError(
        what=what,
        given=f"no {module} in this environment",
        allowed=f"{instead}; {allowed}" if instead else allowed,
        nearest=nearest,
    )
