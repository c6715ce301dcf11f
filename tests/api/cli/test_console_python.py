"""`py` alone at the console's prompt: blocks over several lines, Ctrl-C, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from tests.api.console.consoles import serving
from tripower.api.cli.console import python_prompt
from tripower.api.cli.console.python_prompt import INTERRUPTED, converse_in_python
from tripower.api.cli.console.screen import Screen
from tripower.api.cli.interrupts import Interrupts
from tripower.api.console.client import open_console
from tripower.api.console.verbs.python import VERBS


async def typed(
    lines: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch, *, python: bool = True
) -> tuple[list[str], list[Sequence[str]]]:
    """The prompts that somebody saw who typed these lines and Ctrl-D, and the words that were completed at each of them."""
    left, prompts, completed = [*lines], list[str](), list[Sequence[str]]()

    def read_line(prompt: str, hint: str, *, interrupted: str) -> str | None:
        prompts.append(prompt)
        return left.pop(0) if left else None

    def complete_with(complete: object) -> None:
        assert callable(complete)
        completed.append(complete(["run"]))

    monkeypatch.setattr(python_prompt, "read_line", read_line)
    monkeypatch.setattr(python_prompt, "complete_with", complete_with)
    async with serving(folder, *VERBS, python=python) as server, open_console(str(server.path)) as console:
        interrupts = Interrupts(trio.CancelScope())
        await converse_in_python(console, Screen(as_json=False), interrupts, lambda words: words)
    return prompts, completed


async def test_lines_share_their_names_and_a_block_ends_with_an_empty_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["n = 20", "", "for i in range(2):", "    print(n + i)", "", "await trio.sleep(0); n", "n /"]
    prompts, completed = await typed(lines, tmp_path, monkeypatch)
    assert prompts == [">>> ", ">>> ", ">>> ", "... ", "... ", ">>> ", ">>> ", ">>> "]
    out, err = capsys.readouterr()
    assert out.splitlines()[:3] == ["20", "21", "20"] and out.endswith("SyntaxError: invalid syntax\n")
    assert "Ctrl-D goes back" in err
    assert completed == [["py", "run"], ["run"]], "names while in here, verbs again afterwards"


async def test_ctrl_c_drops_the_block_that_is_being_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await typed(["if True:", "    print('never')", INTERRUPTED, "print('after')"], tmp_path, monkeypatch)
    assert capsys.readouterr().out == "after\n"


async def test_a_process_without_python_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await typed(["1"], tmp_path, monkeypatch, python=False)
    assert "console.python" in capsys.readouterr().err
