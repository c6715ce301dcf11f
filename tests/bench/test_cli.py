"""`tripower bench` finds the bench that is meant and hands the rest on."""

from __future__ import annotations

import types

import pytest

from tripower.bench import cli


@pytest.mark.parametrize("name", sorted(cli.BENCHES))
def test_the_rest_goes_to_the_bench_and_its_status_comes_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[object] = []

    def main(argv: list[str]) -> int:
        handed.append(argv)
        return 7

    imported: list[str] = []

    def import_module(module: str) -> object:
        imported.append(module)
        return types.SimpleNamespace(main=main)

    monkeypatch.setattr(cli, "import_module", import_module)
    assert cli.main([name, "--json", "--quick", "--help"]) == 7
    assert handed == [["--json", "--quick", "--help"]]
    assert imported == [cli.BENCHES[name][0]]


def test_help_names_every_bench(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown and about in shown for name, (_, about) in cli.BENCHES.items())


@pytest.mark.parametrize("name", sorted(cli.BENCHES))
def test_every_bench_has_a_help_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert f"tripower bench {name}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nothing-of-this-name"]])
def test_an_unknown_bench_is_bad_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "bench" in capsys.readouterr().err
