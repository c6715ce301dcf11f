"""What can be typed. Imports argparse and nothing else of weight."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tripower.api.version import VERSION

HOMES: Mapping[str, str] = {
    "run": "run",
    "chat": "chat",
    "serve": "serve",
    "pull": "pull",
    "list": "list_models",
    "rm": "remove",
    "ps": "ps",
    "console": "console.command",
    "console record": "console.record",
    "console view": "console.view",
    "top": "top.command",
    "doctor": "doctor",
    "settings": "list_settings",
    "audit": "audit",
    "key": "key",
    "bench": "bench",
}
"""The module of each command. The name of a command may be two words, the first of which is a command too."""

MODEL_HELP = "a name (smollm2), a source (hf:org/repo/file, https://…, pypi:dist==version, /path.gguf, proxy:https://…#MODEL), or NAME=SOURCE"
EPILOG = "start here:  tripower run smollm2 'Why is the sky blue?'"
URL = "http://127.0.0.1:8420"
KEY_HELP = "environment:  TRIPOWER_API_KEY, the key that is sent to the server; SSL_CERT_FILE, as --cacert"
SETTINGS_HELP = "`tripower settings` lists every setting with its value and its meaning; docs/settings.md has the same list"


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line. `command` is None when none was named."""
    parser = argparse.ArgumentParser(
        prog="tripower",
        description="Run language models on this machine: in this process, or as an OpenAI-compatible service.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"tripower {VERSION}")
    parser.add_argument("--debug", action="store_true", help="show logs and tracebacks")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_run(commands)
    _add_chat(commands)
    _add_serve(commands)
    _add_pull(commands)
    _add_list(commands)
    _add_rm(commands)
    _add_ps(commands)
    _add_console(commands)
    _add_console_record(commands)
    _add_console_view(commands)
    _add_top(commands)
    _add_doctor(commands)
    _add_settings_list(commands)
    _add_audit(commands)
    _add_key(commands)
    _add_bench(commands)
    return parser


WORDS = {"run": "prompt", "serve": "models", "rm": "names"}
"""The words of a command that may also stand after its options, where argparse would not look for them."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """What was typed. Ends the process with 2 for bad usage, as argparse does."""
    parser = build_parser()
    words = joined(sys.argv[1:] if argv is None else argv)
    named = next((word for word in words if not word.startswith("-")), None)
    if named is not None and named not in HOMES:
        parser.error(f"{named!r} is no command{_nearest(named)}: see `tripower --help`")
    arguments, left = parser.parse_known_args(words)
    if left:
        if arguments.command not in WORDS or any(word.startswith("-") for word in left):
            parser.error(f"{left[0]!r} is nothing that `tripower{_named(arguments.command)}` knows: see its --help")
        getattr(arguments, WORDS[arguments.command]).extend(left)
    return arguments


def joined(words: Sequence[str]) -> list[str]:
    """The words with those of a command of two words made one: `console view` is no console with a strange target."""
    for number, word in enumerate(words):
        if not word.startswith("-"):
            pair = " ".join(words[number : number + 2])
            return [*words[:number], pair, *words[number + 2 :]] if pair in HOMES else list(words)
    return list(words)


def _nearest(word: str) -> str:
    close = difflib.get_close_matches(word, HOMES, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _named(command: str | None) -> str:
    return "" if command is None else f" {command}"


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _command(
    commands: Commands, name: str, about: str, description: str = "", epilog: str | None = None
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=about, description=description or about[0].upper() + about[1:] + ".", epilog=epilog)
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show logs and tracebacks")
    return parser


def _add_run(commands: Commands) -> None:
    parser = _command(
        commands,
        "run",
        "answer one prompt",
        "Answer one prompt, streaming. Text that is piped in goes before the prompt. A model that is not here is pulled first.",
        KEY_HELP,
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "prompt", metavar="PROMPT", nargs="*", default=[], help="what to ask; without one, and in a terminal: `tripower chat`"
    )
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the model's chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object when the answer is complete")
    _add_generation(parser)
    _add_url(parser)
    _add_settings(parser, backend=True)
    _add_quiet(parser)


def _add_chat(commands: Commands) -> None:
    parser = _command(
        commands,
        "chat",
        "hold a conversation",
        "Hold a conversation. /help lists what else can be typed; Ctrl-C stops an answer, Ctrl-D ends.",
        KEY_HELP,
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    _add_generation(parser)
    _add_url(parser)
    _add_settings(parser, backend=True)
    _add_quiet(parser)


def _add_serve(commands: Commands) -> None:
    parser = _command(
        commands,
        "serve",
        "serve models over HTTP, as OpenAI does",
        "Serve models over HTTP, as OpenAI does. Those that are named are loaded at the start and stay. "
        "The others of the store load when they are first asked for by name, also where some were named.",
        f"{SETTINGS_HELP}. With TRIPOWER_API_KEYS or auth.keys_file, nobody gets in without a key.",
    )
    parser.add_argument("models", metavar="MODEL", nargs="*", help=MODEL_HELP)
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", help="port to listen on (8420); 0 takes a free one")
    _add_settings(parser, backend=True)
    _add_quiet(parser)


def _add_pull(commands: Commands) -> None:
    parser = _command(
        commands, "pull", "fetch a model into the store", "Fetch a model into the store; what is half fetched goes on."
    )
    parser.add_argument("reference", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--name", help="a name of your own for it")
    parser.add_argument("--sha256", help="the digest that the model file must have")
    _add_quiet(parser)


def _add_list(commands: Commands) -> None:
    parser = _command(commands, "list", "list the models of the store")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_rm(commands: Commands) -> None:
    parser = _command(commands, "rm", "remove models from the store")
    parser.add_argument("names", metavar="NAME", nargs="+", help="a name that `tripower list` shows")


def _add_ps(commands: Commands) -> None:
    parser = _command(
        commands,
        "ps",
        "show what a server is doing",
        "Show the models of a running server, their seats and their state.",
        KEY_HELP,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_url(parser, f"the server (TRIPOWER_URL, else {URL})")


def _add_console(commands: Commands) -> None:
    parser = _command(
        commands,
        "console",
        "look inside a running server",
        "Attach to a running process of yours and look inside: its actors, tasks, requests, devices. `help` lists what can be typed there, "
        "Tab completes it, Ctrl-C ends what is running, Ctrl-D leaves. Lines that are piped in are verbs.",
        "environment:  TRIPOWER_RUNTIME_DIR, the folder of the sockets (else tripower in $XDG_RUNTIME_DIR, else /tmp/tripower-UID)",
    )
    _add_target(parser)
    parser.add_argument(
        "-c", action="append", default=[], metavar="VERB", dest="verbs", help="answer this and end; may be given several times"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value a line")


def _add_console_record(commands: Commands) -> None:
    parser = _command(
        commands,
        "console record",
        "keep what passes inside a server in a file",
        "Write what has passed lately between the actors of a running server of yours to a file, or what passes in the next seconds. "
        "Neither prompts nor keys are in it.",
    )
    parser.add_argument("file", metavar="FILE", help="is there when it is complete, for `tripower console view`")
    _add_target(parser)
    parser.add_argument("--seconds", type=_interval, metavar="N", help="record for so long, instead of what is remembered")
    parser.add_argument("--payloads", action="store_true", help="with --seconds: what messages say, prompts too")
    parser.add_argument("--force", action="store_true", help="replace the file, if it is there")


def _add_target(parser: argparse.ArgumentParser) -> None:
    """Which running process is meant."""
    parser.add_argument(
        "target", metavar="PID|SOCKET", nargs="?", help="the process, or its console's socket; needed only where several run"
    )


def _add_console_view(commands: Commands) -> None:
    parser = _command(
        commands,
        "console view",
        "step through such a file",
        "Step through a recording, message by message, with the tree of actors at each. Where the output is no terminal, a line for each.",
    )
    parser.add_argument("file", metavar="FILE", help="what `tripower console record` has written")
    parser.add_argument("--at", type=int, metavar="NUMBER", help="show this record and end")
    parser.add_argument("--filter", default="", metavar="TEXT", help="list only records that have it")
    parser.add_argument(
        "--replay", action="store_true", help="decide again what the models' queues decided; ends with 1 where that differs"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value")


def _add_top(commands: Commands) -> None:
    parser = _command(
        commands,
        "top",
        "watch a running server",
        "Watch a running server of yours, live: tokens a second, models, keys, devices and the slowest requests, which can be cancelled and "
        "traced; ? explains. Where the output is no terminal, one look.",
    )
    _add_target(parser)
    parser.add_argument("--interval", type=_interval, default=1.0, metavar="SECONDS", help="between two looks (1)")
    parser.add_argument("--json", action="store_true", help="print one look as JSON")


def _add_doctor(commands: Commands) -> None:
    parser = _command(
        commands,
        "doctor",
        "check this machine",
        "Check this machine and show what would be used on it, and why. Ends with 1 when something is in the way.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_settings(parser)


def _add_settings_list(commands: Commands) -> None:
    parser = _command(
        commands,
        "settings",
        "list the settings",
        "List every setting: its value, where that was given, what it takes and what it is for.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_settings(parser)


def _add_audit(commands: Commands) -> None:
    parser = _command(
        commands,
        "audit",
        "check an audit log and show it",
        "Check that each line of an audit log follows the one before, and show its events. Exit status 1: something was changed.",
    )
    parser.add_argument("file", metavar="FILE", help="what server.audit_file named")
    parser.add_argument("--quiet", action="store_true", help="check only")


def _add_key(commands: Commands) -> None:
    parser = _command(commands, "key", "make API keys", "Make API keys for `tripower serve`.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    new = verbs.add_parser("new", help="make a key", description="Print a new key, and the lines that the file of keys gets.")
    new.add_argument("--name", default="", help="what logs call its holder")
    new.add_argument("--admin", action="store_true", help="may load and unload models, and end what others ask")


def _add_bench(commands: Commands) -> None:
    parser = commands.add_parser(
        "bench", help="measure", description="Measure; `tripower bench --help` lists what.", add_help=False, prefix_chars="\0"
    )
    parser.add_argument("rest", nargs=argparse.REMAINDER)


def _add_generation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the answer")
    group.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    group.add_argument("--max-tokens", type=int, metavar="N", help="stop after so many tokens")
    group.add_argument(
        "--temperature", type=float, metavar="T", help="what the model file recommends, else 0.7; 0 takes the likeliest token"
    )
    group.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens that have this mass together")
    group.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    group.add_argument("--min-p", type=float, metavar="P", help="leave out what is less likely than P times the likeliest")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answer")
    group.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text; may be given several times")
    group.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="give up after this time, loading included")


def _add_url(parser: argparse.ArgumentParser, about: str = "ask a running server instead of loading the model here") -> None:
    parser.add_argument("--url", help=f"{about}; http://…, https://…, or unix:PATH for its Unix socket")
    parser.add_argument(
        "--cacert", metavar="FILE", help="PEM file with the certificate, or its authority's, that the server is trusted by"
    )


def _add_settings(parser: argparse.ArgumentParser, *, backend: bool = False) -> None:
    group = parser.add_argument_group("settings")
    if backend:
        group.add_argument("--backend", metavar="NAME", help="the engine: auto, picolm, llamacpp, mistralrs, proxy or toy")
    group.add_argument("--config", metavar="FILE", help="a TOML file (TRIPOWER_CONFIG, else config.toml in ~/.tripower)")
    group.add_argument(
        "--set",
        action="append",
        type=_assignment,
        default=[],
        metavar="PATH=VALUE",
        help="one setting, as in --set engine.threads=4",
    )


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="show no progress and no figures")


def _seconds(text: str) -> float:
    return _number(text, "seconds above 0", lambda seconds: 0 < seconds < float("inf"))


def _interval(text: str) -> float:
    return _number(text, "0.25 to 3600 seconds", lambda seconds: 0.25 <= seconds <= 3600)


def _number(text: str, expected: str, allows: Callable[[float], bool]) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not allows(number):
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return number


def _assignment(text: str) -> tuple[str, str]:
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise argparse.ArgumentTypeError(f"expected PATH=VALUE, got {text!r}")
    return path, value
