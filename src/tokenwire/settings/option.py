"""What one setting is: its name, type, default, help; and how text or a YAML value becomes that type.

A setting is declared once, as a field of a group in `groups.py`; flag, environment variable, file key and help text
all follow from the field.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenwire.errors import TokenwireError

ENV_PREFIX = "TOKENWIRE_"
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


class SettingsError(TokenwireError):
    """A setting that cannot be used; its sentence ends the start."""


def option(
    default: Any = None,
    *,
    help: str,
    metavar: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
    aliases: tuple[str, ...] = (),
) -> Any:
    """A field of a settings group. `secret` values are never shown. Bounds are inclusive. `aliases` are more flags."""
    metadata = {
        "help": help,
        "metavar": metavar,
        "minimum": minimum,
        "maximum": maximum,
        "secret": secret,
        "aliases": aliases,
    }
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(slots=True, frozen=True)
class Option:
    """One setting, as the sources see it."""

    name: str
    kind: type
    """str, int, float, bool, list (of str) or dict."""
    nullable: bool
    choices: tuple[str, ...]
    default: Any
    help: str
    metavar: str | None
    minimum: float | None
    maximum: float | None
    secret: bool
    aliases: tuple[str, ...]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    def from_text(self, text: str, source: str) -> Any:
        """The value of a flag or environment variable. Raises `SettingsError` naming `source`."""
        if self.nullable and text.lower() in ("", "none", "null", "auto") and text not in self.choices:
            return None
        try:
            return self._bounded(_FROM_TEXT[self.kind](text), source)
        except ValueError:
            raise SettingsError(f"{source} must be {self.wanted}, got {self.shown(text)}.") from None

    def from_plain(self, value: Any, source: str) -> Any:
        """The value of a file key; text is read as a flag's text is."""
        if value is None and self.nullable:
            return None
        if isinstance(value, str):
            return self.from_text(value, source)
        if self.kind is float and type(value) is int:
            value = float(value)
        if self.kind is list and isinstance(value, list):
            value = [item if isinstance(item, str) else json.dumps(item) for item in value]
        if type(value) is not self.kind:
            raise SettingsError(f"{source} must be {self.wanted}, got {self.shown(value)}.")
        return self._bounded(value, source)

    def shown(self, value: Any) -> str:
        return "a secret" if self.secret else repr(value)

    @property
    def wanted(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        noun = _NOUNS[self.kind]
        if self.minimum is not None and self.maximum is not None:
            return f"{noun} from {self.minimum:g} to {self.maximum:g}"
        return noun if self.minimum is None else f"{noun} of at least {self.minimum:g}"

    def _bounded(self, value: Any, source: str) -> Any:
        too_low = self.minimum is not None and value < self.minimum
        too_high = self.maximum is not None and value > self.maximum
        # A NaN compares false with every bound and belongs in none.
        if too_low or too_high or value != value or (self.choices and value not in self.choices):
            raise SettingsError(f"{source} must be {self.wanted}, got {self.shown(value)}.")
        return value


def options_of(group: type) -> list[Option]:
    """The settings of one group, in the order in which they are written."""
    hints = typing.get_type_hints(group)
    return [_option(field, hints[field.name]) for field in dataclasses.fields(group)]


def _option(field: dataclasses.Field[Any], hint: Any) -> Option:
    nullable = False
    if isinstance(hint, types.UnionType):
        nullable = True
        (hint,) = (arg for arg in typing.get_args(hint) if arg is not types.NoneType)
    origin = typing.get_origin(hint)
    choices = typing.get_args(hint) if origin is typing.Literal else ()
    kind = str if choices else (origin or hint)
    default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    return Option(field.name, kind, nullable, choices, default, **field.metadata)


def _int(text: str) -> int:
    if text and text[-1] in _SUFFIXES:
        return int(float(text[:-1]) * _SUFFIXES[text[-1]])
    return int(text)


def _bool(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)


def _list(text: str) -> list[str]:
    if text.startswith("{"):
        return [text]
    if text.startswith("["):
        items = json.loads(text)
        return [item if isinstance(item, str) else json.dumps(item) for item in items]
    return [item.strip() for item in text.split(",") if item.strip()]


def _dict(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


_FROM_TEXT: dict[type, Callable[[str], Any]] = {
    str: str,
    int: _int,
    float: float,
    bool: _bool,
    list: _list,
    dict: _dict,
}
_NOUNS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a JSON object",
}
