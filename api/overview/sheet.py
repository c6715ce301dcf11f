"""An `Overview` as lines of text, for a screen of any size from 60 columns on and for plain output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from tripower.actors.request_paths import RequestPath
from tripower.api.overview.columns import HEAD, Column, table
from tripower.api.overview.figures import DeviceOverview, IdentityOverview, ModelOverview, Overview
from tripower.api.overview.words import NOTHING, bar, duration, harmless, percentiles, rate, share, sparkline

ENDLESS = 10_000
STATUS = {"ok": "green", "loading": "yellow", "draining": "yellow", "failing": "bold red"}
PLACES = {"arriving": "magenta", "waiting": "yellow", "prompt": "cyan", "answer": "green", "socket": "red"}
LATE_SECONDS = 5.0
"""A deadline that is nearer than this is shown in red."""

SORTS: Mapping[str, Callable[[RequestPath], tuple[float, ...] | tuple[str, float]]] = {
    "age": lambda path: (-path.age,),
    "place": lambda path: (list(PLACES).index(path.place) if path.place in PLACES else 9, -path.age),
    "waited": lambda path: (-(path.waiting or 0.0), -path.age),
    "tokens": lambda path: (-path.generated_tokens, -path.age),
    "tokens/s": lambda path: (-(path.tokens_per_second or 0.0), -path.age),
    "model": lambda path: (path.model, -path.age),
    "key": lambda path: (path.label, -path.age),
}
"""The orders that requests may be shown in."""


def _seats(model: ModelOverview) -> str:
    return f"{model.members}/{model.members_max}" if model.members_max else NOTHING


MODELS: Sequence[Column[ModelOverview]] = (
    Column(title="MODEL", cell=lambda each: each.name, width=10, width_max=28, right=False),
    Column(title="STATE", cell=lambda each: each.state, width=9, right=False, keep=3),
    Column(title="SEATS", cell=_seats, width=5),
    Column(title="", cell=lambda each: bar(_part(each.members, each.members_max), 8), width=8, right=False, keep=2),
    Column(title="WAIT", cell=lambda each: str(each.waiting), width=4),
    Column(title="TOK/S", cell=lambda each: rate(each.tokens_per_second), width=6),
    Column(title="PROMPT/S", cell=lambda each: rate(each.prompt_tokens_per_second), width=8, keep=1),
    Column(title="FIRST TOKEN", cell=lambda each: percentiles(each.first_token), width=15, keep=7),
    Column(title="PER TOKEN", cell=lambda each: percentiles(each.token_interval), width=14, keep=5),
    Column(title="CACHED", cell=lambda each: share(each.reused_share), width=6, keep=6),
    Column(title="ACCEPTED", cell=lambda each: share(each.acceptance), width=8, keep=4),
    Column(title="MEMORY", cell=lambda each: share(each.state_share), width=6, keep=0),
)
IDENTITIES: Sequence[Column[IdentityOverview]] = (
    Column(title="KEY", cell=lambda each: each.label, width=20, width_max=40, right=False),
    Column(title="RUNNING", cell=lambda each: str(each.running), width=7),
    Column(title="WAITING", cell=lambda each: str(each.waiting), width=7),
    Column(title="SHARE", cell=lambda each: share(each.share), width=5),
    Column(title="", cell=lambda each: bar(each.share, 12), width=12, right=False),
)
DEVICES: Sequence[Column[DeviceOverview]] = (
    Column(title="DEVICE", cell=lambda each: each.name, width=10, width_max=20, right=False),
    Column(
        title="STATE",
        cell=lambda each: Text(harmless(each.state), style="bold red" if each.state == "wedged" else ""),
        width=6,
        right=False,
    ),
    Column(title="BUSY", cell=lambda each: share(each.busy_share), width=5),
    Column(title="", cell=lambda each: bar(each.busy_share, 12), width=12, right=False, keep=2),
    Column(title="JOB", cell=lambda each: each.job or NOTHING, width=16, width_max=40, right=False),
    Column(title="FOR", cell=lambda each: duration(each.job_seconds) if each.job else NOTHING, width=6),
)


def _holder(label: str) -> str:
    """The name of a key, where it has one, which is behind its hash."""
    _, opened, name = label.partition(" (")
    return name.removesuffix(")") if opened else label


def _place(path: RequestPath) -> Text:
    return Text(harmless(path.place), style=PLACES.get(path.place, ""))


def _tokens(path: RequestPath) -> str:
    if path.place == "prompt" and path.prompt_tokens and not path.generated_tokens:
        return f"({path.prompt_tokens})"
    return f"{path.generated_tokens}/{path.tokens_max}" if path.tokens_max else str(path.generated_tokens)


def _left(path: RequestPath) -> Text:
    left = path.deadline_left
    return Text(duration(left), style="red" if left is not None and left < LATE_SECONDS else "")


REQUESTS: Sequence[Column[RequestPath]] = (
    Column(title="REQUEST", cell=lambda each: each.id, width=10, width_max=36, right=False),
    Column(title="MODEL", cell=lambda each: each.model, width=10, width_max=24, right=False, keep=3),
    Column(title="KEY", cell=lambda each: _holder(each.label), width=10, width_max=24, right=False, keep=2),
    Column(title="PLACE", cell=_place, width=8, right=False),
    Column(title="AGE", cell=lambda each: duration(each.age), width=6),
    Column(title="WAITED", cell=lambda each: duration(each.waiting), width=6),
    Column(title="PROMPT", cell=lambda each: duration(each.prompt), width=6, keep=5),
    Column(title="ANSWER", cell=lambda each: duration(each.answer), width=6),
    Column(title="SOCKET", cell=lambda each: duration(each.socket), width=6, keep=4),
    Column(title="TOKENS", cell=_tokens, width=9),
    Column(title="TOK/S", cell=lambda each: rate(each.tokens_per_second), width=6),
    Column(title="LEFT", cell=_left, width=6, keep=1),
)


@attrs.frozen
class Sheet:
    """A whole overview as a renderable, as long as it takes."""

    overview: Overview

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in sheet(self.overview, options.max_width, ENDLESS):
            line.rstrip()
            line.end = "\n"
            yield line


def sheet(overview: Overview, width: int, height: int, *, sort: str = "age", selected: str | None = None) -> list[Text]:
    """At most `height` lines, each exactly `width` cells: figures first, then models, keys, devices and the slowest requests."""
    lines = [*header(overview, width), *rates(overview, width)]
    requests = sorted(overview.requests, key=SORTS[sort])
    at = next((number for number, path in enumerate(requests) if path.id == selected), None)
    wanted = [len(overview.models), len(overview.identities), len(overview.devices), len(requests)]
    room = max(0, height - len(lines) - len(wanted))
    models, identities, devices, paths = allot(wanted, room)
    blanks = min(len(wanted), max(0, room - sum(wanted)))
    first = 0 if at is None else max(0, min(at - paths + 1, len(requests) - paths))
    tables = (
        _some(table(MODELS, overview.models, width), models, width),
        _some(table(IDENTITIES, overview.identities, width), identities, width),
        _some(table(DEVICES, overview.devices, width), devices, width),
        table(REQUESTS, requests[first : first + paths], width, selected=None if at is None else at - first),
    )
    for number, each in enumerate(reversed(tables)):  # blank lines first where they help most: above the requests
        if number < blanks:
            each.insert(0, blank(width))
    for each in tables:
        lines += each
    return lines[: max(height, 0)]


def header(overview: Overview, width: int) -> list[Text]:
    """Who it is and how it is, and what is wrong."""
    status = Text(overview.status, style=STATUS.get(overview.status, ""))
    pieces = [
        (9, Text(harmless(f"tripower {overview.version}"), style="bold")),
        (6, Text(harmless(overview.url))),
        (3, Text(f"pid {overview.pid}")),
        (8, status),
        (7, Text(f"up {duration(overview.uptime_seconds)}")),
    ]
    reasons = [Text(harmless(f"  {reason}"), style="red") for reason in overview.reasons[:3]]
    for line in reasons:
        line.truncate(width, overflow="ellipsis", pad=True)
    return [spread(pieces, width), *reasons]


def rates(overview: Overview, width: int) -> list[Text]:
    """Tokens a second with where they were in the last two minutes, and the other figures of the whole server."""
    name = Text("  tokens/s ", style=HEAD)
    now = Text(rate(overview.tokens_per_second).rjust(6), style="bold")
    values = [point.tokens_per_second for point in overview.history]
    peak = Text(f" peak {rate(max(values))}" if any(values) else "", style="dim")
    plot = Text(sparkline(values, width - name.cell_len - now.cell_len - peak.cell_len - 1), style="green")
    line = Text.assemble(name, now, " ", plot, peak, no_wrap=True, end="")
    line.truncate(width, pad=True)
    pieces = [
        (9, _figure("running", str(overview.running))),
        (8, _figure("waiting", str(overview.waiting))),
        (7, _figure("prompt/s", rate(overview.prompt_tokens_per_second))),
        (6, _figure("requests/s", rate(overview.requests_per_second))),
        (5, _figure("refused/s", rate(overview.refused_per_second), "red" if overview.refused_per_second else "bold")),
    ]
    return [line, spread(pieces, width)]


def allot(wanted: Sequence[int], room: int) -> list[int]:
    """Share so many lines among tables that want so many: one each, then the last one, of the requests, gets two for each of the others'."""
    given = [0] * len(wanted)
    turns = [*range(len(wanted)), len(wanted) - 1]
    while room > 0 and any(have < want for have, want in zip(given, wanted, strict=True)):
        for number in turns:
            if room > 0 and given[number] < wanted[number]:
                given[number] += 1
                room -= 1
    return given


def blank(width: int) -> Text:
    """An empty line."""
    return Text(" " * width, no_wrap=True, end="")


def _some(lines: list[Text], rows: int, width: int) -> list[Text]:
    """The head and so many rows; the last of them says how many there are besides, where not all fit."""
    left = len(lines) - 1 - rows
    if left <= 0:
        return lines
    shown = lines[: max(1, rows)]
    if rows:
        more = Text(f"  and {left + 1} more", style="dim")
        more.truncate(width, pad=True)
        shown.append(more)
    return shown


def _figure(name: str, value: str, style: str = "bold") -> Text:
    return Text.assemble((f"{name} ", HEAD), (value, style))


def spread(pieces: Sequence[tuple[int, Text]], width: int) -> Text:
    """Pieces in one line, the least important left out where there is no room."""
    shown = [piece for piece in pieces if piece[1]]
    while len(shown) > 1 and sum(text.cell_len + 2 for _, text in shown) > width:
        shown.remove(min(shown, key=lambda piece: piece[0]))
    line = Text("  ", no_wrap=True, end="")
    for number, (_, text) in enumerate(shown):
        line.append("   " if number and sum(each.cell_len + 3 for _, each in shown) <= width else "  " if number else "")
        line.append_text(text)
    line.truncate(width, overflow="ellipsis", pad=True)
    return line


def _part(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
