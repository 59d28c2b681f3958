"""What the parser of this server's answers asks of a prompt: grammars for forced calls, where reasoning stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenwire.derender.chat_parser import ChatFacts, ParserSetup, prompt_reasoning
from tokenwire.errors import InvalidRequestError
from tokenwire.render.messages import count_tool_calls
from tokenwire.render.tokenizer import Tokenizer
from tokenwire.service.chat_sampling import structured_outputs
from tokenwire.service.forced_calls import forced_call_grammar, harmony_answer
from tokenwire.wire.chat import ChatCompletionRequest
from tokenwire.wire.generate import ParseContext
from tokenwire.wire.sampling import StructuredOutputs


class AnswerReading:
    """The server's parser, seen from the prompt's side."""

    def __init__(
        self, parser: ParserSetup | None, tokenizer: Tokenizer, *, auto_tools: bool, format_has_calls: bool
    ) -> None:
        """`auto_tools`: offer tools even if nobody reads calls. `format_has_calls`: the chat format fixes them."""
        self._parser = parser
        self._tokenizer = tokenizer
        self._auto_tools = auto_tools
        self._format_has_calls = format_has_calls

    @property
    def _has_tool_parser(self) -> bool:
        return self._parser is not None and self._parser.format.tools is not None

    @property
    def reads_reasoning(self) -> bool:
        return self._parser is not None and self._parser.format.reasoning is not None

    def keeps_special_tokens(self, request: ChatCompletionRequest) -> bool:
        """Upstream's rule for the text it hands to parsers; ours see special tokens in any case."""
        if self._parser is None:
            return False
        tools, reasoning = self._parser.format.tools, self._parser.format.reasoning
        reads = reasoning is not None or (tools is not None and request.effective_tool_choice != "none")
        return reads and any(part is not None and part.engine for part in (tools, reasoning))

    def check_tool_parser(self, request: ChatCompletionRequest) -> None:
        """Calls that nobody would read are refused, unless the chat format itself says what they look like."""
        choice = request.effective_tool_choice
        if self._has_tool_parser or self._format_has_calls or choice == "none":
            return
        if choice == "auto":
            if self._auto_tools:
                return
            raise InvalidRequestError(
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            )
        name = request.named_tool
        shown = f'function "{name}"' if name is not None else f'"{choice}"'
        raise InvalidRequestError(f"tool_choice={shown} requires --tool-call-parser to be set")

    def structured(self, request: ChatCompletionRequest) -> StructuredOutputs | None:
        """The request's own constraint; a forced call takes its place."""
        asked = structured_outputs(request)
        format = self._parser.format if self._parser is not None else None
        if format is not None and format.tools is not None and request.tools:
            named = request.named_tool
            if named is not None or request.effective_tool_choice == "required":
                parallel = request.parallel_tool_calls is not False
                grammar = forced_call_grammar(
                    format.tools, request.tools, named, parallel=parallel, has_token=self._has_token
                )
                return grammar or asked
        if asked is not None and self._is_harmony:
            return harmony_answer(asked)
        return asked

    def _has_token(self, piece: str) -> bool:
        token_id = self._tokenizer.piece_to_id(piece)
        return token_id is not None and token_id in self._tokenizer.special.added_ids

    @property
    def _is_harmony(self) -> bool:
        reasoning = self._parser.format.reasoning if self._parser is not None else None
        return reasoning is not None and reasoning.harmony

    def reasoning_ended(
        self, request: ChatCompletionRequest, variables: Mapping[str, Any], token_ids: list[int]
    ) -> bool | None:
        """Whether a constraint holds from the first token on; None without a reasoning parser."""
        if not request.include_reasoning or self._is_harmony:  # Harmony's grammars spell the reasoning out
            return True
        if self._parser is None or self._parser.format.reasoning is None:
            return None
        facts = ChatFacts(chat_template_kwargs=variables)
        state = prompt_reasoning(self._tokenizer, self._parser, facts, token_ids)
        return state == "closed"


def parse_context(request: ChatCompletionRequest, variables: Mapping[str, Any]) -> ParseContext:
    """What reading the answer needs to know of the request."""
    return ParseContext(
        tools=[tool.as_template_data() for tool in request.tools] if request.tools else None,
        tool_choice=request.effective_tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        include_reasoning=request.include_reasoning,
        chat_template_kwargs=dict(variables),
        history_tool_call_cnt=count_tool_calls(request.messages),
    )
