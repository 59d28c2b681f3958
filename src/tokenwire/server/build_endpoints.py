"""From a server's render and generate services to OpenAI's and Anthropic's endpoints over them."""

from __future__ import annotations

import hashlib

from tokenwire import __version__
from tokenwire.server.context import Endpoints, Server, engine_of
from tokenwire.service.answers import AnswerOptions
from tokenwire.service.chat import ChatService
from tokenwire.service.completion import CompletionService
from tokenwire.service.messages import MessagesService
from tokenwire.service.responses import ResponsesService


def build_endpoints(server: Server) -> Endpoints | None:
    """None on a server without a tokenizer or without an engine."""
    render, generate = server.render, server.generate
    if render is None or generate is None:
        return None
    info, output = engine_of(server).info, server.settings.output
    options = AnswerOptions(
        system_fingerprint=system_fingerprint(info.name, info.model, info.max_model_len, server.render_fingerprint),
        force_include_usage=output.enable_force_include_usage,
        per_request_metrics=output.enable_per_request_metrics,
    )
    listener = None if server.log is None else server.log.reply
    chat = ChatService(render, generate, options, listener=listener)
    return Endpoints(
        chat=chat,
        completion=CompletionService(render, generate, options, listener=listener),
        messages=MessagesService(chat),
        responses=ResponsesService(chat),
    )


def system_fingerprint(*facts: object) -> str:
    """A string that stays the same as long as version, model, tokenizer and engine do."""
    digest = hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()
    return f"tokenwire-{__version__}-{digest[:8]}"
