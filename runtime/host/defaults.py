"""What to use on this machine where the user said nothing, each with its reason.

Pure functions of what the host allows, what the configuration says and what a model needs. The figures are meant to be what somebody
would choose who knows the machine: as much as it does well, within the container's own limits. A value that the user gave is taken as
it is, and the reason says where it came from.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from tripower.runtime.configuration.settings import MIB, Configuration
from tripower.runtime.host.limits import HostLimits
from tripower.runtime.kernel.errors import ModelRefused

Value = TypeVar("Value")

THREADS_MAX = 64
MEMBERS_PER_CORE = 8
MEMBERS_MAX = 64
WAITING_PER_MEMBER = 4
PREFILL_ROWS_PER_CORE = 128
PREFILL_ROWS_MAX = 1024
MIXED_ROWS_PER_CORE = 12
STATE_SHARE = 0.5
STATE_BYTES_MIN = 16 * MIB
CONTEXT_COMFORTABLE = 2048
CONTEXT_GRAIN = 256


class Choice(msgspec.Struct, Generic[Value], frozen=True):
    """A value and why it is this one."""

    value: Value
    reason: str


class ModelNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a model before it is loaded. Bytes."""

    context_max: int
    """Tokens that it was trained for."""
    state_bytes_per_token: int
    weight_bytes: int = 0
    """Still to be loaded; 0 when they are in memory already."""


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """The values in force. `context` is None while no model is known."""

    threads: Choice[int]
    batch_members: Choice[int]
    waiting: Choice[int]
    prefill_rows: Choice[int]
    mixed_rows: Choice[int]
    state_bytes: Choice[int]
    drain_timeout_s: Choice[float]
    context: Choice[int] | None = None


def choose_defaults(host: HostLimits, configuration: Configuration, model: ModelNeeds | None = None) -> Defaults:
    """The values for this host. With a model, the context and the batch fit into the memory that its weights leave.

    Raises `ModelRefused` when that memory does not hold even a short context.
    """
    threads = _threads(host, configuration)
    members = _members(host, configuration)
    state = _state_bytes(host, configuration, model)
    context: Choice[int] | None = None
    if model is not None:
        context, members = _context_and_members(configuration, model, state.value, members)
    return Defaults(
        threads=threads,
        batch_members=members,
        waiting=_waiting(configuration, members.value),
        prefill_rows=_prefill_rows(host, configuration),
        mixed_rows=_mixed_rows(host, configuration),
        state_bytes=state,
        drain_timeout_s=_given(configuration, "server.drain_timeout_s", configuration.server.drain_timeout_s)
        or Choice(configuration.server.drain_timeout_s, "running answers may finish; a second signal stops at once"),
        context=context,
    )


def _given(configuration: Configuration, path: str, value: Value) -> Choice[Value] | None:
    source = configuration.source(path)
    return None if source == "default" else Choice(value, f"set by {source}")


def _explicit(configuration: Configuration, path: str, value: int, automatic: int) -> Choice[int] | None:
    """The user's value, unless it is the one that asks for ours. A value set in code has no source but counts."""
    if value == automatic:
        return None
    return _given(configuration, path, value) or Choice(value, "set in code")


def _threads(host: HostLimits, configuration: Configuration) -> Choice[int]:
    return _explicit(configuration, "engine.threads", configuration.engine.threads, 0) or Choice(
        min(host.cores, THREADS_MAX),
        host.cores_reason if host.cores <= THREADS_MAX else f"no more than {THREADS_MAX} help one step",
    )


def _members(host: HostLimits, configuration: Configuration) -> Choice[int]:
    return _explicit(configuration, "scheduler.batch_members", configuration.scheduler.batch_members, 0) or Choice(
        min(MEMBERS_PER_CORE * host.cores, MEMBERS_MAX),
        f"{MEMBERS_PER_CORE} for each of {host.cores} cores, at most {MEMBERS_MAX}: more rows make a step longer without more tokens a second",
    )


def _waiting(configuration: Configuration, members: int) -> Choice[int]:
    return _explicit(configuration, "scheduler.waiting", configuration.scheduler.waiting, -1) or Choice(
        WAITING_PER_MEMBER * members, f"{WAITING_PER_MEMBER} for each seat: who waits longer is better served elsewhere"
    )


def _prefill_rows(host: HostLimits, configuration: Configuration) -> Choice[int]:
    return _explicit(configuration, "scheduler.prefill_rows", configuration.scheduler.prefill_rows, 0) or Choice(
        min(PREFILL_ROWS_PER_CORE * host.cores, PREFILL_ROWS_MAX),
        f"{PREFILL_ROWS_PER_CORE} for each core: whoever joins waits for the end of such a piece",
    )


def _mixed_rows(host: HostLimits, configuration: Configuration) -> Choice[int]:
    return _explicit(configuration, "scheduler.mixed_rows", configuration.scheduler.mixed_rows, 0) or Choice(
        MIXED_ROWS_PER_CORE * host.cores,
        f"{MIXED_ROWS_PER_CORE} for each core: a prompt that arrives keeps running streams within three times their pace",
    )


def _state_bytes(host: HostLimits, configuration: Configuration, model: ModelNeeds | None) -> Choice[int]:
    explicit = _explicit(configuration, "engine.state_bytes", configuration.engine.state_bytes, 0)
    if explicit is not None:
        return explicit
    weights = 0 if model is None else model.weight_bytes
    left = host.memory_available - weights
    after = f" after {weights / 1e9:.2f} GB of weights" if weights else ""
    reason = f"half of {left / 1e9:.1f} GB{after}: {host.memory_reason}"
    if model is not None and left * STATE_SHARE < STATE_BYTES_MIN:
        raise ModelRefused(
            f"the model needs {weights / 1e9:.2f} GB for its weights, and this process may use {host.memory_available / 1e9:.2f} GB "
            f"({host.memory_reason}): choose a smaller model or raise the limit",
            code="not_enough_memory",
        )
    return Choice(max(int(left * STATE_SHARE), STATE_BYTES_MIN), reason)


def _context_and_members(
    configuration: Configuration, model: ModelNeeds, state_bytes: int, members: Choice[int]
) -> tuple[Choice[int], Choice[int]]:
    """A context that every member can have at the same time; rather fewer members than a context that is of little use.

    1. The whole context of the model fits for all members: take it.
    2. A comfortable part of it fits for all: take what fits.
    3. Else the comfortable part, for as many members as fit, at least one.
    """
    asked = _asked_context(configuration, model)
    tokens = state_bytes // max(1, model.state_bytes_per_token)
    context = asked or _fitting_context(model, state_bytes, tokens, members.value)
    if tokens < context.value or context.value < min(model.context_max, CONTEXT_GRAIN) and asked is None:
        raise ModelRefused(
            f"{state_bytes / 1e6:.0f} MB of state hold {tokens} tokens of this model, and {max(context.value, CONTEXT_GRAIN)} are needed: "
            f"raise the memory limit or engine.state_bytes, or lower engine.context",
            code="not_enough_memory",
        )
    fitting = tokens // context.value
    if fitting < members.value and configuration.scheduler.batch_members == 0:
        members = Choice(fitting, f"as many as {state_bytes / 1e9:.2f} GB of state hold at {context.value} tokens each")
    return context, members


def _fitting_context(model: ModelNeeds, state_bytes: int, tokens: int, members: int) -> Choice[int]:
    comfortable = min(model.context_max, CONTEXT_COMFORTABLE)
    share = tokens // members
    if share >= model.context_max:
        return Choice(model.context_max, "all that the model was trained for")
    if share >= comfortable:
        return Choice(_grains(share), f"what {state_bytes / 1e9:.1f} GB of state hold for each of {members} members")
    if tokens >= comfortable:
        return Choice(comfortable, "enough for a conversation; memory holds no longer one for all members")
    return Choice(_grains(tokens), f"all that {state_bytes / 1e9:.2f} GB of state hold")


def _asked_context(configuration: Configuration, model: ModelNeeds) -> Choice[int] | None:
    asked = _explicit(configuration, "engine.context", configuration.engine.context, 0)
    if asked is not None and asked.value > model.context_max:
        return Choice(model.context_max, f"the model was trained for no more than this; {asked.value} {asked.reason}")
    return asked


def _grains(tokens: int) -> int:
    return tokens // CONTEXT_GRAIN * CONTEXT_GRAIN
