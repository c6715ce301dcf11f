"""A reference means one thing, or is refused with the accepted forms."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tripower.api.pull.builtin import BUILT_INS
from tripower.api.pull.sources import FileSource, WebSource, parse_reference, split_name
from tripower.runtime.kernel.errors import InvalidRequest


@pytest.mark.parametrize(
    ("reference", "name", "source"),
    [
        ("smollm2", "smollm2", "builtin:smollm2"),
        ("gemma3-270m", "gemma3-270m", "builtin:gemma3-270m"),
        ("minilm", "minilm", "builtin:minilm"),
        ("mine=smollm2", "mine", "builtin:smollm2"),
        ("hf:org/repo/Model-Q4.gguf", "Model-Q4", "hf:org/repo/Model-Q4.gguf"),
        ("hf:org/repo/sub/dir/m.safetensors", "m", "hf:org/repo/sub/dir/m.safetensors"),
        ("a/b:c=hf:o/r/m.gguf", "a/b:c", "hf:o/r/m.gguf"),
        ("https://h.example/a/m.gguf", "m", "https://h.example/a/m.gguf"),
        ("https://h.example/m.gguf#part", "m", "https://h.example/m.gguf"),
        ("http://127.0.0.1:8000/m.gguf", "m", "http://127.0.0.1:8000/m.gguf"),
        ("http://[::1]/m.gguf", "m", "http://[::1]/m.gguf"),
        ("http://localhost/m.gguf", "m", "http://localhost/m.gguf"),
        ("x=https://h.example/m.gguf?a=b", "x", "https://h.example/m.gguf?query-42144f3939c3ffbb"),
        ("pypi:some-dist==1.0", "some-dist", "pypi:some-dist==1.0"),
        ("pypi:some-dist==1.0/data/m.gguf", "m", "pypi:some-dist==1.0/data/m.gguf"),
        ("x=pypi:some-dist==1.0", "x", "pypi:some-dist==1.0"),
        ("/models/m.gguf", "m", "file:/models/m.gguf"),
        ("/models/a=b.gguf", "a-b", "file:/models/a=b.gguf"),
        ("file:/models/m.gguf", "m", "file:/models/m.gguf"),
        ("x=/models/m", "x", "file:/models/m"),
        ("/models/with space.gguf", "with-space", "file:/models/with space.gguf"),
    ],
)
def test_each_form_has_a_name_and_a_canonical_source(reference: str, name: str, source: str) -> None:
    parsed = parse_reference(reference)
    assert (parsed.name, parsed.source.text) == (name, source)
    assert parsed.named == (name + "=" == reference[: len(name) + 1])


def test_relative_and_home_paths_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert parse_reference("m.gguf").source == FileSource(tmp_path / "m.gguf")
    assert parse_reference("./m").source == FileSource(tmp_path / "m")
    assert parse_reference("~/m.gguf").source == FileSource(Path("/home/someone/m.gguf"))


@pytest.mark.parametrize(
    "reference",
    [
        "",
        "unknown",
        "x=",
        "=smollm2",
        "x=unknown",
        "a b=smollm2",
        "hf:",
        "hf:org/repo",
        "hf:org/repo/",
        "hf:org//file",
        "hf:../repo/file",
        "hf:org/repo/../file",
        "hf:org/repo/a//b",
        "hf:org/repo/f?x=1",
        "hf:org/repo/f#x",
        "hf:org/repo/f\n",
        "https://",
        "https:///m.gguf",
        "https://h.example",
        "https://h.example/",
        "https://user:password@h.example/m.gguf",
        "http://h.example/m.gguf",
        "http://127.0.0.1.example/m.gguf",
        "https://[bad/m.gguf",
        "https://h:port/m.gguf",
        "https://h.example/a b.gguf",
        "~nobody-of-that-name/m.gguf",
        "/a\0b",
        "/",
        "ftp://h.example/m.bin",
        "pypi:",
        "pypi:dist",
        "pypi:dist==",
        "pypi:dist>=1",
        "pypi:dist==1 --index-url=x",
        "pypi:--index-url==1",
        "pypi:dist==1;x",
        "x" * 5000,
        "\ud800",
    ],
)
def test_anything_else_is_refused_with_the_accepted_forms(reference: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_reference(reference)
    assert refused.value.code in ("invalid_model_reference", "invalid_model_name")
    assert "password" not in refused.value.message
    if refused.value.code == "invalid_model_reference":
        assert "smollm2, gemma3-270m, minilm, hf:org/repo/file, https://…" in refused.value.message


def test_a_query_is_neither_recorded_nor_shown() -> None:
    source = parse_reference("https://h.example/m.gguf?signature=secret").source
    assert isinstance(source, WebSource)
    assert "signature=secret" in source.url
    assert "secret" not in source.text + repr(source)
    assert source.text != parse_reference("https://h.example/m.gguf?signature=other").source.text


@settings(deadline=None)
@given(st.text(max_size=40))
@example("https://[")
def test_no_text_breaks_the_parser(text: str) -> None:
    for prefix in ("", "hf:", "https://", "http://", "pypi:", "x=", "/"):
        try:
            parsed = parse_reference(prefix + text)
        except InvalidRequest:
            continue
        assert parsed.name
        assert parsed.source.text


def test_a_name_ends_at_the_first_equals_sign_unless_a_source_begins_there() -> None:
    assert split_name("a=b=c") == ("a", "b=c")
    assert split_name("pypi:a==1") == (None, "pypi:a==1")
    assert split_name("https://h/x?a=b") == (None, "https://h/x?a=b")
    assert split_name("smollm2") == (None, "smollm2")


def test_built_in_models_are_consistent() -> None:
    for name, model in BUILT_INS.items():
        assert model.name == name
        assert len({file.name for file in model.files}) == len(model.files)
        for part in model.parts:
            assert len(part.sha256) == 64
            assert part.size > 0
            assert model.wheels[part.requirement] > 0
        for file in model.files:
            if len(file.parts) == 1:
                assert file.parts[0].sha256 == file.sha256
    assert BUILT_INS["smollm2"].files[0].size == 98_362_432
    assert BUILT_INS["gemma3-270m"].files[0].size == 253_113_024
