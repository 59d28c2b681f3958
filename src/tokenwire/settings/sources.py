"""Where settings come from: flags win over environment variables, those over the YAML file, that over defaults."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tokenwire.settings.foreign import FOREIGN_FLAGS, ForeignFlag
from tokenwire.settings.groups import AdapterSettings, Settings
from tokenwire.settings.option import ENV_PREFIX, Option, SettingsError, options_of
from tokenwire.settings.speculation import as_vllm_config, prompt_lookup

CONFIG_ENV = ENV_PREFIX + "CONFIG"


def all_options() -> Iterator[tuple[str, str, list[Option]]]:
    """(field of `Settings`, title in the help, options) of every group."""
    for name, group in typing.get_type_hints(Settings).items():
        yield name, group.__doc__ or name, options_of(group)


def build(values: Mapping[str, Any]) -> Settings:
    """Settings from flat typed values; what is missing takes its default."""
    groups = {}
    for name, group in typing.get_type_hints(Settings).items():
        own = {f.name: values[f.name] for f in dataclasses.fields(group) if f.name in values}
        groups[name] = group(**own)
    return check(Settings(**groups))


def check(settings: Settings) -> Settings:
    """Combinations that cannot be; raises `SettingsError`."""
    if settings.logs.enable_log_outputs and not settings.logs.enable_log_requests:
        raise SettingsError("--enable-log-outputs needs --enable-log-requests.")
    if settings.chat.enable_auto_tool_choice and not settings.chat.tool_call_parser:
        raise SettingsError("--enable-auto-tool-choice needs --tool-call-parser.")
    has_parser = settings.chat.tool_call_parser or settings.chat.reasoning_parser
    if has_parser and (settings.model.tokens_only or settings.model.skip_tokenizer_init):
        raise SettingsError("--tool-call-parser and --reasoning-parser need a tokenizer; let it be loaded.")
    if bool(settings.network.ssl_keyfile) != bool(settings.network.ssl_certfile):
        raise SettingsError("--ssl-keyfile and --ssl-certfile go together; one of them is missing.")
    if settings.remote.vllm_args and settings.model.engine != "vllm":
        raise SettingsError(f"Flags after -- are for --engine vllm, got {' '.join(settings.remote.vllm_args)}.")
    if settings.engine.data_parallel_size > 1 and settings.model.engine == "remote":
        raise SettingsError("--data-parallel-size is not for --engine remote: name several workers (--worker).")
    if settings.adapters != AdapterSettings() and settings.model.engine not in ("vllm", "remote"):
        raise SettingsError(f"The {settings.model.engine} engine takes no LoRA adapters; --engine vllm does.")
    if settings.network.api_server_count > 1 and settings.model.engine == "vllm":
        raise SettingsError(
            "--api-server-count above 1 is not for --engine vllm, which runs inside the one front end. Start `vllm "
            "serve` and put several front ends before it: --engine remote --worker URL --api-server-count N."
        )
    if settings.network.api_server_count > 1 and settings.adapters != AdapterSettings():
        raise SettingsError("LoRA adapters are known to one front end only; leave --api-server-count out.")
    if settings.model.tokens_only and settings.model.tokenizer:
        raise SettingsError("--tokens-only loads no tokenizer; leave --tokenizer out.")
    if settings.model.engine == "local":
        prompt_lookup(settings.engine)
    elif settings.model.engine != "vllm" and as_vllm_config(settings.engine):
        raise SettingsError("Speculative decoding is for --engine local and vllm; workers have flags of their own.")
    return settings


# --- flags


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are one sentence and exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def make_parser(prog: str, description: str) -> Parser:
    """A parser of every setting, `MODEL` and `--config`; nothing that is not given appears in its result."""
    parser = Parser(
        prog=prog,
        description=description,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
        usage=f"{prog} [MODEL] [options]",
    )
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="the same as --model")
    parser.add_argument("--config", metavar="FILE", help=f"YAML file with the same settings as keys [env {CONFIG_ENV}]")
    for _, title, options in all_options():
        group = parser.add_argument_group(title)
        for opt in options:
            _add(group, opt)
    for name, foreign in FOREIGN_FLAGS.items():
        parser.add_argument(name, nargs="?" if foreign.takes_value else 0, action=_NoteForeign, help=argparse.SUPPRESS)
    return parser


def _add(group: argparse._ArgumentGroup, opt: Option) -> None:
    default = "" if opt.default in (None, "", [], {}) else f" (default {_plain(opt.default)})"
    text = f"{opt.help}{default} [env {opt.env}]".replace("%", "%%")
    if opt.kind is bool:
        group.add_argument(opt.flag, *opt.aliases, action=argparse.BooleanOptionalAction, dest=opt.name, help=text)
    elif opt.kind is list:
        metavar = opt.metavar or "ITEM"
        group.add_argument(
            opt.flag, *opt.aliases, nargs="+", action="extend", dest=opt.name, metavar=metavar, help=text
        )
    else:
        metavar = opt.metavar or ("{" + ",".join(opt.choices) + "}" if opt.choices else opt.kind.__name__.upper())
        group.add_argument(opt.flag, *opt.aliases, dest=opt.name, metavar=metavar, help=text)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(value) if isinstance(value, list) else f"{value}"


class _NoteForeign(argparse.Action):
    """A flag of vLLM's: one that has no meaning here is noted, one that we cannot honour ends the start."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, flag: str | None = None) -> None:
        assert flag is not None
        foreign: ForeignFlag = FOREIGN_FLAGS[flag]
        if foreign.refused:
            parser.error(f"{flag} is not supported: {foreign.sentence}")
        notes = getattr(namespace, "notes", [])
        namespace.notes = [*notes, f"{flag} is accepted without effect: {foreign.sentence}"]


# --- together


@dataclasses.dataclass(slots=True, frozen=True)
class Loaded:
    settings: Settings
    notes: list[str]
    """Lines for the log: flags without effect, variables that look misspelt."""


def load(parser: Parser, argv: Sequence[str], environ: Mapping[str, str]) -> Loaded:
    """Settings from all sources. Raises `SettingsError` for a bad value or an unknown key."""
    own, engine_args = _at_double_dash(argv)
    namespace, rest = parser.parse_known_args([_dashed(arg) for arg in own])
    flags = vars(namespace)
    if rest:
        raise SettingsError(_unknown(rest[0].partition("=")[0], [o.flag for o in _flat()], "flag"))
    if "model_tag" in flags:
        flags.setdefault("model", flags["model_tag"])
        if flags["model"] != flags["model_tag"]:
            raise SettingsError(f"The model is given twice: {flags['model_tag']!r} and --model {flags['model']!r}.")
    values = _from_file(flags.get("config") or environ.get(CONFIG_ENV))
    for opt in _flat():
        if opt.env in environ:
            values[opt.name] = opt.from_text(environ[opt.env], opt.env)
        if opt.name in flags:
            values[opt.name] = _from_flag(opt, flags[opt.name])
    if engine_args:
        values["vllm_args"] = engine_args
    return Loaded(build(values), flags.get("notes", []) + _misspelt(environ))


def _at_double_dash(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our flags, and those after `--`, which are vLLM's."""
    if "--" not in argv:
        return list(argv), []
    at = list(argv).index("--")
    return list(argv[:at]), list(argv[at + 1 :])


def _flat() -> list[Option]:
    return [opt for _, _, options in all_options() for opt in options]


def _dashed(arg: str) -> str:
    name, equals, value = arg.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else arg


def _from_flag(opt: Option, given: Any) -> Any:
    if opt.kind is bool:
        return given
    if opt.kind is list:
        return [item for text in given for item in opt.from_text(text, opt.flag) or []]
    return opt.from_text(given, opt.flag)


def _from_file(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise SettingsError(f"--config {path}: {exc}") from exc
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"--config {path}: the file must be a map of settings, got {type(content).__name__}.")
    known = {opt.name: opt for opt in _flat()}
    values = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise SettingsError(f"--config {path}: {_unknown(str(key), list(known), 'setting')}")
        values[name] = known[name].from_plain(value, f"{key} in {path}")
    return values


def _unknown(name: str, known: list[str], noun: str) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"{name} is not a {noun}.{hint}"


def _misspelt(environ: Mapping[str, str]) -> list[str]:
    """Variables that nearly name a setting: most likely meant, and without effect."""
    known = [opt.env for opt in _flat()] + [CONFIG_ENV]
    notes = []
    for name in environ:
        if name.startswith(ENV_PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            if close:
                notes.append(f"{name} is not a setting and has no effect. Did you mean {close[0]}?")
    return notes


def fail(prog: str, error: Exception) -> NoReturn:
    """End the process with one sentence and exit code 2."""
    sys.stderr.write(f"{prog}: {error}\n")
    raise SystemExit(2)
