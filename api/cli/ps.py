"""`tripower ps`: what a running server is doing, asked over HTTP."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tripower.api.cli import exit_codes
from tripower.api.cli.arguments import URL
from tripower.api.cli.connection import mapped_errors, open_client
from tripower.api.cli.interrupts import Interrupts, run_until_interrupted
from tripower.api.cli.problems import StreamCut
from tripower.api.cli.remote import refusal
from tripower.api.cli.settings import configure_logs
from tripower.api.cli.terminal import size, table

TIMEOUT_SECONDS = 10.0


class Figures(msgspec.Struct, kw_only=True):
    """What a server says of itself."""

    url: str
    status: str
    reasons: tuple[str, ...]
    running: int
    waiting: int
    models: list[ModelFigures]


class ModelFigures(msgspec.Struct, kw_only=True):
    """One model of it. Numbers are 0 while it is not loaded."""

    name: str
    state: str
    context: int
    parameters: int
    size_bytes: int
    completed: int
    kept_bytes: int = 0
    """Of prompts that may be reused."""
    reused_share: float = 0.0
    """Of the tokens of prompts, those that did not have to be evaluated again."""
    tokens_per_pass: float = 0.0
    """Tokens that a step gives an answer with guesses; 0 where nothing is guessed."""
    right_share: float = 0.0
    """Of the guesses that were evaluated, those that were right."""
    replays: int = 0
    """Steps of a request that were taken back in part, since a guess was wrong."""
    fallbacks: int = 0
    """Times that a request stopped guessing."""
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    """Of the lane: in drafters, and in steps that evaluated guesses."""


def main(arguments: argparse.Namespace) -> int:
    """Print a table, or JSON. Returns the exit code: 0 if the server says that nothing is wrong."""
    configure_logs(arguments, normally="silent")
    url = arguments.url or os.environ.get("TRIPOWER_URL") or URL
    figures = run_until_interrupted(partial(ask, url, cacert=arguments.cacert))
    print(msgspec.json.encode(figures).decode() if arguments.json else shown(figures))
    return exit_codes.REFUSED if figures.status == "failing" else exit_codes.OK


async def ask(url: str, interrupts: Interrupts | None = None, *, cacert: str | None = None) -> Figures:
    """Ask the server. Blocks. Raises `CannotConnect` and `ServerRefused`."""
    async with open_client(url, cacert=cacert) as client:
        with mapped_errors(client):
            health = msgspec.json.decode(await _get(client, "health", also=503))
            models = msgspec.json.decode(await _get(client, "v1/models"))
            metrics = (await _get(client, "metrics")).decode()
    try:
        return read_figures(url, health, models, metrics)
    except (KeyError, TypeError, ValueError) as error:
        raise StreamCut(f"what answers at {url} is no tripower server: {error}") from error


async def _get(client: httpx.AsyncClient, path: str, *, also: int = 200) -> bytes:
    response = await client.get(path, timeout=TIMEOUT_SECONDS)
    if response.status_code not in (200, also):
        raise await refusal(response)
    return response.content


def read_figures(url: str, health: dict[str, Any], models: dict[str, Any], metrics: str) -> Figures:
    """Put the three answers together. Raises `KeyError`, `TypeError` or `ValueError` when they are not ours."""
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
    }
    return Figures(
        url=url,
        status=health["status"],
        reasons=tuple(health["reasons"]),
        running=int(samples["tripower_requests_running",]),
        waiting=int(samples["tripower_requests_waiting",]),
        models=[
            ModelFigures(
                name=model["id"],
                state=model["status"]["value"],
                context=model.get("max_model_len", 0),
                parameters=model.get("meta", {}).get("n_params", 0),
                size_bytes=model.get("meta", {}).get("size", 0),
                completed=int(samples.get(("tripower_requests_total", model["id"], "completed"), 0)),
                kept_bytes=int(samples.get(("tripower_prefix_bytes", model["id"]), 0)),
                reused_share=_reused_share(samples, model["id"]),
                **_guesses(samples, model["id"]),
            )
            for model in models["data"]
        ],
    )


def _reused_share(samples: dict[tuple[str, ...], float], model: str) -> float:
    # labels come in the order of their names
    reused, evaluated = (samples.get(("tripower_prefix_tokens_total", kind, model), 0.0) for kind in ("reused", "evaluated"))
    return reused / (reused + evaluated) if reused else 0.0


def _guesses(samples: dict[tuple[str, ...], float], model: str) -> dict[str, Any]:
    """What a model's guesses have brought and taken, by the names of `ModelFigures`."""

    def total(name: str, *labels: str) -> float:
        wanted = {f"tripower_speculative_{name}_total", model, *labels}
        return sum(value for key, value in samples.items() if wanted <= set(key))

    passes, drafted = total("target_passes"), total("drafted_tokens")
    return {
        "tokens_per_pass": round(total("emitted_tokens") / passes, 2) if passes else 0.0,
        "right_share": round(total("accepted_tokens") / drafted, 3) if drafted else 0.0,
        "replays": int(total("replays")),
        "fallbacks": int(total("fallbacks")),
        "draft_seconds": total("phase_seconds", "draft"),
        "verify_seconds": total("phase_seconds", "verify"),
    }


def shown(figures: Figures) -> str:
    """The table for people."""
    rows = [("MODEL", "STATE", "CONTEXT", "PARAMETERS", "MEMORY", "KEPT", "REUSED", "PER PASS", "RIGHT", "ANSWERED")]
    for model in figures.models:
        rows.append(
            (
                model.name,
                model.state,
                str(model.context or "-"),
                f"{model.parameters / 1e6:.0f} M" if model.parameters else "-",
                size(model.size_bytes) if model.size_bytes else "-",
                size(model.kept_bytes) if model.kept_bytes else "-",
                f"{model.reused_share:.0%}" if model.reused_share else "-",
                f"{model.tokens_per_pass:.1f}" if model.tokens_per_pass else "-",
                f"{model.right_share:.0%}" if model.right_share else "-",
                str(model.completed),
            )
        )
    status = ": ".join([figures.status, *(["; ".join(figures.reasons)] if figures.reasons else [])])
    return f"{table(rows)}\n{figures.url} is {status}; seats busy {figures.running}, waiting {figures.waiting}"
