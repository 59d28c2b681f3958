"""From settings and a loaded tokenizer to the render service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenwire.derender.chat_parser import ParserSetup
from tokenwire.engine.base import Engine
from tokenwire.errors import InvalidRequestError, TokenwireError
from tokenwire.render.encoders import EncoderOptions, choose_encoder, load_encoder
from tokenwire.render.fingerprint import render_fingerprint
from tokenwire.render.template import compile_template
from tokenwire.render.tokenizer import Tokenizer
from tokenwire.service.end_tokens import eos_token_ids
from tokenwire.service.model_files import ModelFiles, read_model_files
from tokenwire.service.models import ModelRegistry
from tokenwire.service.render import RenderOptions, RenderService
from tokenwire.settings import ChatSettings, ModelSettings, Settings, SettingsError

JINJA_CHARACTERS = "{}\n"
"""A template has at least one of these; a path has none."""


def build_render(
    settings: Settings,
    models: ModelRegistry,
    tokenizer: Tokenizer,
    engine: Engine | None,
    parser: ParserSetup | None,
    *,
    sampling_overrides: Mapping[str, Any],
) -> RenderService:
    """`sampling_overrides`: the operator's, under sampling_params names.

    Raises `SettingsError` for a template that is none, and for a format that the tokenizer cannot write.
    """
    model = settings.model
    files = read_model_files(tokenizer.folder, generation_config=model.generation_config)
    try:
        mode = choose_encoder(tokenizer, mode=settings.chat.tokenizer_mode, model_type=files.model_type)
        encoder = load_encoder(mode, tokenizer, _encoder_options(settings.chat))
    except TokenwireError as exc:
        raise SettingsError(str(exc)) from exc
    defaults = dict(engine.info.default_sampling_params) if engine is not None else files.sampling_defaults
    options = RenderOptions(
        max_model_len=_max_model_len(settings, engine, files),
        default_sampling_params={**defaults, **sampling_overrides},
        override_max_tokens=override_max_tokens(model, defaults),
        default_chat_template_kwargs=settings.chat.default_chat_template_kwargs,
        enable_auto_tool_choice=settings.chat.enable_auto_tool_choice,
        exclude_tools_when_tool_choice_none=settings.chat.exclude_tools_when_tool_choice_none,
        trust_request_chat_template=settings.chat.trust_request_chat_template,
        trust_request_mm_kwargs=settings.chat.trust_request_mm_kwargs,
        max_stop_strings=settings.limits.max_stop_strings,
        stop_token_ids=stop_ids(tokenizer, engine),
    )
    fingerprint = render_fingerprint(tokenizer, encoder)
    return RenderService(models, tokenizer, encoder, options, parser=parser, fingerprint=fingerprint)


def _encoder_options(chat: ChatSettings) -> EncoderOptions:
    format = chat.chat_template_content_format
    return EncoderOptions(
        chat_template=None if chat.chat_template is None else template_text(chat.chat_template),
        content_format=None if format == "auto" else format,
        start_date=chat.system_start_date,
    )


def template_text(given: str) -> str:
    """The text of `--chat-template`, which is a file or the template itself. Raises `SettingsError`."""
    path = Path(given).expanduser()
    looks_like_path = not any(character in given for character in JINJA_CHARACTERS)
    if looks_like_path and not path.is_file():
        raise SettingsError(f"--chat-template {given!r} is no file, and no template either.")
    text = path.read_text("utf-8") if looks_like_path else given
    try:
        compile_template(text)
    except InvalidRequestError as exc:
        raise SettingsError(f"--chat-template: {exc}") from exc
    return text


def _max_model_len(settings: Settings, engine: Engine | None, files: ModelFiles) -> int | None:
    if engine is not None:
        return engine.info.max_model_len
    return settings.model.max_model_len or files.max_model_len


def override_max_tokens(model: ModelSettings, defaults: Mapping[str, Any]) -> int | None:
    """The operator's cap: of an own folder its `max_new_tokens`, otherwise that of the override.

    `defaults` are the generation config's, under sampling_params names.
    """
    if model.generation_config not in ("auto", "vllm"):
        cap = defaults.get("max_tokens")
    else:
        cap = model.override_generation_config.get("max_new_tokens")
    return cap if isinstance(cap, int) else None


def stop_ids(tokenizer: Tokenizer, engine: Engine | None) -> frozenset[int]:
    """What ends an answer: by the files beside the tokenizer, and by the engine."""
    ids = eos_token_ids(tokenizer.folder, tokenizer.eos_token_id)
    return ids | set(engine.info.eos_token_ids) if engine is not None else ids
