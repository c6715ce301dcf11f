"""Links between the pages: every file that one names is there, and every heading that one points at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return _BLOCK.sub("", page.read_text())


def anchors(page: Path) -> Iterator[str]:
    """What links into a page may end with: headings as GitHub writes them; one that is there again gets a number."""
    seen: dict[str, int] = {}
    for heading in _HEADING.findall(prose(page)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = seen[slug] = seen.get(slug, -1) + 1
        yield f"{slug}-{count}" if count else slug


def broken(page: Path) -> Iterator[str]:
    for link in _LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`: three\n[a](page.md) [b](#one-two-three) [c](https://x.y) [d](#one)\n[e](gone.md#a)\n```\n[f](no.md)\n```\n# A\n# A\n[g](#a-1)"
    )
    assert list(broken(page)) == ["#one", "gone.md#a"]


def test_every_page_is_linked_from_another() -> None:
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in _LINK.findall(prose(page))}
    assert [page.name for page in PAGES[1:] if page.resolve() not in linked] == []
