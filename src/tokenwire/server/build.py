"""From settings and a started engine to a server: the one place where the parts are put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tokenwire.derender.chat_parser import ParserSetup
from tokenwire.derender.parser import Format, UnknownFormatError, find_format
from tokenwire.derender.vocabulary import Vocabulary
from tokenwire.engine.base import Engine
from tokenwire.server.build_endpoints import build_endpoints
from tokenwire.server.build_render import build_render, override_max_tokens, stop_ids
from tokenwire.server.context import Server
from tokenwire.server.metrics import Metrics
from tokenwire.server.observers import LogObserver, MetricsObserver, Observers
from tokenwire.server.tracing import otlp_observer
from tokenwire.service.adapters import AdapterService
from tokenwire.service.admission import Admission
from tokenwire.service.context import ServiceOptions
from tokenwire.service.derender import DerenderService, DerenderSetup
from tokenwire.service.derender_input import DerenderLimits
from tokenwire.service.fields import UnknownFields
from tokenwire.service.generate import GenerateService
from tokenwire.service.models import ModelRegistry
from tokenwire.service.observer import Observer
from tokenwire.service.text import TokenizerText
from tokenwire.settings import ChatSettings, Settings, SettingsError

if TYPE_CHECKING:
    from tokenwire.render.tokenizer import Tokenizer
    from tokenwire.service.levels import TextTools

MAX_UNKNOWN_LEN = 2**20
"""Bound on received ids where no engine, no --max-model-len and no file of the model says how long a context is."""


def build_server(
    settings: Settings,
    engine: Engine | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    model_name: str | None = None,
    admission: Admission | None = None,
) -> Server:
    """`engine` has started, or is None for a front end that only renders and derenders.

    `model_name` names a model that the settings do not name. Raises `SettingsError` for a setting that needs a package
    which is not there, and for a parser that is not known. `admission` is given where processes share the limits.
    """
    model = settings.model
    root = model.model or model_name or (engine.info.model if engine is not None else "none")
    models = ModelRegistry(
        model.served_model_name or _default_names(root, chosen=model.model is not None),
        root=root,
        skip_validation=settings.access.skip_model_name_validation,
    )
    metrics = Metrics(model_name=models.name)
    server = Server(
        settings=settings,
        models=models,
        metrics=metrics,
        engine=engine,
        tokenizer=tokenizer,
        fields=UnknownFields(strict=settings.access.strict_fields),
    )
    parser = None if tokenizer is None else _parser_setup(settings.chat, tokenizer)
    if tokenizer is not None:
        overrides = sampling_names(model.override_generation_config)
        server.render = build_render(settings, models, tokenizer, engine, parser, sampling_overrides=overrides)
        server.derender = _derender(server, tokenizer, parser)
        server.render_fingerprint = server.render.fingerprint()
    observers: list[Observer] = [server.live]
    if not settings.logs.disable_log_stats:
        observers.append(MetricsObserver(metrics))
    if settings.logs.enable_log_requests:
        server.log = LogObserver(settings.logs)
        observers.append(server.log)
    if settings.logs.otlp_traces_endpoint:
        server.tracing = otlp_observer(settings.logs.otlp_traces_endpoint)
        observers.append(server.tracing)
    if engine is not None:
        options = service_options(settings, engine.info.default_sampling_params)
        options = dataclasses.replace(options, render_fingerprint=server.render_fingerprint)
        server.generate = GenerateService(
            engine,
            models,
            options,
            text=_text_tools(settings, tokenizer, parser),
            observer=Observers(observers),
            admission=admission,
        )
        server.adapters = AdapterService(engine, models)
        server.fields = server.generate.preparer.fields
        server.endpoints = build_endpoints(server)
    return server


def message_format(chat: ChatSettings) -> Format | None:
    """The format of the model's messages that the settings name. Raises `SettingsError` for an unknown name."""
    if not chat.tool_call_parser and not chat.reasoning_parser:
        return None
    try:
        return find_format(chat.tool_call_parser, chat.reasoning_parser)
    except UnknownFormatError as exc:
        flag = "--" + (exc.param or "").replace("_", "-")
        raise SettingsError(f"{flag} must be one of {', '.join(exc.known)}, got {exc.name!r}.") from exc


def _parser_setup(chat: ChatSettings, tokenizer: Tokenizer) -> ParserSetup | None:
    format = message_format(chat)
    if format is None:
        return None
    eos = tokenizer.eos_token
    return ParserSetup(
        format=format.for_tokenizer(lambda text: tokenizer.piece_to_id(text) is not None),
        eos_texts=() if eos is None else (eos,),
        default_chat_template_kwargs=chat.default_chat_template_kwargs,
    )


def _derender(server: Server, tokenizer: Tokenizer, parser: ParserSetup | None) -> DerenderService:
    settings = server.settings
    return DerenderService(
        DerenderSetup(
            models=server.models,
            vocabulary=Vocabulary(tokenizer),
            limits=DerenderLimits(
                max_model_len=server.max_model_len or MAX_UNKNOWN_LEN,
                max_logprobs=settings.limits.max_logprobs,
                max_n=settings.limits.max_n_sequences,
            ),
            eos_token_ids=stop_ids(tokenizer, server.engine),
            parser=parser,
            return_tokens_as_token_ids=settings.output.return_tokens_as_token_ids,
        )
    )


def _text_tools(settings: Settings, tokenizer: Tokenizer | None, parser: ParserSetup | None) -> TextTools | None:
    if tokenizer is None:
        return None
    as_token_ids = settings.output.return_tokens_as_token_ids
    return TokenizerText(tokenizer, parser=parser, return_tokens_as_token_ids=as_token_ids)


def service_options(settings: Settings, engine_defaults: Mapping[str, Any]) -> ServiceOptions:
    """What the token service is told; `engine_defaults` are the generation config's, as the engine read it."""
    limits, output = settings.limits, settings.output
    overrides = sampling_names(settings.model.override_generation_config)
    return ServiceOptions(
        enable_prompt_tokens_details=output.enable_prompt_tokens_details,
        return_tokens_as_token_ids=output.return_tokens_as_token_ids,
        logprob_token_field=output.logprob_token_field,
        per_request_spec_decode_metrics=output.per_request_spec_decode_metrics,
        max_num_queued_reqs=limits.max_num_queued_reqs,
        max_num_queued_tokens=limits.max_num_queued_tokens,
        strict_fields=settings.access.strict_fields,
        max_n=limits.max_n_sequences,
        max_bad_words=limits.max_num_bad_words,
        default_sampling_params={**engine_defaults, **overrides},
        override_max_tokens=override_max_tokens(settings.model, engine_defaults),
    )


def sampling_names(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """A generation config under sampling_params names."""
    return {("max_tokens" if name == "max_new_tokens" else name): value for name, value in generation_config.items()}


def _default_names(root: str, *, chosen: bool) -> list[str]:
    """The model as it was asked for; the model that nobody asked for also without its owner."""
    return [root] if chosen or "/" not in root else [root.rpartition("/")[2], root]
