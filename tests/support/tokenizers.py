"""The tokenizers that tests use, by name.

`smol` lies in the tree. `smol+...` is smol with tokens added, in the order of `data/tokenizers/added.json`. The names
of real models need their files: `TOKENWIRE_TOKENIZERS` names a folder with one sub-folder each, as the conformance
data's `fetch_tokenizers.sh` lays them out.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers

from tokenwire.render.json_tokenizer import JsonTokenizer
from tokenwire.render.tokenizer import Tokenizer
from tokenwire.render.tokenizer_config import read_tokenizer_config

DATA = Path(__file__).parent.parent / "data"
SMOL = DATA / "tokenizers" / "smol"
ALIASES = {"deepseek_v32": "deepseek_v4"}
"""Names that share another one's files."""


def tokenizer_folder(name: str) -> Path | None:
    """The folder of `smol` or a real tokenizer; None where its files are not at hand."""
    if name == "smol":
        return SMOL
    root = os.environ.get("TOKENWIRE_TOKENIZERS")
    folder = Path(root) / ALIASES.get(name, name) if root else None
    return folder if folder and folder.is_dir() else None


def has_tokenizer(name: str) -> bool:
    return name.startswith("smol+") or tokenizer_folder(name) is not None


@cache
def tokenizer(name: str) -> Tokenizer:
    """The tokenizer a conformance record names, loaded once."""
    if name.startswith("smol+"):
        return _smol_with(added_tokens(name))
    folder = tokenizer_folder(name)
    if folder is None:
        raise LookupError(f"{name}: set TOKENWIRE_TOKENIZERS to a folder that holds it")
    return Tokenizer.load(folder)


def added_tokens(name: str) -> list[dict[str, Any]]:
    """`[{content, special, id}]` of a `smol+...` name."""
    table: dict[str, list[dict[str, Any]]] = json.loads((DATA / "tokenizers" / "added.json").read_text("utf-8"))
    return table[name]


def _smol_with(added: list[dict[str, Any]]) -> Tokenizer:
    raw = tokenizers.Tokenizer.from_file(str(SMOL / "tokenizer.json"))
    for token in added:
        entry = tokenizers.AddedToken(token["content"], special=token["special"], normalized=False)
        (raw.add_special_tokens if token["special"] else raw.add_tokens)([entry])
        assert raw.token_to_id(token["content"]) == token["id"], token
    return JsonTokenizer(raw, read_tokenizer_config(SMOL), SMOL)


def write_smol_with(name: str, folder: Path) -> Path:
    """Lay a `smol+...` tokenizer out as a folder a server can load; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    built = tokenizer(name)
    assert built.raw is not None
    built.raw.save(str(folder / "tokenizer.json"))
    for file in ("tokenizer_config.json", "chat_template.jinja"):
        (folder / file).write_bytes((SMOL / file).read_bytes())
    return folder
