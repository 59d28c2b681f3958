"""The subcommands, as a table; a command's module is imported only when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Command:
    """`module` has a function `run(argv: list[str]) -> int`, which returns the exit code."""

    name: str
    module: str
    help: str


COMMANDS = (
    Command("serve", "tokenwire.commands.serve", "serve a model: token ids in, token ids out"),
    Command("render", "tokenwire.commands.render", "a front end without an engine: render and derender only"),
    Command("bench", "tokenwire.bench.command", "load a running server and show how fast it answers"),
)
