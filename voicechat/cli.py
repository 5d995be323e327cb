"""The command ``voicechat``. Everything heavy is imported by the subcommand that needs it, so that help is instant."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from voicechat.config import Settings

USAGE_ERROR = 2
INTERRUPTED = 130

_MODULES = {
    "ask": ("voicechat.ask", "ask one question, spoken or typed, and save the spoken answer"),
    "bench": ("voicechat.bench.cli", "measure the server, also beside a naive run, and judge its voices"),
    "keys": ("voicechat.keys_command", "add, list and revoke API keys"),
    "watermark": ("voicechat.watermark_cli", "look for watermarks in files, and show this deployment's"),
    "train": ("voicechat.train.cli", "make the Talker's and VoiceBox's weights from nothing"),
}
"""Subcommands that live in a module: ``add_arguments(parser)``, ``main(options) -> exit code``; and a line of help."""


_FLAGS = {
    "device": "device",
    "host": "server.host",
    "port": "server.port",
    "https": "server.https",
    "brain": "brain.url",
    "brain_model": "brain.model",
    "brain_api_key": "brain.api_key",
}
"""Options that stand for a setting."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    named = next((word for word in words if not word.startswith("-")), None)
    options = _parser(named).parse_args(words)
    command: Callable[[argparse.Namespace], int | None] = options.command
    return _run(lambda: command(options) or 0)


def _run(command: Callable[[], int]) -> int:
    try:
        return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser(named: str | None) -> argparse.ArgumentParser:
    """The whole parser; the arguments of a module's subcommand only if it is the one ``named``."""
    parser = argparse.ArgumentParser(
        prog="voicechat",
        description="A real-time voice chat server: Thinker, Talker and VoiceBox at once.",
        epilog="Every setting: `voicechat config`. Any of them: --set section.key=value, or VOICECHAT_SECTION__KEY.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="assemble the model if needed and serve it")
    _add_settings(serve)
    serve.add_argument("--host", help="address to listen on (server.host)")
    serve.add_argument("--port", type=int, help="port to listen on, 0 for any (server.port)")
    serve.add_argument(
        "--https", action="store_const", const="true", help="serve HTTPS, by a certificate made here (server.https)"
    )
    serve.set_defaults(command=_serve)

    for name, (path, text) in _MODULES.items():
        command = commands.add_parser(name, help=text, description=text.capitalize() + ".")
        if name == named:
            module = importlib.import_module(path)
            module.add_arguments(command)
            command.set_defaults(command=module.main)

    assemble = commands.add_parser("assemble", help="fetch, check and convert the model's parts, and nothing else")
    _add_settings(assemble)
    assemble.add_argument("--verify", action="store_true", help="compare the checksums of everything already there")
    assemble.set_defaults(command=_assemble)

    config = commands.add_parser("config", help="print the settings that would be used, as YAML")
    _add_settings(config)
    config.add_argument("--reference", action="store_true", help="print what each setting means, in Markdown, instead")
    config.set_defaults(command=_config)

    doctor = commands.add_parser("doctor", help="look for what would keep the server from running well")
    _add_settings(doctor)
    doctor.add_argument("--rtc", action="store_true", help="look instead at what a client outside meets when it calls")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.set_defaults(command=_doctor)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="a name in configs/ or a YAML file; default embedded")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="what the models run on (device)")
    parser.add_argument("--brain", metavar="URL", help="a chat completions endpoint that thinks instead (brain.url)")
    parser.add_argument("--brain-model", metavar="NAME", help="its name of the model (brain.model)")
    parser.add_argument(
        "--brain-api-key", metavar="KEY", help="its key (brain.api_key); in VOICECHAT_BRAIN__API_KEY it is not shown"
    )
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="any setting; may be repeated"
    )


def _settings(options: argparse.Namespace) -> Settings:
    """Settings of the options; ends the program with a clear line if one is wrong."""
    from voicechat.config import ConfigError, load_settings

    overrides = list(options.overrides)
    for name, key in _FLAGS.items():
        value = getattr(options, name, None)
        if value is not None:
            overrides.append(f"{key}={value}")
    try:
        return load_settings(options.model, overrides=overrides)
    except ConfigError as error:
        print(f"voicechat: {error}", file=sys.stderr)
        raise SystemExit(USAGE_ERROR) from None


def _serve(options: argparse.Namespace) -> int:
    settings = _settings(options)
    if _assembled(settings) is None:
        return 1
    from voicechat.server import serve

    return serve(settings) or 0


def _assemble(options: argparse.Namespace) -> int:
    paths = _assembled(_settings(options), verify=options.verify)
    if paths is None:
        return 1
    for name, path in paths.items():
        print(f"{name:<8} {path}")
    return 0


def _assembled(settings: Settings, *, verify: bool = False) -> dict[str, str] | None:
    import dataclasses

    from voicechat.assemble import AssembleError, assemble

    try:
        paths = assemble(settings, verify=verify)
    except AssembleError as error:
        print(f"voicechat: {error}", file=sys.stderr)
        return None
    return {name: str(path) for name, path in dataclasses.asdict(paths).items()}


def _config(options: argparse.Namespace) -> int:
    if options.reference:
        from voicechat.config_reference import reference

        print(reference(), end="")
        return 0
    import yaml

    tree = _settings(options).model_dump(mode="json")
    tree["server"]["api_keys"] = ["(hidden)" for _ in tree["server"]["api_keys"]]
    for secret in ("turn_credential", "turn_secret"):
        if tree["rtc"][secret] is not None:
            tree["rtc"][secret] = "(hidden)"
    if tree["brain"]["api_key"] is not None:
        tree["brain"]["api_key"] = "(hidden)"
    mark = tree["watermark"]
    mark["key"], mark["known_keys"] = mark["key"] and "(hidden)", ["(hidden)" for _ in mark["known_keys"]]
    print(yaml.safe_dump(tree, sort_keys=False), end="")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from voicechat.doctor import run

    return run(_settings(options), as_json=options.json, rtc=options.rtc)


if __name__ == "__main__":
    sys.exit(main())
