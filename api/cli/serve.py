"""`tripower serve`: the HTTP service, from the first look at the settings to the last answer.

In this order: settings, port, models on this machine, actors, loads; so that what is cheap to refuse is refused before anything dear has
begun, and clients that come early find somebody. Its end: the first SIGTERM or SIGINT refuses new work and lets what runs finish, for
`server.drain_timeout_s`; the second stops that at once; the third ends the process. SIGHUP reads the API keys and the certificate again.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import attrs
import trio

from tripower.actors.models import ReadyModel
from tripower.actors.runtime import Runtime, RuntimePlan
from tripower.api.cli import exit_codes
from tripower.api.cli.hangup import leave_hangups
from tripower.api.cli.local import obtain_model, short_name
from tripower.api.cli.progress import Display, progress_display
from tripower.api.cli.reload import hangups, reload_at_hangups
from tripower.api.cli.serve_banner import banner
from tripower.api.cli.settings import configure_logs, flush_logs, log_as_json, read_configuration, wait_without_spinning
from tripower.api.cli.shutdown import Shutdown, end_within
from tripower.api.cli.terminal import note, say
from tripower.api.console.actor import start_console
from tripower.api.console.listening import console_socket
from tripower.api.embedding import open_planned
from tripower.api.http.actor import Drain, Drained, start_api
from tripower.api.http.auth import load_keys
from tripower.api.http.binding import BoundSockets, bind
from tripower.api.http.exchange import Exchange
from tripower.api.http.listening.exposure import check_exposure, raise_descriptor_limit
from tripower.api.http.listening.unix_socket import UnixSocket
from tripower.api.http.observe.keepers import Keepers, open_keepers
from tripower.api.overview.collector import Collector
from tripower.api.plan import find_source, find_stored, make_plan, stored_sources
from tripower.runtime.configuration import Configuration
from tripower.runtime.engine import Progress
from tripower.runtime.kernel import ModelRefused, NotFound, Ref, TripowerError
from tripower.runtime.store import Store

GRACE_SECONDS = 5.0
"""After a second signal, for a step that is under way and for unloading."""
END_SECONDS = 15.0
"""After the last answer, for unloading."""


def main(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes. Returns the exit code: 0, or 4 when answers were cut off."""
    configure_logs(arguments, normally="info")
    wait_without_spinning()
    configuration = read_configuration(
        arguments,
        models=arguments.models or None,
        server__host=arguments.host,
        server__port=arguments.port,
        engine__backend=arguments.backend,
    )
    if configuration.server.log_format == "json":
        log_as_json(with_tracebacks=arguments.debug)
    if not (configuration.auth.keys_file or configuration.server.tls_certificate):
        leave_hangups()
    keys = load_keys(configuration.auth)  # refused before anything is open
    check_exposure(configuration.server, has_keys=keys is not None)
    raise_descriptor_limit()
    with (
        bind(configuration.server) as bound,
        open_keepers(configuration.server) as keepers,
        console_socket(configuration.console) as opened,
    ):
        return trio.run(partial(serve, configuration, bound, keepers, opened, quiet=arguments.quiet))


async def serve(
    configuration: Configuration, bound: BoundSockets, keepers: Keepers, opened: UnixSocket | None, *, quiet: bool
) -> int:
    """The whole life of a service on bound sockets. Returns the exit code; raises what pulling, planning or loading raises."""
    shutdown = Shutdown()
    interrupted = 0
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals, progress_display(quiet=quiet) as display:
        async with trio.open_nursery() as watching:
            watching.start_soon(shutdown.watch, signals)
            plan: RuntimePlan | None = None
            with shutdown.until_asked():
                plan = await prepare(configuration, Store(), display, quiet=quiet)
            if plan is not None:
                interrupted = await serve_plan(configuration, bound, keepers, opened, plan, shutdown, display)
            watching.cancel_scope.cancel()
    return exit_codes.FORCED if interrupted else exit_codes.OK


async def prepare(configuration: Configuration, store: Store, display: Display, *, quiet: bool) -> RuntimePlan:
    """Pull what is not here, and plan. Raises `NotFound` when there is nothing to serve."""
    references = tuple(dict.fromkeys(configuration.models))
    for reference in references:
        await obtain_model(reference, store, configuration, quiet=quiet)

    def plan() -> RuntimePlan:
        sources = [attrs.evolve(find_source(reference, store, configuration), pinned=True) for reference in references]
        sources = sources or stored_sources(store, configuration)
        if not sources:
            raise NotFound("there is no model to serve: name one, as in `tripower serve smollm2`", code="no_models")
        plan = make_plan(configuration, sources, find_model=find_stored(store, configuration), store=store)
        return attrs.evolve(plan, recorder_entries=configuration.console.recorder)

    if references:
        display.loading(short_name(references[0], store, configuration))("engine", 0.0)
    return await trio.to_thread.run_sync(plan)


async def serve_plan(
    configuration: Configuration,
    bound: BoundSockets,
    keepers: Keepers,
    opened: UnixSocket | None,
    plan: RuntimePlan,
    shutdown: Shutdown,
    display: Display,
) -> int:
    """Serve until the first signal, then drain. Returns how many answers were cut off. Raises what a load raises.

    Consoles attach at `opened`, from before the loads until after the end.
    """
    with ExitStack() as ending, hangups(configuration.auth, bound.certificates) as signals:
        async with open_planned(plan) as runtime:
            active = set[Exchange]()
            overview = Collector(runtime, active)
            if opened is not None:
                start_console(
                    runtime,
                    opened,
                    active=active,
                    drain=shutdown.ask,
                    python=configuration.console.python,
                    url=bound.url,
                    models=[source.name for source in plan.sources],
                    overview=overview,
                )
            api = start_api(runtime, configuration, bound, keepers=keepers, active=active, overview=overview)
            try:
                with shutdown.until_asked():
                    ready = await load_all(runtime, configuration, plan, display)
                    display.close()
                    say(banner(configuration, bound.url, plan, ready, None if opened is None else opened.path), sys.stdout)
                    await reload_at_hangups(api, signals, bound.certificates, with_keys=bool(configuration.auth.keys_file))
            except BaseException:
                with trio.move_on_after(GRACE_SECONDS, shield=True), suppress(TripowerError):
                    await api.ask(Drain(timeout_seconds=0))
                raise
            interrupted = await drain(api, runtime, shutdown, configuration.server.drain_timeout_s)
            ending.enter_context(end_within(GRACE_SECONDS if shutdown.at_once.is_set() else END_SECONDS))
    return interrupted


async def load_all(
    runtime: Runtime, configuration: Configuration, plan: RuntimePlan, display: Display
) -> Mapping[str, ReadyModel]:
    """Load what was named, all at once so that `/ready` waits for the last; what is only in the store loads when it is asked for.

    Raises `ModelRefused` naming the model.
    """
    ready: dict[str, ReadyModel] = {}

    async def load(name: str, progress: Progress) -> None:
        try:
            ready[name] = await runtime.load(name, progress=progress)
        except TripowerError as error:
            raise ModelRefused(f"{name} cannot be loaded: {error.message}", code=error.code) from error

    if configuration.models:
        async with trio.open_nursery() as loads:
            for source in plan.sources:
                loads.start_soon(load, source.name, display.loading(source.name))
    return ready


async def drain(api: Ref[Any], runtime: Runtime, shutdown: Shutdown, seconds: float) -> int:
    """Let running answers finish; a second signal stops them. Returns how many were cut off."""
    active = runtime.active()
    if active:
        answers = "1 answer" if active == 1 else f"{active} answers"
        note(f"stopping: {answers} may take up to {seconds:g} s to finish; a second signal stops at once")
    async with trio.open_nursery() as hurrying:
        hurrying.start_soon(_hurry, api, shutdown)
        drained: Drained = await api.ask(Drain())
        hurrying.cancel_scope.cancel()
    await trio.to_thread.run_sync(flush_logs)  # the last requests' lines come before the last word
    note(f"stopped; {drained.interrupted} cut off" if drained.interrupted else "stopped")
    return drained.interrupted


async def _hurry(api: Ref[Any], shutdown: Shutdown) -> None:
    await shutdown.at_once.wait()
    note("stopping at once")
    await api.ask(Drain(timeout_seconds=0))
