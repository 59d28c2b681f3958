"""Answers of a reference server for detokenizing and derendering: reading them, and where ours are better.

The whole files are used where `TOKENWIRE_CONFORMANCE` (or the folder `../shared/conformance` beside the repository)
has them; else the small copies in `tests/data/derender`, which need only the tokenizer in the tree.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.tokenizers import has_tokenizer, tokenizer
from tokenwire.derender.chat_parser import ParserSetup
from tokenwire.derender.parser import find_format
from tokenwire.derender.vocabulary import Vocabulary
from tokenwire.service.derender import DerenderService, DerenderSetup
from tokenwire.service.derender_input import DerenderLimits
from tokenwire.service.models import ModelRegistry

Record = dict[str, Any]
REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = REPOSITORY / "tests" / "data" / "derender"

EOS = {"gptoss": {200002, 200012}, "llama31": {128001, 128008, 128009}, "mistral_tekken": {2}}
"""What the models' generation configs say; the others' EOS is in their tokenizer."""

OWN_BEGINNING = (
    "the prompt ends inside a character: the engine repeats prompt text, ours is the derender endpoint's text"
)
DETOK = dict.fromkeys(
    [
        *(f"{name}/prompt_cut_{cut}" for name in ("smol", "qwen3") for cut in (2, 3, 5, 6, 8)),
        *(f"{name}/prompt_cut_{cut}" for name in ("llama31", "gptoss", "smol+glm") for cut in (2, 5, 8)),
        *(f"deepseek_v3/prompt_cut_{cut}" for cut in (2, 5)),
        "gemma3/prompt_cut_4",
    ],
    OWN_BEGINNING,
) | {
    "gemma3/prompt_cut_5": "as above, and the derender endpoint loses the space after the character",
    "mistral_tekken/special_emoji_skip0_spaces0": "the reference loses characters of several tokens there",
}
"""Records whose `expect` is not right, with the reason."""

WHOLE = {
    **dict.fromkeys(
        ["gptoss/final/completion", "gptoss/analysis/completion", "gptoss/hidden/completion"],
        "special tokens are skipped by the tokenizer file's flag, as the engine skips them",
    ),
    **dict.fromkeys(
        [
            "mistral_tekken/plain/whole_prompt_in_response",
            "mistral_tekken/plain/whole_logprobs",
            "mistral_tekken/call/whole_prompt_in_response@0.33",
            "mistral_tekken/call/whole_logprobs@0.33",
        ],
        "the reference breaks characters of several tekken tokens",
    ),
    **dict.fromkeys(
        ["llama31/call/whole_n2@0.33", "qwen3/two/whole_n2@0.33", "qwen3/two_serial/whole_n2@0.33"],
        "a call that was cut off keeps its name and the arguments so far, as a stream has sent them",
    ),
}
"""Whole derender answers that are not right, with the reason."""

GENERATE = {"bad_dt_oov": "special tokens are skipped by the tokenizer file's flag, as the engine skips them"}


def is_full(name: str) -> bool:
    return _folder(name) != SMALL


def _folder(name: str) -> Path:
    for folder in (os.environ.get("TOKENWIRE_CONFORMANCE"), REPOSITORY.parent / "shared" / "conformance"):
        if folder and (Path(folder) / name).is_file():
            return Path(folder)
    return SMALL


def records(name: str) -> list[Record]:
    """The records of one file whose tokenizer is at hand."""
    with (_folder(name) / name).open(encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    return [record for record in found if has_tokenizer(record.get("tokenizer", "smol"))]


def derender_records() -> list[Record]:
    """Derender records whose answer still stands: where 0.33 answers differently, its own answer if there is one."""
    found = records("derender.jsonl")
    newer = {record["id"].removesuffix("@0.33") for record in found if record["id"].endswith("@0.33")}
    return [
        record
        for record in found
        if record["path"].endswith("/derender") and record["id"] not in newer and record.get("v0_33") != "differs"
    ]


@cache
def vocabulary(name: str) -> Vocabulary:
    return Vocabulary(tokenizer(name))


@cache
def _service(name: str, flags: tuple[str, ...]) -> DerenderService:
    def flag(option: str) -> str | None:
        return flags[flags.index(option) + 1] if option in flags else None

    tool_parser, reasoning_parser = flag("--tool-call-parser"), flag("--reasoning-parser")
    parser = None
    if tool_parser or reasoning_parser:
        format = find_format(tool_parser, reasoning_parser)
        parser = ParserSetup(format=format.for_tokenizer(lambda text: tokenizer(name).piece_to_id(text) is not None))
    own_eos = tokenizer(name).eos_token_id
    return DerenderService(
        DerenderSetup(
            models=ModelRegistry(["smol"], root="smol"),
            vocabulary=vocabulary(name),
            limits=DerenderLimits(max_model_len=4096),
            eos_token_ids=frozenset(EOS.get(name, set()) | ({own_eos} if own_eos is not None else set())),
            parser=parser,
        )
    )


def service_of(record: Record) -> DerenderService:
    """A derender service with the record's tokenizer and parsers."""
    return _service(record.get("tokenizer", "smol"), tuple(record.get("server_flags", ())))


def facts(value: Any) -> Any:
    """An answer without nulls, and without what changes from run to run."""
    if isinstance(value, dict):
        changing = ("id", "created", "stream_state")
        return {key: facts(inner) for key, inner in value.items() if inner is not None and key not in changing}
    return [facts(inner) for inner in value] if isinstance(value, list) else value
