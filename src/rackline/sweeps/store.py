"""Where the shards of a sweep lie: a local folder, or any address that fsspec knows; a shard is there whole or not."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

from rackline.errors import InputError
from rackline.late import load_optional

SHARDS = "shards"
ENDING = ".parquet"


class LostStoreError(InputError):
    """A store that cannot be written or read: a full disk, a folder or server that is gone."""


class Store:
    """Files of one sweep by name, such as "shards/3f.parquet", in a folder of this machine.

    Args:
        address: of the folder.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.folder = Path(address)

    def names(self) -> set[str]:
        """The names of the shards that are there, without folder and ending."""
        with contextlib.suppress(FileNotFoundError):
            return {
                one.name.removesuffix(ENDING)
                for one in os.scandir(self.folder / SHARDS)
                if one.name.endswith(ENDING) and not one.name.startswith(".")
            }
        return set()

    def read(self, name: str) -> bytes:
        """One file. Raises FileNotFoundError where it is not there."""
        return (self.folder / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        """Write one file whole or not at all, first to a temporary name beside it; one that is there is replaced."""
        target = self.folder / name
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            with open(temporary, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def prepare(self) -> None:
        """Make the folders, and remove what interrupted writers have left; files of a writer that is there stay."""
        (self.folder / SHARDS).mkdir(parents=True, exist_ok=True)
        for one in (self.folder / SHARDS).glob(".*.tmp"):
            writer = one.name.split(".")[-2]
            if not (writer.isdigit() and _runs(int(writer))):
                with contextlib.suppress(OSError):
                    one.unlink()

    def sources(self, names: list[str]) -> list[Any]:
        """Shards as polars reads them: paths, or the bytes of each."""
        return [self.folder / SHARDS / f"{name}{ENDING}" for name in names]


class RemoteStore(Store):
    """Any address of fsspec, such as s3://bucket/folder; credentials and endpoints as its library finds them.

    Args:
        address: with its protocol.

    Raises:
        InputError: fsspec or the library of the protocol is not installed.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        fsspec = load_optional("fsspec", what=f"out {address}", instead="a folder")
        try:
            found = cast("tuple[Any, str]", fsspec.core.url_to_fs(address))  # pyright: ignore[reportUnknownMemberType]
        except (ImportError, ValueError) as error:
            raise InputError(what="out", given=address, allowed=f"an address that fsspec knows ({error})") from None
        self.system, path = found
        self.path = path.rstrip("/")

    def names(self) -> set[str]:
        """See `Store`."""
        self.system.invalidate_cache()
        try:
            with _system_errors():
                listed = cast("list[str]", self.system.ls(f"{self.path}/{SHARDS}", detail=False))
        except FileNotFoundError:
            return set()
        return {one.rsplit("/", 1)[-1].removesuffix(ENDING) for one in listed if one.endswith(ENDING)}

    def read(self, name: str) -> bytes:
        """See `Store`."""
        with _system_errors():
            return cast("bytes", self.system.cat_file(f"{self.path}/{name}"))

    def write(self, name: str, data: bytes) -> None:
        """See `Store`: object stores show an object when it is whole; elsewhere a temporary name is moved."""
        target = f"{self.path}/{name}"
        protocols: tuple[str, ...] | str = self.system.protocol
        if {"s3", "s3a", "gs", "gcs", "az", "abfs"} & set([protocols] if isinstance(protocols, str) else protocols):
            with _system_errors():
                self.system.pipe_file(target, data)
            return
        folder, _, last = target.rpartition("/")
        temporary = f"{folder}/.{last}.{os.getpid()}.tmp"
        with _system_errors():
            self.system.pipe_file(temporary, data)
            self.system.mv(temporary, target)

    def prepare(self) -> None:
        """See `Store`; a bucket must be there."""
        with _system_errors():
            self.system.makedirs(f"{self.path}/{SHARDS}", exist_ok=True)

    def sources(self, names: list[str]) -> list[Any]:
        """See `Store`: the bytes of each."""
        return [io.BytesIO(self.read(f"{SHARDS}/{name}{ENDING}")) for name in names]


@contextlib.contextmanager
def _system_errors() -> Generator[None]:
    """Errors of a store's own library, each of which has its own kinds, as errors of the system."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(" ".join(str(error).split()) or type(error).__name__) from error


def store_of(address: str) -> Store:
    """The store at an address: a folder, or PROTOCOL://... for fsspec."""
    return RemoteStore(address) if "://" in address else Store(address)


@contextlib.contextmanager
def lost(address: str, rest: str) -> Generator[None]:
    """Say what a store that cannot be used means for the sweep.

    Args:
        address: of the store.
        rest: what is there and how to go on.

    Raises:
        LostStoreError: in place of any error of the system or of the store's library.
    """
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        why = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise LostStoreError(
            what="out", given=address, allowed=f"a store that can be written ({why}); {rest}"
        ) from None


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    with contextlib.suppress(OSError, IndexError):  # ended, but not waited for yet
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return True
