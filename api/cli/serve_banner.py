"""What `tripower serve` says when it is ready: where, what, how much, and a line to paste."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

import msgspec

from tripower.actors.models import ReadyModel
from tripower.actors.runtime import RuntimePlan
from tripower.api.cli.terminal import size
from tripower.api.drafting import speculation_settings
from tripower.api.http.auth import keys_configured, load_keys
from tripower.api.version import VERSION
from tripower.runtime.configuration import Configuration
from tripower.runtime.speculation import Strategy


def banner(
    configuration: Configuration, url: str, plan: RuntimePlan, ready: Mapping[str, ReadyModel], console: Path | None = None
) -> str:
    """The block. `ready` has the models that are loaded; the others of the plan load when they are asked for. `console` is its socket."""
    queue = plan.limits.queue
    lines = [f"tripower {VERSION} listens at {url}", *also_at(configuration), ""]
    for source in plan.sources:
        lines.append(f"  model     {source.name}{model_figures(ready.get(source.name))}")
    lines += [f"  engine    {line}" for line in engine_lines(plan)]
    lines += [
        f"  seats     {queue.members_max} answer at the same time, {queue.waiting_max} may wait",
        *guess_lines(configuration),
        f"  keys      {keys_line(configuration)}",
        *page_lines(configuration, url),
        f"  console   {console_line(configuration, console)}",
        "",
        f"  {curl_line(url, plan, ready, with_key=keys_configured(configuration))}",
        "",
    ]
    return "\n".join(lines)


def also_at(configuration: Configuration) -> list[str]:
    """The Unix socket, where there are both."""
    server = configuration.server
    return [f"  and at unix:{Path(server.unix_socket).expanduser().absolute()}"] if server.unix_socket and server.tcp else []


def address(url: str) -> str:
    """What curl needs to find the server."""
    socket = url.removeprefix("unix:")
    return url if socket == url else f"--unix-socket {shlex.quote(socket)} http://localhost"


def guess_lines(configuration: Configuration) -> list[str]:
    """How tokens are guessed, where they are."""
    settings = speculation_settings(configuration.speculation)
    if settings is None:
        return []
    draft = configuration.speculation.draft_model if settings.strategy is Strategy.DRAFT_MODEL else ""
    return [f"  guesses   {settings.strategy.value}{f' {draft}' if draft else ''}; no answer changes by them"]


def keys_line(configuration: Configuration) -> str:
    """Who may ask. Blocks for the file with the keys."""
    keys = load_keys(configuration.auth)
    if keys is None:
        return f"off{'' if is_loopback(configuration.server.host) else ': everyone who can reach this address may use it'}"
    admins = sum(key.admin for key in keys)
    return f"on: {len(keys)} of them, {admins or 'none'} for administration"


def page_lines(configuration: Configuration, url: str) -> list[str]:
    """Where the page is, for browsers: they reach no Unix socket."""
    return [f"  page      {url}/ui"] if configuration.server.ui and url.startswith("http") else []


def console_line(configuration: Configuration, socket: Path | None) -> str:
    """What to type to look inside."""
    if socket is None:
        return "off"
    return f"tripower console {shlex.quote(str(socket)) if configuration.console.socket else os.getpid()}"


def engine_lines(plan: RuntimePlan) -> list[str]:
    """Each engine with its threads, and why it was chosen where that is not plain."""
    threads = f"{plan.limits.threads} thread{'' if plan.limits.threads == 1 else 's'}"
    lines: dict[str, None] = {}
    for source in plan.sources:
        where = source.source if source.backend == "proxy" else threads
        lines[f"{source.backend}, {where}{f' ({source.reason})' if source.reason else ''}"] = None
    return list(lines)


def model_figures(ready: ReadyModel | None) -> str:
    """What is known of a model, behind its name."""
    if ready is None:
        return ", loaded when it is first asked for"
    info = ready.info
    figures = [f"context {info.context_max}"] if info.context_max else []
    if info.parameters:
        figures += [f"{info.parameters / 1e6:.0f} M parameters", f"{size(info.weight_bytes)} in memory"]
    return "".join(f", {figure}" for figure in figures)


def curl_line(url: str, plan: RuntimePlan, ready: Mapping[str, ReadyModel], *, with_key: bool = False) -> str:
    """A request that works when it is pasted into a shell: a chat, where the first model has a template for it.

    `with_key`: with what the shell knows as `TRIPOWER_API_KEY`.
    """
    name = plan.sources[0].name
    first = ready.get(name)
    body: dict[str, object]
    if first is not None and first.embeds:
        path, body = "embeddings", {"model": name, "input": "Why is the sky blue?"}
    elif first is None or first.has_chat_template:
        path, body = (
            "chat/completions",
            {
                "model": name,
                "messages": [{"role": "user", "content": "Why is the sky blue?"}],
                "max_tokens": 100,
                "temperature": 0.7,
            },
        )
    else:
        path, body = "completions", {"model": name, "prompt": "The sky is blue because"}
    key = '-H "authorization: Bearer $TRIPOWER_API_KEY" ' if with_key else ""
    data = shlex.quote(msgspec.json.encode(body).decode())
    return f"curl {address(url)}/v1/{path} {key}-H 'content-type: application/json' -d {data}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
