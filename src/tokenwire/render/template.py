"""Chat templates: Jinja in a sandbox, with the extensions and globals that models on the Hugging Face hub rely on.

A template is foreign code. It runs in jinja2's immutable sandbox, sees plain data only, and every error it raises,
on purpose or not, becomes an `InvalidRequestError` with the template's own words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from tokenwire.errors import InvalidRequestError
from tokenwire.render.content_format import ContentFormat, detect_content_format

MAX_CACHED_TEMPLATES = 64

CONTINUE_MARK = "\ue000continue\ue001 "
"""Stands at the end of a message that is to be continued. Private-use characters, so that no text has it by chance;
the space at its end shows whether the template trims the message."""


class ChatTemplate:
    """One compiled template. Use `compile_template`, which caches."""

    def __init__(self, text: str) -> None:
        """Raises `InvalidRequestError` where the text is no template."""
        environment = _environment()
        try:
            tree = environment.parse(text)
            self._template = environment.from_string(text)
        except (TemplateError, RecursionError) as exc:
            raise InvalidRequestError(f"The chat template does not compile: {exc}", param="chat_template") from exc
        self.text = text
        self.variables = frozenset(meta.find_undeclared_variables(tree))
        """Names it reads from outside."""
        self.content_format: ContentFormat = detect_content_format(tree)
        self.knows_developer_role = '"developer"' in text or "'developer'" in text

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text. `messages` are left untouched; `variables` are the special tokens and the caller's own.

        Raises `InvalidRequestError` for whatever goes wrong inside the template.
        """
        if not messages:
            raise InvalidRequestError(
                "Cannot apply chat template to an empty conversation. Provide at least one message."
            )
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt are not compatible: the first lets the model go on "
                "with the last message, the second opens a new one. Set add_generation_prompt to false."
            )
        final_text = ""
        if continue_final_message:
            messages, final_text = self._marked(messages)
        try:
            text = self._template.render(
                **{**(variables or {}), "messages": messages, "tools": tools, "documents": documents},
                add_generation_prompt=add_generation_prompt,
            )
        except Exception as exc:  # anything at all can come out of foreign code
            raise InvalidRequestError(_reason(exc)) from exc
        return _cut_at_mark(text, final_text) if continue_final_message else text

    def _marked(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], str]:
        """The messages with the mark after the last text of the last one, and that text without the mark."""
        final = dict(messages[-1])
        content = final.get("content")
        if "content" not in self.text or content is None:
            raise InvalidRequestError(
                'continue_final_message is set but the final message has no "content" to continue!'
            )
        if isinstance(content, str):
            final["content"] = content + CONTINUE_MARK
            return [*messages[:-1], final], content
        parts = [dict(part) if isinstance(part, dict) else part for part in content]
        for part in reversed(parts):
            if isinstance(part, dict) and isinstance(text := part.get("text"), str):
                part["text"] = text + CONTINUE_MARK
                final["content"] = parts
                return [*messages[:-1], final], text
        raise InvalidRequestError(
            "continue_final_message is set but we could not find any text to continue in the final message!",
        )


@lru_cache(maxsize=MAX_CACHED_TEMPLATES)
def compile_template(text: str) -> ChatTemplate:
    """`text` compiled, from a cache bounded because requests may bring their own. Raises `InvalidRequestError`."""
    return ChatTemplate(text)


def _cut_at_mark(text: str, final_text: str) -> str:
    """The rendering up to where the final message ends (the rule of transformers' `continue_final_message`)."""
    bare = CONTINUE_MARK.strip()
    at = text.rfind(bare)
    if at < 0 or final_text.strip() not in text:
        raise InvalidRequestError(
            "continue_final_message is set but the final message does not appear in the chat after applying the chat "
            "template! The template may drop or change parts of it.",
        )
    kept = text[:at]
    return kept if text.startswith(CONTINUE_MARK, at) else kept.rstrip()


def _reason(exc: BaseException) -> str:
    """The template's own message, if one is in the chain of causes."""
    seen: BaseException | None = exc
    while seen is not None:
        if isinstance(seen, TemplateError):
            return str(seen)
        seen = seen.__cause__ or seen.__context__
    return f"{type(exc).__name__} in the chat template: {exc}" if not str(exc) else str(exc)


# --- the environment ------------------------------------------------------------------------------------------------


class GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}` marks what an assistant wrote; for a prompt it is its plain body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime_now
    environment.globals["dict"] = _TemplateDict()
    environment.globals["namespace"] = _TemplateNamespace
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def strftime_now(pattern: str) -> str:
    """The server's local time, as templates that print today's date ask for it."""
    return datetime.now().strftime(pattern)


class _TemplateDict:
    """`dict(...)` without the attributes of the real class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _TemplateNamespace(Namespace):
    """A namespace that keeps no name with an underscore in front."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no named self, so that `namespace(self=...)` works
        self, positional = args[0], args[1:]
        given = dict(*positional, **kwargs)
        for name in given:
            _check_name(name)
        Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"A chat template cannot store the name {name!r}: it begins with an underscore.")
