"""The command line: picks a subcommand from the table and hands it the rest."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from tokenwire import __version__
from tokenwire.commands import COMMANDS

_USAGE_EXIT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tokenwire ARGS`; returns the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    name = args[0] if args else "--help"
    if name in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0 if args else _USAGE_EXIT
    if name in ("-V", "--version", "version"):
        sys.stdout.write(f"tokenwire {__version__}\n")
        return 0
    if args[:2] == ["launch", "render"]:  # vLLM's spelling
        name, args = "render", args[1:]
    for command in COMMANDS:
        if command.name == name:
            return int(importlib.import_module(command.module).run(args[1:]))
    known = ", ".join(command.name for command in COMMANDS)
    sys.stderr.write(f"tokenwire: {name} is not a command; there are {known}.\n")
    return _USAGE_EXIT


def _help() -> str:
    width = max(len(command.name) for command in COMMANDS)
    lines = [f"  {command.name:<{width}}  {command.help}" for command in COMMANDS]
    return (
        f"tokenwire {__version__}: serve language models by token ids\n\n"
        "usage: tokenwire COMMAND [options]      (--help after a command shows its options)\n\n"
        + "\n".join(lines)
        + "\n\n  --version  show the version\n"
    )


if __name__ == "__main__":
    sys.exit(main())
