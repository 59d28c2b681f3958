"""What the generate service needs of a loaded tokenizer: text stages, text levels, token strings."""

from __future__ import annotations

from tokenwire.derender.chat_parser import ChatFacts, ParserSetup, options_of, prompt_reasoning
from tokenwire.derender.detokenizer import DetokenizerOptions
from tokenwire.derender.logprob_text import LogprobText, prompt_token_texts
from tokenwire.derender.parser.machine import MessageParser
from tokenwire.derender.sequence import SequenceText
from tokenwire.derender.stop import StopRules
from tokenwire.derender.vocabulary import TokenSource, Vocabulary
from tokenwire.errors import InvalidRequestError
from tokenwire.service.levels import Level, Shape
from tokenwire.service.levels_derender import DerenderLevel
from tokenwire.service.levels_text import ChoiceLogprobs, LogprobRules, TextLevel
from tokenwire.service.text_stage import HoldingTextStage
from tokenwire.wire.generate import GenerateRequest, NamedToolChoice, OutputMode, ParseContext
from tokenwire.wire.sampling import SamplingParams


class TokenizerText:
    """The `TextTools` of a server that has a tokenizer."""

    def __init__(
        self, tokenizer: TokenSource, *, parser: ParserSetup | None = None, return_tokens_as_token_ids: bool = False
    ) -> None:
        self.vocabulary = Vocabulary(tokenizer)
        self.parser = parser
        self._as_token_ids = return_tokens_as_token_ids

    def check_context(self, request: GenerateRequest) -> None:
        """See `TextTools.check_context`. Without a parser, and at other levels, the context is not read."""
        if request.output_mode == "derender" and self.parser is not None:
            chat_facts(request.parse_context)

    def prompt_texts(self, prompt_token_ids: list[int], rows: list[list[int]]) -> list[list[str]]:
        """See `TextTools.prompt_texts`; special tokens included, "" for a token that only begins a character."""
        return prompt_token_texts(self.vocabulary, prompt_token_ids[0], rows)

    def stage(self, prompt_token_ids: list[int], sampling: SamplingParams, mode: OutputMode) -> HoldingTextStage:
        """A fresh text stage. A parser must see special tokens, whatever the request says about text."""
        keep_special = mode == "derender" and self.parser is not None
        options = DetokenizerOptions(
            skip_special_tokens=sampling.skip_special_tokens and not keep_special,
            spaces_between_special_tokens=sampling.spaces_between_special_tokens,
        )
        include = sampling.include_stop_str_in_output
        # Nothing needs to wait where no text is shown: the ids of a stop string belong to the answer.
        rules = StopRules(tuple(sampling.stop_strings), sampling.min_tokens, include or mode == "tokens")
        sequence = SequenceText(self.vocabulary, prompt_token_ids, options, rules)
        return HoldingTextStage(sequence, include_stop=include)

    def level(self, request: GenerateRequest, sampling: SamplingParams, shape: Shape) -> Level:
        """The level `text` or `derender`."""
        vocabulary, prompt = self.vocabulary, request.token_ids

        def new_text() -> LogprobText:
            return LogprobText(vocabulary, prompt)

        if request.output_mode == "text":
            rules = LogprobRules(wanted=shape.wants_logprobs, as_token_ids=self._shows_ids(shape))
            return TextLevel(shape, ChoiceLogprobs(shape, rules, new_text))
        logprobs = ChoiceLogprobs(shape, self._derender_rules(sampling, shape), new_text)
        if self.parser is None:
            return DerenderLevel(shape, logprobs, ChatFacts(), None)
        setup, facts = self.parser, chat_facts(request.parse_context)
        options = options_of(setup, facts, prompt_reasoning(vocabulary.source, setup, facts, prompt))
        return DerenderLevel(shape, logprobs, facts, lambda: MessageParser(setup.format, options))

    def _shows_ids(self, shape: Shape) -> bool:
        return self._as_token_ids if shape.tokens_as_token_ids is None else shape.tokens_as_token_ids

    def _derender_rules(self, sampling: SamplingParams, shape: Shape) -> LogprobRules:
        """Candidates are cut to what was asked for; ids asked for by name are all shown."""
        named = sampling.logprob_token_ids is not None
        return LogprobRules(
            wanted=sampling.logprobs is not None or named,
            top=None if named else sampling.logprobs,
            as_token_ids=self._shows_ids(shape),
        )


def chat_facts(context: ParseContext | None) -> ChatFacts:
    """Raises `InvalidRequestError` without a context, and for a named tool that is not among the tools."""
    if context is None:
        raise InvalidRequestError(
            "output_mode='derender' requires parse_context on a server with a tool or reasoning parser. Send the "
            "parse_context that /v1/chat/completions/render returned.",
            param="parse_context",
        )
    choice = context.tool_choice
    if isinstance(choice, NamedToolChoice) and choice.function.name not in _names(context):
        raise InvalidRequestError(
            f"tool_choice names the function {choice.function.name!r}, which is not in parse_context.tools.",
            param="tool_choice",
        )
    return ChatFacts(
        tools=context.tools,
        tool_choice=choice,
        parallel_tool_calls=context.parallel_tool_calls is not False,
        include_reasoning=context.include_reasoning,
        chat_template_kwargs=context.chat_template_kwargs,
        history_tool_call_cnt=context.history_tool_call_cnt,
    )


def _names(context: ParseContext) -> set[object]:
    functions = [tool.get("function", tool) for tool in context.tools or ()]
    return {function.get("name") for function in functions if isinstance(function, dict)}
