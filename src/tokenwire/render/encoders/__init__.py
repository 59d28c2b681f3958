"""The chat formats, by name. A new one is a module with a factory and a line in the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from tokenwire.errors import TokenwireError
from tokenwire.render.chat import ChatEncoder
from tokenwire.render.content_format import ContentFormat
from tokenwire.render.tokenizer import Tokenizer


@dataclass(slots=True, frozen=True, kw_only=True)
class EncoderOptions:
    """The server's settings for chat."""

    chat_template: str | None = None
    """Template text in place of the tokenizer's own."""
    content_format: ContentFormat | None = None
    """None: read off the template."""
    start_date: str | None = None
    """`YYYY-MM-DD` for formats that print the date; None: today."""


Factory = Callable[[Tokenizer, EncoderOptions], ChatEncoder]

ENCODERS: dict[str, str] = {
    "jinja": "tokenwire.render.encoders.jinja",
    "deepseek_v32": "tokenwire.render.encoders.deepseek_v32",
    "deepseek_v4": "tokenwire.render.encoders.deepseek_v4",
    "harmony": "tokenwire.render.encoders.harmony",
    "mistral": "tokenwire.render.encoders.mistral",
}
"""Name -> module with `make_encoder`."""

BY_MODEL_TYPE = {
    "gpt_oss": "harmony",
    "deepseek_v32": "deepseek_v32",
    "deepseek_v4": "deepseek_v4",
}
"""`model_type` of config.json -> format, for models whose format is not a template."""

MARKS = {
    "harmony": ("<|start|>", "<|channel|>", "<|constrain|>", "<|return|>"),
    "deepseek_v4": ("｜DSML｜", "<｜Assistant｜>", "<think>"),
}
"""Tokens that give a format away where there is neither a template nor a config.json."""


def choose_encoder(tokenizer: Tokenizer, *, mode: str = "auto", model_type: str | None = None) -> str:
    """The format's name. `mode` is vLLM's `--tokenizer-mode`, or a name of `ENCODERS`.

    Raises `TokenwireError` for an unknown mode.
    """
    if mode in ENCODERS:
        return mode
    if mode not in ("auto", "hf", "slow"):
        raise TokenwireError(f"--tokenizer-mode {mode!r} is not known; known are auto, hf, {', '.join(ENCODERS)}.")
    if tokenizer.kind == "tekken.json":
        return "mistral"
    if model_type in BY_MODEL_TYPE and mode == "auto":
        return BY_MODEL_TYPE[model_type]
    if not tokenizer.chat_templates:
        for name, pieces in MARKS.items():
            if all(tokenizer.piece_to_id(piece) is not None for piece in pieces):
                return name
    return "jinja"


def load_encoder(name: str, tokenizer: Tokenizer, options: EncoderOptions | None = None) -> ChatEncoder:
    """The encoder called `name`, for this tokenizer."""
    factory: Factory = import_module(ENCODERS[name]).make_encoder
    return factory(tokenizer, options or EncoderOptions())
