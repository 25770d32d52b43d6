"""The storage of a lake: a directory, or a prefix of an S3 bucket. Other addresses are refused.

Driver and workers open the same storage from its address alone. The keys of S3 come from the environment of each
process (AWS_*), so no plan, task or log holds one. A file in a directory is private and synced; an object in S3
becomes visible when it is complete. delta-rs commits to S3 by conditional put, which needs neither a lock nor a rename.
Workers import this module, so it imports nothing heavy.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from posthouse.files import FILE_MODE, fsync_dir, private_dir, sync_file
from posthouse.journal.cursor import lake_directory
from posthouse.model.errors import error

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


LOG = "_delta_log"
SCRATCH = "scratch-"  # prefix of the names of temporary directories below a lake
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # delta-rs colors its errors
_REASON_CHARS = 400
_CONNECT_S, _REQUEST_S = 10.0, 60.0
_S3_VARIABLES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
)


def open_storage(location: str | Path) -> Storage:
    """Return the storage at a path or s3://BUCKET/PREFIX; raise lake_unsupported for any other address."""
    text = str(location)
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found else "file"
    if scheme == "file":
        return LocalStorage(_directory(text, text[found.end() :] if found else None))
    if scheme != "s3":
        reason = "write s3:// instead of Spark's s3a://" if scheme == "s3a" else f"{scheme}:// is not supported yet"
        raise error("lake_unsupported", location=text, reason=reason)
    parts = urlsplit(text)
    if not text[2:].startswith("://") or not parts.netloc or parts.query or parts.fragment:
        raise error("lake_unsupported", location=text, reason="it is not s3://BUCKET/PREFIX")
    return S3Storage(parts.netloc, parts.path.strip("/"))


def _directory(location: str, after_scheme: str | None) -> Path:
    """Return the directory of a path or of file:///PATH, which pathlib shortens to file:/PATH."""
    if after_scheme is None:
        path = Path(location).expanduser().absolute()
    elif after_scheme.startswith("///") or (after_scheme.startswith("/") and not after_scheme.startswith("//")):
        path = Path("/" + after_scheme.lstrip("/"))
    else:
        raise error("lake_unsupported", location=location, reason="it is not file:///PATH with an absolute path")
    if path.exists() and not path.is_dir():
        raise error("lake_unsupported", location=location, reason="it is a file, not a directory")
    return path


class StoredFile(NamedTuple):
    """A file that exists, with its path below the storage."""

    path: str
    modified_ns: int


class Storage(ABC):
    """A directory or a prefix; paths given to its methods are relative and use slashes."""

    @property
    @abstractmethod
    def uri(self) -> str:
        """The address, for delta-rs and for messages to people."""

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.uri.rpartition("/")[2]

    @property
    @abstractmethod
    def host_directory(self) -> Path:
        """The directory on this host for files that belong to the lake but are not tables: socket, cursors, marks."""

    @abstractmethod
    def child(self, name: str) -> Storage:
        """Return the storage below this one."""

    @abstractmethod
    def options(self) -> dict[str, str] | None:
        """Return the storage options for delta-rs; they hold no key."""

    def environment(self) -> dict[str, str]:
        """Return the environment variables of this process that a worker needs to open the storage."""
        return {}

    @abstractmethod
    def filesystem(self) -> FileSystem:
        """Return the file system of pyarrow."""

    @abstractmethod
    def full_path(self, path: str) -> str:
        """Return the path of a file in `filesystem()`."""

    @abstractmethod
    def prepare(self, path: str = "") -> None:
        """Create the directory, and with `path` an empty file, with modes that keep other users from reading them."""

    @abstractmethod
    def sync(self, paths: Collection[str]) -> None:
        """Make written files durable."""

    def child_names(self) -> list[str]:
        """Return the names of the directories directly below this address."""
        return sorted(Path(path).name for path, is_file in self._list("") if not is_file)

    def has_log(self) -> bool:
        """Return True if this is a table with at least one commit."""
        return any(path.endswith(".json") for path, is_file in self._list(LOG) if is_file)

    def sizes_bytes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the sizes of files; None: there is no such file."""
        with self.reached():
            found = self.filesystem().get_file_info([self.full_path(path) for path in paths])
        return [info.size if info.is_file else None for info in found]

    def data_files(self) -> Iterator[StoredFile]:
        """Yield every file of a table outside its log."""
        from pyarrow.fs import FileSelector

        base = self.full_path("")
        with self.reached():
            infos = self.filesystem().get_file_info(FileSelector(base, allow_not_found=True, recursive=True))
        for info in infos:
            path = info.path.removeprefix(base).lstrip("/")
            if info.is_file and not path.startswith(f"{LOG}/"):
                yield StoredFile(path, info.mtime_ns)

    def delete_file(self, path: str) -> None:
        """Delete a file."""
        with self.reached():
            self.filesystem().delete_file(self.full_path(path))

    def delete_all(self) -> None:
        """Delete everything below this address."""
        with self.reached():
            self.filesystem().delete_dir(self.full_path(""))

    def _list(self, path: str) -> list[tuple[str, bool]]:
        from pyarrow.fs import FileSelector

        with self.reached():
            infos = self.filesystem().get_file_info(FileSelector(self.full_path(path), allow_not_found=True))
        return [(info.path, info.is_file) for info in infos]

    def reached_if_remote(self) -> AbstractContextManager[None]:
        """Act as `reached` for S3; errors of a local disk, such as a full one, pass unchanged."""
        return self.reached()

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Raise lake_unreachable if the storage refuses or does not answer."""
        try:
            yield
        except OSError as failure:
            reason = " ".join(_COLOUR.sub("", str(failure)).split())[:_REASON_CHARS]
            raise error("lake_unreachable", location=self.uri, reason=reason) from failure


@dataclass(frozen=True)
class LocalStorage(Storage):
    """A directory."""

    path: Path

    @property
    def uri(self) -> str:
        return str(self.path)

    @property
    def host_directory(self) -> Path:
        return self.path

    def child(self, name: str) -> LocalStorage:
        return LocalStorage(self.path / name)

    def options(self) -> None:
        return None

    def filesystem(self) -> FileSystem:
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem()

    def full_path(self, path: str) -> str:
        return str(self.path / path)

    def prepare(self, path: str = "") -> None:
        if not path:
            private_dir(self.path)
            return
        target = self.path / path
        private_dir(target.parent)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))

    def sync(self, paths: Collection[str]) -> None:
        for path in paths:
            sync_file(self.path / path)
        for directory in {(self.path / path).parent for path in paths} | {self.path}:
            fsync_dir(directory)

    def reached_if_remote(self) -> AbstractContextManager[None]:
        return nullcontext()

    def has_log(self) -> bool:
        return any((self.path / LOG).glob("*.json"))

    def delete_all(self) -> None:
        shutil.rmtree(self.path)

    def delete_empty_directories(self, before_ns: int) -> None:
        """Delete directories of partitions that hold no file and were not changed since a time."""
        for walked, _names, _files in os.walk(self.path, topdown=False):
            directory = Path(walked)
            if directory == self.path or LOG in directory.relative_to(self.path).parts or any(directory.iterdir()):
                continue
            if directory.stat().st_mtime_ns < before_ns:
                directory.rmdir()


@dataclass(frozen=True)
class S3Storage(Storage):
    """A prefix of a bucket."""

    bucket: str
    prefix: str

    @property
    def uri(self) -> str:
        return f"s3://{self.full_path('')}"

    @property
    def host_directory(self) -> Path:
        return lake_directory(self.uri)

    def child(self, name: str) -> S3Storage:
        return S3Storage(self.bucket, f"{self.prefix}/{name}".lstrip("/"))

    def options(self) -> dict[str, str]:
        endpoint = _endpoint(os.environ)
        found = {"conditional_put": "etag"}
        if endpoint:
            found |= {"aws_endpoint": endpoint, "allow_http": str(endpoint.startswith("http://")).lower()}
        return found

    def environment(self) -> dict[str, str]:
        return {name: os.environ[name] for name in _S3_VARIABLES if name in os.environ}

    def filesystem(self) -> FileSystem:
        return _s3_filesystem(_endpoint(os.environ), _region(os.environ))

    def full_path(self, path: str) -> str:
        return "/".join(part for part in (self.bucket, self.prefix, path) if part)

    def prepare(self, path: str = "") -> None:
        """Do nothing: S3 has no directories, and an object becomes visible when it is complete."""

    def sync(self, paths: Collection[str]) -> None:
        """Do nothing: S3 keeps every object that it has acknowledged."""


def _endpoint(environ: Mapping[str, str]) -> str | None:
    return environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")


def _region(environ: Mapping[str, str]) -> str | None:
    return environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")


@functools.cache
def _s3_filesystem(endpoint: str | None, region: str | None) -> FileSystem:
    """Return the file system of S3; pyarrow finds the keys in the environment, a profile or the instance."""
    from pyarrow.fs import S3FileSystem

    parts = urlsplit(endpoint or "")
    given = {"endpoint_override": parts.netloc, "scheme": parts.scheme} if endpoint else {}
    return S3FileSystem(region=region, connect_timeout=_CONNECT_S, request_timeout=_REQUEST_S, **given)
