"""The settings of a run: frozen structs with their defaults, their ranges and what they mean.

Only what some code reads is here; everything else is an unknown key. A name ends in its unit: `_bytes`, `_s` for seconds. Where 0 means
"choose for this machine", `runtime.host.choose_defaults` chooses and gives its reason. Adding a field is all it takes to have a setting:
file, environment, command line, ranges and `describe` follow from the struct.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BACKENDS = ("auto", "picolm", "llamacpp", "mistralrs", "proxy", "toy")
"""What `engine.backend` may be."""
KERNELS = ("auto", "native", "torch")
"""What `engine.kernels` may be."""
DEVICES = ("auto", "cpu", "cuda")
"""What `engine.device` may be, besides `cuda:N`."""
SOCKET_MODES = ("600", "660")
"""What `server.unix_socket_mode` may be."""
METRICS_FAMILIES = ("vllm", "llamacpp")
"""What `server.metrics_families` may hold."""
LOG_FORMATS = ("text", "json")
"""What `server.log_format` may be."""
MODES = ("auto", "off", "prompt-lookup", "ngram-context", "draft-model")
"""What `speculation.mode` may be."""
KV_TYPES = ("f32", "f16")
"""What `engine.kv_type` may be."""
PROXY_EXTENSIONS = ("top_k", "min_p", "repeat_penalty", "repetition_penalty", "repeat_last_n", "ignore_eos")
"""What `proxy.extensions` may hold, by the names that the field may have upstream."""
LIMIT_MAX = 65_536
"""No queue or batch is longer than this, whatever is asked for (SCH-A19)."""


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The listener."""

    host: Annotated[str, Meta(description="address to listen on: an IP literal or a host name")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="TCP port; 0 takes a free one")] = 8420
    max_body_bytes: Annotated[
        int, Meta(ge=KIB, le=GIB, description="longest request body; a longer one is refused with 413")
    ] = 16 * MIB
    body_timeout_s: Annotated[float, Meta(ge=1, le=3600, description="time a client has to send its body; then 408")] = 30.0
    send_timeout_s: Annotated[float, Meta(ge=1, le=3600, description="a client that takes nothing for so long is dropped")] = (
        60.0
    )
    keep_alive_comment_s: Annotated[float, Meta(ge=1, le=300, description="an idle stream gets a comment line this often")] = (
        15.0
    )
    drain_timeout_s: Annotated[float, Meta(ge=0, le=3600, description="time for running requests to finish at shutdown")] = 30.0
    metrics_families: Annotated[
        tuple[str, ...],
        Meta(max_length=2, description="further names for the metrics: vllm, llamacpp"),
    ] = ()
    ui: Annotated[bool, Meta(description="offer the web page at /ui: a chat, and a live view of the server")] = True
    log_format: Annotated[str, Meta(description="log lines for people (text) or programs (json)")] = "text"
    audit_file: Annotated[str, Meta(description="file that gets a line for each request that did something; empty = none")] = ""
    audit_denies: Annotated[bool, Meta(description="refuse work while the audit log cannot be written")] = False
    traces: Annotated[bool, Meta(description="export spans by OTLP, as the OTEL_… variables say; needs tripower[otel]")] = False
    allowed_hosts: Annotated[
        tuple[str, ...], Meta(max_length=64, description="further names that a Host header may carry")
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        Meta(max_length=64, description="web pages that may use the server, as scheme://host:port; * = all, with keys only"),
    ] = ()
    root_path: Annotated[
        str, Meta(description="prefix under which a proxy offers the server, as in /llm; stripped by the proxy or not")
    ] = ""
    unix_socket: Annotated[str, Meta(description="path of a Unix socket to listen on as well; empty = none")] = ""
    unix_socket_mode: Annotated[str, Meta(description="who may use the Unix socket: 600 = its owner, 660 = the group too")] = (
        "600"
    )
    tcp: Annotated[bool, Meta(description="listen on host and port; false leaves the Unix socket alone")] = True
    tls_certificate: Annotated[str, Meta(description="PEM file with the certificate chain; then TCP speaks TLS only")] = ""
    tls_key: Annotated[str, Meta(description="PEM file with the certificate's key")] = ""
    tls_key_password_file: Annotated[str, Meta(description="file with the password of an encrypted key")] = ""
    allow_public_without_keys: Annotated[bool, Meta(description="listen beyond this machine though there are no API keys")] = (
        False
    )
    connections_per_address: Annotated[
        int, Meta(ge=0, le=LIMIT_MAX, description="connections that one address may have open; 0 = no limit of its own")
    ] = 0


class AuthSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who may ask, and how much. The keys themselves are in a file and in `TRIPOWER_API_KEYS`."""

    keys_file: Annotated[str, Meta(description="TOML file with the API keys' hashes; empty = only TRIPOWER_API_KEYS")] = ""
    concurrency: Annotated[
        int,
        Meta(ge=0, le=LIMIT_MAX, description="requests that a key may have at once with one model; 0 = no limit of its own"),
    ] = 0
    requests_per_minute: Annotated[int, Meta(ge=0, le=1_000_000_000, description="requests of a key; 0 = no limit")] = 0
    tokens_per_minute: Annotated[
        int, Meta(ge=0, le=1_000_000_000, description="tokens of a key, of prompts and of answers; 0 = no limit")
    ] = 0


class SchedulerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who waits, and who runs together."""

    batch_members: Annotated[
        int, Meta(ge=0, le=256, description="requests that share a step; 0 = by the cores and the memory")
    ] = 0
    waiting: Annotated[
        int, Meta(ge=-1, le=LIMIT_MAX, description="requests that may wait for a seat; 0 = refuse at once, -1 = by the seats")
    ] = -1
    steps_per_job: Annotated[
        int, Meta(ge=1, le=4096, description="steps an engine runs ahead if nobody joins, leaves or must be answered")
    ] = 256
    prefill_rows: Annotated[int, Meta(ge=0, le=LIMIT_MAX, description="prompt tokens in one step; 0 = by the cores")] = 0
    mixed_rows: Annotated[
        int, Meta(ge=0, le=LIMIT_MAX, description="prompt tokens in one step while others stream; 0 = by the cores")
    ] = 0
    deadline_max_s: Annotated[float, Meta(ge=1, le=86_400, description="longest deadline a client may ask for")] = 3600.0
    prefix_cache: Annotated[
        bool, Meta(description="keep evaluated prompts, so that one that begins in the same way is not evaluated again")
    ] = True
    prefix_bytes: Annotated[
        int, Meta(ge=0, le=1 << 46, description="memory for kept prompts, a part of that for states; 0 = half of it")
    ] = 0
    prefix_entries: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="prompts that are kept at most, for each model")] = 256
    prefix_ttl_s: Annotated[
        float, Meta(ge=1, le=86_400, description="a kept prompt that is not used for so long is dropped")
    ] = 300.0


class SpeculationChoices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whether tokens are guessed and verified several in a step. It never changes an answer of an exact engine."""

    mode: Annotated[
        str,
        Meta(
            description="where guesses come from: off, prompt-lookup, ngram-context, draft-model, or auto: lookups where they cannot "
            "change answers"
        ),
    ] = "off"
    draft_max: Annotated[int, Meta(ge=0, le=64, description="longest guess in tokens; 0 = by the strategy")] = 0
    draft_model: Annotated[
        str, Meta(description="smaller model that guesses in draft-model mode, loaded beside each model; empty = none")
    ] = ""
    draft_sha256: Annotated[str, Meta(description="digest that the draft model's file must have; empty = any")] = ""
    draft_target_sha256: Annotated[
        str, Meta(description="digest of the file that the draft model was made for; empty = any whose tokens are the same")
    ] = ""


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What runs models, and what it may use."""

    backend: Annotated[
        str, Meta(description="the engine to run models with; auto chooses for each by its file, and says why")
    ] = "auto"
    threads: Annotated[int, Meta(ge=0, le=1024, description="threads of one step; 0 = the cores this process may use")] = 0
    context: Annotated[
        int, Meta(ge=0, le=1 << 24, description="tokens of one sequence; 0 = the model's own, if memory allows")
    ] = 0
    state_bytes: Annotated[
        int, Meta(ge=0, le=1 << 46, description="memory for the state of all sequences; 0 = by free memory")
    ] = 0
    device: Annotated[
        str, Meta(description="where picolm computes: auto is a CUDA device where torch finds one, else the processor")
    ] = "auto"
    kernels: Annotated[
        str, Meta(description="how picolm computes: generated code where it can be (auto), always (native), or never (torch)")
    ] = "auto"
    kv_type: Annotated[
        str, Meta(description="elements of picolm's states: f32 as computed, or f16, which halves their memory and rounds them")
    ] = "f32"
    keep_alive_s: Annotated[
        float,
        Meta(
            ge=0, le=31_536_000, description="a model that was not named at the start is unloaded after so long idle; 0 = never"
        ),
    ] = 300.0
    models_max: Annotated[
        int, Meta(ge=0, le=256, description="models in memory at once; another one waits until an idle one has gone; 0 = any")
    ] = 0
    stall_s: Annotated[
        float, Meta(ge=1, le=3600, description="a device or delegate that works and passes no step for so long is unhealthy")
    ] = 60.0
    gpu_layers: Annotated[
        int,
        Meta(ge=-1, le=4096, description="layers that an accelerator shall take; 0 = none, -1 = all; refused where it cannot"),
    ] = 0


class ProxySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Remote servers as engines."""

    allow_plain: Annotated[
        bool, Meta(description="let requests go over plain http to other machines, where everybody on the way can read them")
    ] = False
    extensions: Annotated[
        tuple[str, ...],
        Meta(
            max_length=16, description="request fields beyond OpenAI's own that the servers understand; others are refused here"
        ),
    ] = ()


class ConsoleSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The console of a service: who has its process may look inside. A library turns it on where it is opened."""

    enabled: Annotated[bool, Meta(description="let `tripower console` look inside, at a Unix socket of this user alone")] = True
    socket: Annotated[str, Meta(description="path of the console's socket; empty = PID.sock in the runtime directory")] = ""
    python: Annotated[bool, Meta(description="let `py` run Python in the process")] = True
    stall_ms: Annotated[
        int, Meta(ge=0, le=60_000, description="note what holds the loop for longer, and at which line; 0 = do not look")
    ] = 0
    recorder: Annotated[
        int, Meta(ge=0, le=1_000_000, description="messages that are remembered for `tripower console record`; 0 = none")
    ] = 20_000


class Described(NamedTuple):
    """One setting as it is in force. `source` is `default`, or where the value was given."""

    path: str
    value: Any
    source: str
    default: Any


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that a run is told. `Configuration()` is a complete one; `load_configuration` makes it from what the user gave."""

    server: ServerSettings = ServerSettings()
    auth: AuthSettings = AuthSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    engine: EngineSettings = EngineSettings()
    speculation: SpeculationChoices = SpeculationChoices()
    proxy: ProxySettings = ProxySettings()
    console: ConsoleSettings = ConsoleSettings()
    models: Annotated[
        tuple[str, ...], Meta(max_length=256, description="models to serve: a name, a source, or NAME=SOURCE")
    ] = ()
    sources: dict[str, str] = {}
    """Where each value that is not a default came from, by path."""

    def source(self, path: str) -> str:
        """`default`, or where the value at this path was given."""
        return self.sources.get(path, "default")

    def describe(self) -> Iterator[Described]:
        """Every setting in force, in the order of this file. For `tripower doctor` and the logs."""
        defaults = dict(values(Configuration()))
        for path, value in values(self):
            yield Described(path, value, self.source(path), defaults[path])


def values(configuration: Configuration) -> Iterator[tuple[str, Any]]:
    """(path, value) of every setting."""
    for field in msgspec.structs.fields(Configuration):
        value = getattr(configuration, field.name)
        if field.name == "sources":
            continue
        if isinstance(value, msgspec.Struct):
            yield from ((f"{field.name}.{inner}", getattr(value, inner)) for inner in value.__struct_fields__)
        else:
            yield field.name, value
