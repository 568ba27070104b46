"""Modules of the package that are loaded when something of them is first used.

    from rackline.late import late

    with late:
        from rackline.report import plan_report

imports `plan_report` for type checkers and readers like any module, and runs it, with all that it imports, when an
attribute of it is first asked for. So a question says at the top of its file what it stands on, and a command line that
only prints its help loads none of it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader

_OWN = f"{__name__.partition('.')[0]}."


class _LateModule(ModuleType):
    """A module that has not run; `__getattr__` is asked for what it does not have yet."""

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":
            places = _places(self)
            if places is None:
                raise AttributeError(name)
            if not late.is_on:  # an ordinary import of a module below runs the package first
                _run(self)
            return places
        if late.is_on:
            raise AttributeError(name)  # so that the import system looks for a module of this name
        if name in ("__file__", "__all__") or not (name.startswith("__") and name.endswith("__")):
            _run(self)
            if name in self.__dict__:
                return self.__dict__[name]
            if "__getattr__" in self.__dict__:  # of a package that hands out names itself
                return self.__dict__["__getattr__"](name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


class _Loader:
    """Makes a module and keeps it from running.

    Args:
        real: runs it.
    """

    def __init__(self, real: Loader) -> None:
        self.real = real
        self.lock = threading.RLock()
        self.begun = False

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty one."""
        return _LateModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing yet; a package tells where its modules lie when it is asked."""
        module.__dict__.pop("__path__", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def _places(module: ModuleType) -> Sequence[str] | None:
    return None if module.__spec__ is None else module.__spec__.submodule_search_locations


def _run(module: ModuleType) -> None:
    """Run a module once, its package first."""
    spec = module.__spec__
    if spec is None or not isinstance(loader := spec.loader, _Loader):
        return
    with loader.lock:
        if loader.begun:  # by this thread, which is in the middle of it; or by another, which is done
            return
        if spec.parent and spec.parent != spec.name and isinstance(above := sys.modules.get(spec.parent), _LateModule):
            _run(above)
        if loader.begun:  # the package has run it
            return
        loader.begun = True
        if (places := _places(module)) is not None:
            module.__dict__["__path__"] = places
        try:
            loader.real.exec_module(module)
        except BaseException:
            loader.begun = False
            raise
        spec.loader = module.__loader__ = loader.real
        module.__class__ = ModuleType


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
        sys.meta_path.insert(0, self)

    def __exit__(self, *raised: object) -> None:
        sys.meta_path.remove(self)
        self._threads.discard(threading.get_ident())

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A module of this package, as one that does not run yet; none of the others."""
        spec = PathFinder.find_spec(fullname, path) if self.is_on and fullname.startswith(_OWN) else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # pyright: ignore[reportAttributeAccessIssue] - as a loader does
        return spec


late = _Late()
