"""A growing file's digest is always that of the bytes it keeps."""

from __future__ import annotations

import errno
import hashlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.runtime.store import HashingFile, StoreFull


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@settings(deadline=None)
@given(chunks=st.lists(st.binary(max_size=50), max_size=8), cut=st.integers(0, 400), more=st.binary(max_size=50))
def test_going_on_from_any_beginning_gives_the_digest_of_the_whole(chunks: list[bytes], cut: int, more: bytes) -> None:
    data = b"".join(chunks)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        with HashingFile(path) as growing:
            for chunk in chunks:
                growing.write(chunk)
            assert (growing.size, growing.sha256) == (len(data), digest(data))
        kept = min(cut, len(data))
        with HashingFile(path) as growing:
            assert growing.stored() == len(data)
            assert growing.keep(kept)
            growing.cut()
            growing.write(more)
            assert growing.sha256 == digest(data[:kept] + more)
        assert path.read_bytes() == data[:kept] + more


def test_parts_are_kept_only_while_their_digests_are_right(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"onetwoXhree")
    with HashingFile(path) as growing:
        assert growing.keep(3, sha256=digest(b"one"))
        assert growing.keep(3, sha256=digest(b"two"))
        assert not growing.keep(5, sha256=digest(b"three"))
        assert not growing.keep(6)
        growing.cut()
        growing.write(b"three")
        assert growing.sha256 == digest(b"onetwothree")
    assert path.read_bytes() == b"onetwothree"


def test_starting_over_leaves_nothing_of_the_first_attempt(tmp_path: Path) -> None:
    with HashingFile(tmp_path / "file") as growing:
        growing.write(b"first attempt")
        growing.restart()
        growing.write(b"second")
    assert growing.sha256 == digest(b"second")
    assert growing.path.read_bytes() == b"second"


def test_reading_can_be_stopped_between_chunks(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop() -> None:
        raise Stopped

    (tmp_path / "file").write_bytes(b"x")
    with HashingFile(tmp_path / "file") as growing, pytest.raises(Stopped):
        growing.keep(1, checkpoint=stop)
    assert growing.size == 0


def test_a_full_disk_is_a_typed_error_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullFile:
        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StoreFull, match="tripower rm"), HashingFile(tmp_path / "file") as growing:
        growing._file.close()
        monkeypatch.setattr(growing, "_file", FullFile())
        growing.write(b"x")
    assert growing.size == 0
