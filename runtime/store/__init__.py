"""Models on disk, addressed by content: `Store`, its manifests, its errors, and the locks between processes."""

from tripower.runtime.store.errors import DigestMismatch, StoreBusy, StoreDenied, StoreFull
from tripower.runtime.store.hashing_file import HashingFile
from tripower.runtime.store.home import home_directory
from tripower.runtime.store.lock import FileLock
from tripower.runtime.store.manifest import Manifest, StoredFile, checked_name
from tripower.runtime.store.store import Store

__all__ = [
    "DigestMismatch",
    "FileLock",
    "HashingFile",
    "Manifest",
    "Store",
    "StoreBusy",
    "StoreDenied",
    "StoreFull",
    "StoredFile",
    "checked_name",
    "home_directory",
]
