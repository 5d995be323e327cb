"""``voicechat keys``: add, list and revoke API keys in the operator's file."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from voicechat.config import ConfigError, load_settings
from voicechat.faces.keys import FACES, Key, KeyLimits, KeysError, add_key, digest_of, new_token, read_keys, revoke_key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands."""
    parser.add_argument("--file", type=Path, help="the file; default: server.keys_file, else keys.yaml in data_dir")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="make a key and print it; it is shown only once")
    add.add_argument("name")
    add.add_argument("--faces", nargs="+", choices=FACES, default=[], help="what it is for; default: everything")
    add.add_argument("--models", nargs="+", default=[], metavar="NAME", help="models that it may use; default: all")
    add.add_argument("--days", type=float, help="expires after so many days; default: never")
    add.add_argument("--requests-per-minute", type=int)
    add.add_argument("--audio-seconds-per-minute", type=float)
    add.add_argument("--replies", type=int, help="at the same time")
    add.add_argument("--sessions", type=int, help="at the same time")
    actions.add_parser("list", help="print names, limits and expiry; the keys themselves are not kept")
    revoke = actions.add_parser("revoke", help="take a key out of the file")
    revoke.add_argument("name")


def main(options: argparse.Namespace) -> int:
    """Run the command; 1 if it can't be done."""
    try:
        file = options.file or _default_file()
        if options.action == "add":
            return _add(file, options)
        if options.action == "revoke":
            revoke_key(file, options.name)
            print(f"revoked; a running server forgets it on SIGHUP ({file})", file=sys.stderr)
            return 0
        return _list(file)
    except (KeysError, ConfigError, OSError) as error:
        print(f"voicechat: {error}", file=sys.stderr)
        return 1


def _default_file() -> Path:
    settings = load_settings()
    return settings.server.keys_file or settings.data_dir / "keys.yaml"


def _add(file: Path, options: argparse.Namespace) -> int:
    limits = {name: getattr(options, name) for name in KeyLimits.__dataclass_fields__}
    if wrong := [name for name, value in limits.items() if value is not None and value <= 0]:
        raise KeysError(f"--{wrong[0].replace('_', '-')} must be above 0")
    if options.days is not None and options.days <= 0:
        raise KeysError("--days must be above 0")
    expires = None if options.days is None else (datetime.now(UTC) + timedelta(days=options.days)).timestamp()
    token = new_token()
    faces, models = tuple(options.faces), tuple(options.models)
    add_key(file, Key(options.name, digest_of(token), faces, models, expires, KeyLimits(**limits)))
    print(token)
    print(f"in {file} is its digest only; a running server reads the file on SIGHUP", file=sys.stderr)
    return 0


def _list(file: Path) -> int:
    now = datetime.now(UTC).timestamp()
    for key in read_keys(file):
        until = (
            "never" if key.expires is None else datetime.fromtimestamp(key.expires, UTC).isoformat(timespec="seconds")
        )
        state = "expired" if key.expires is not None and key.expires <= now else "valid"
        limits = [
            f"{name}={value:g}" for name in KeyLimits.__dataclass_fields__ if (value := getattr(key.limits, name))
        ]
        print(
            f"{key.name}\t{state}\texpires: {until}\tfaces: {','.join(key.faces) or 'all'}"
            f"\tmodels: {','.join(key.models) or 'all'}\tlimits: {','.join(limits) or 'the default'}"
        )
    return 0
