"""What a tokenizer folder says beside `tokenizer.json`: named tokens, extra special tokens, chat templates.

Reads `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`, `chat_template.jinja`,
`chat_template.json` and `additional_chat_templates/*.jinja`, all optional, with the precedence transformers gives
them. Only names, flags and template texts leave this module.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenwire.render.tokenizer import TokenizerLoadError

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

TokenEntry = str | dict[str, Any]
"""A token as configuration files spell it: its text, or an object with `content` and flags."""


@dataclass(slots=True, kw_only=True)
class TokenizerConfig:
    """The part of the configuration that changes ids or prompts."""

    named: dict[str, str] = field(default_factory=dict)
    """Named tokens, the seven usual ones first, then a model's own (`image_token`, ...)."""
    special_entries: list[TokenEntry] = field(default_factory=list)
    """Tokens that are special because the configuration says so: named ones, then the extras."""
    added_tokens_decoder: dict[int, dict[str, Any]] = field(default_factory=dict)
    add_bos_token: bool | None = None
    """None: not written, the tokenizer file decides."""
    add_eos_token: bool | None = None
    chat_templates: dict[str, str] = field(default_factory=dict)
    model_max_length: int | None = None
    """In tokens; None if the folder states none."""


def read_tokenizer_config(folder: Path) -> TokenizerConfig:
    """Read all configuration files in `folder`. Raises `TokenizerLoadError` for a file of another shape."""
    raw = _read_object(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in raw:
        raw |= {k: v for k, v in _read_object(folder / "special_tokens_map.json").items() if v is not None}
    entries, extras = _special_entries(raw)
    decoder = {int(i): entry for i, entry in raw.get("added_tokens_decoder", {}).items()}
    decoder |= _legacy_added_tokens(folder, raw, entries, extras) if "added_tokens_decoder" not in raw else {}
    by_content = {entry["content"]: entry for entry in decoder.values()}
    return TokenizerConfig(
        named={name: content_of(entry) for name, entry in entries.items()},
        special_entries=[_with_flags(entry, by_content) for entry in [*entries.values(), *extras]],
        added_tokens_decoder=decoder,
        add_bos_token=raw.get("add_bos_token"),
        add_eos_token=raw.get("add_eos_token"),
        chat_templates=_chat_templates(folder, raw),
        model_max_length=_max_length(raw.get("model_max_length")),
    )


def content_of(entry: TokenEntry) -> str:
    return entry if isinstance(entry, str) else str(entry["content"])


def _with_flags(entry: TokenEntry, by_content: dict[str, dict[str, Any]]) -> TokenEntry:
    """A name stands for the full entry of `added_tokens_decoder`, if that has one."""
    full = by_content.get(content_of(entry))
    return {**full, "special": True} if full else entry


def _special_entries(raw: dict[str, Any]) -> tuple[dict[str, TokenEntry], list[TokenEntry]]:
    """Named entries by name, and nameless extras; the older key `additional_special_tokens` is read too."""
    entries: dict[str, TokenEntry] = {name: raw[name] for name in NAMED_TOKENS if raw.get(name)}
    own = {k: v for k, v in raw.items() if k.endswith("_token") and k not in NAMED_TOKENS and _is_entry(v)}
    extra = raw.get("extra_special_tokens") or raw.get("additional_special_tokens") or []
    if isinstance(extra, dict):
        own |= {name: entry for name, entry in extra.items() if _is_entry(entry)}
        extra = []
    entries |= own
    return entries, [entry for entry in extra if _is_entry(entry)]


def _is_entry(value: object) -> bool:
    return (isinstance(value, str) and value != "") or (
        isinstance(value, dict) and isinstance(value.get("content"), str)
    )


def _legacy_added_tokens(
    folder: Path, raw: dict[str, Any], entries: dict[str, TokenEntry], extras: list[TokenEntry]
) -> dict[int, dict[str, Any]]:
    """`added_tokens.json`: token -> id, flags implied by whether the token is a special one."""
    special = {content_of(entry) for entry in [*entries.values(), *extras]}
    found = _read_object(folder / "added_tokens.json")
    return {
        int(token_id): {"content": token, "special": token in special, "normalized": token not in special}
        for token, token_id in found.items()
    }


def _chat_templates(folder: Path, raw: dict[str, Any]) -> dict[str, str]:
    """Template texts by name. Files win over the configuration's key, as in transformers."""
    templates: dict[str, str] = {}
    configured = raw.get("chat_template") or _read_object(folder / "chat_template.json").get("chat_template")
    if isinstance(configured, str):
        templates["default"] = configured
    elif isinstance(configured, list):
        templates |= {entry["name"]: entry["template"] for entry in configured}
    elif isinstance(configured, dict):
        templates |= configured
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    return templates


def _max_length(value: object) -> int | None:
    """transformers writes 1e30 for "no limit"."""
    return int(value) if isinstance(value, int | float) and 0 < value < 1e18 else None


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise TokenizerLoadError(f"{path}: not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise TokenizerLoadError(f"{path}: expected a JSON object.")
    return value
