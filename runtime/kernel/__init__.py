"""The actor kernel: messages, inboxes, supervision, deadlines, lanes, introspection. It has never heard of models."""

from tripower.runtime.kernel.actor import LATER, Actor, Ref
from tripower.runtime.kernel.blocking import BlockingStream, run_blocking
from tripower.runtime.kernel.cell import ActorFailed
from tripower.runtime.kernel.deadlines import NEVER, deadline_after, remaining_seconds, within
from tripower.runtime.kernel.envelope import Envelope
from tripower.runtime.kernel.errors import (
    ActorGone,
    DeadlineExceeded,
    DeviceFailed,
    InboxFull,
    InvalidConfiguration,
    InvalidRequest,
    ModelRefused,
    NotFound,
    Overloaded,
    TripowerError,
    Unavailable,
)
from tripower.runtime.kernel.handoff import HandOff
from tripower.runtime.kernel.lane import InlineLane, LaneJob, Port, open_port
from tripower.runtime.kernel.messages import Ask, Message, Stop, decode, encode
from tripower.runtime.kernel.outlet import Outlet
from tripower.runtime.kernel.statistics import ActorStatistics
from tripower.runtime.kernel.supervision import Strategy, Supervision
from tripower.runtime.kernel.system import ActorSystem, open_actor_system

__all__ = [
    "LATER",
    "NEVER",
    "Actor",
    "ActorFailed",
    "ActorGone",
    "ActorStatistics",
    "ActorSystem",
    "Ask",
    "BlockingStream",
    "DeadlineExceeded",
    "DeviceFailed",
    "Envelope",
    "HandOff",
    "InboxFull",
    "InlineLane",
    "InvalidConfiguration",
    "InvalidRequest",
    "LaneJob",
    "Message",
    "ModelRefused",
    "NotFound",
    "Outlet",
    "Overloaded",
    "Port",
    "Ref",
    "Stop",
    "Strategy",
    "Supervision",
    "TripowerError",
    "Unavailable",
    "deadline_after",
    "decode",
    "encode",
    "open_actor_system",
    "open_port",
    "remaining_seconds",
    "run_blocking",
    "within",
]
