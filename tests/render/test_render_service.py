"""Token requests that render makes.

1. Ids and what is handed on unread. 2. max_tokens is always written where the context is known; defaults and caps of
the operator. 3. parse_context, reasoning and special tokens follow the server's parser. 4. Template variables: server
defaults under the request's. 5. Offsets and truncation. 6. Rules, each with its field. 7. Untrusted input.
8. Token-exact prefixes. 9. Long prompts leave the loop free.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from tests.render.dialogues import TOOL
from tests.support.render import render_service
from tests.support.tokenizers import tokenizer
from tokenwire.derender.chat_parser import ParserSetup
from tokenwire.derender.parser import find_format
from tokenwire.errors import (
    BodyValidationError,
    InvalidRequestError,
    ModelNotFoundError,
    PrefixMismatchError,
    PromptTooLongError,
)
from tokenwire.render.encoders import EncoderOptions, load_encoder
from tokenwire.service.context import RequestContext
from tokenwire.service.models import ModelRegistry
from tokenwire.service.render import RenderOptions, RenderService
from tokenwire.wire.chat import ChatCompletionRequest
from tokenwire.wire.codec import convert
from tokenwire.wire.completion import CompletionRequest
from tokenwire.wire.generate import GenerateRequest
from tokenwire.wire.render import TokenizeRequest

HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
HI_LEN = 31
ECHO = "{{ bos_token }}{{ x }}|{{ enable_thinking }}|{{ reasoning_effort }}|{{ messages[0].content }}"


def _service(
    *, tools: str | None = None, reasoning: str | None = None, template: str | None = None, **options: Any
) -> RenderService:
    smol = tokenizer("smol+chatmlthink")
    parser = ParserSetup(format=find_format(tools, reasoning)) if tools or reasoning else None
    encoder = load_encoder("jinja", smol, EncoderOptions(chat_template=template))
    settings = RenderOptions(**{"max_model_len": 4096, **options})
    return RenderService(ModelRegistry(["smol"], root="smol"), smol, encoder, settings, parser=parser)


async def _chat(service: RenderService, ctx: RequestContext | None = None, **fields: Any) -> GenerateRequest:
    request, _ = convert(ChatCompletionRequest, {"messages": HI, **fields})
    return await service.chat(request, ctx)


async def _complete(service: RenderService, **fields: Any) -> list[GenerateRequest]:
    request, _ = convert(CompletionRequest, fields)
    return await service.completion(request)


def _text(request: GenerateRequest) -> str:
    return tokenizer("smol+chatmlthink").decode(request.token_ids)


# --- what is handed on ----------------------------------------------------------------------------------------------


async def test_transfer_params_salt_priority_and_stream_go_to_the_top_level_only() -> None:
    kv, ec = {"do_remote_decode": True}, {"e": 1}
    request = await _chat(
        _service(),
        model="smol",
        kv_transfer_params=kv,
        ec_transfer_params=ec,
        vllm_xargs={"keep": 1},
        cache_salt="s",
        priority=-3,
        stream=True,
        stream_options={"include_usage": True},
        return_token_ids=True,
    )
    assert (request.kv_transfer_params, request.ec_transfer_params) == (kv, ec)
    assert request.sampling_params.extra_args == {"keep": 1}
    assert (request.model, request.cache_salt, request.priority, request.return_token_ids) == ("smol", "s", -3, True)
    assert request.stream is True
    assert request.stream_options is not None
    assert request.stream_options.include_usage is True


async def test_ids_have_a_kind_and_follow_header_then_body() -> None:
    service = _service()
    header = RequestContext(request_id_header="head")
    assert (await _chat(service, header, request_id="body")).request_id == "chatcmpl-head"
    assert (await _chat(service, request_id="body")).request_id == "chatcmpl-body"
    one, two = await _chat(service), await _chat(service)
    assert one.request_id != two.request_id
    several = await _complete(service, prompt=["a", "b"], request_id="r")
    assert [request.request_id for request in several] == ["cmpl-r-0", "cmpl-r-1"]


async def test_every_request_carries_the_fingerprint() -> None:
    service = _service()
    assert (await _chat(service)).render_fingerprint == service.fingerprint()
    assert (await _complete(service, prompt="a"))[0].render_fingerprint == service.fingerprint()


async def test_ids_of_a_prefill_leg_are_taken_instead_of_rendering() -> None:
    request = await _chat(_service(), kv_transfer_params={"prompt_token_ids": [5, 6], "remote": 1})
    assert request.token_ids == [5, 6]
    assert request.kv_transfer_params == {"remote": 1}
    with pytest.raises(InvalidRequestError, match="non-empty list"):
        await _chat(_service(), kv_transfer_params={"prompt_token_ids": [True]})


# --- sampling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "options", "expected"),
    [
        ({}, {}, 4096 - HI_LEN),
        ({"max_tokens": 16}, {}, 16),
        ({"max_tokens": 4096}, {}, 4096 - HI_LEN),
        ({"max_tokens": 5, "max_completion_tokens": 7}, {}, 7),
        ({}, {"default_sampling_params": {"max_tokens": 50}}, 50),
        ({"max_tokens": 60}, {"default_sampling_params": {"max_tokens": 50}}, 60),
        ({"max_tokens": 60}, {"override_max_tokens": 20}, 20),
        ({}, {"max_model_len": None}, msgspec.UNSET),
        ({"max_tokens": 60}, {"max_model_len": None}, 60),
    ],
)
async def test_max_tokens_is_the_least_of_room_wish_and_cap(
    fields: dict[str, Any], options: dict[str, Any], expected: Any
) -> None:
    assert (await _chat(_service(**options), **fields)).sampling_params.max_tokens == expected


async def test_completions_default_to_sixteen_tokens() -> None:
    for fields in ({}, {"max_tokens": None}):
        (request,) = await _complete(_service(), prompt="a", **fields)
        assert request.sampling_params.max_tokens == 16
    (echoed,) = await _complete(_service(), prompt="a", echo=True, max_tokens=0, logprobs=2)
    assert (echoed.sampling_params.max_tokens, echoed.sampling_params.prompt_logprobs) == (1, 2)


async def test_values_are_the_requests_then_the_generation_configs() -> None:
    defaults = {"temperature": 0.5, "top_k": 40, "stop_token_ids": [7, 8]}
    service = _service(default_sampling_params=defaults)
    params = (await _chat(service, temperature=0.25, stop_token_ids=[8, 9], logit_bias={"5": 500})).sampling_params
    assert (params.temperature, params.top_k, params.stop_token_ids) == (0.25, 40, [8, 9, 7])
    assert params.logit_bias == {5: 100.0}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"logprobs": True}, (0, None)),
        ({"logprobs": True, "top_logprobs": 3}, (3, None)),
        ({"logprobs": True, "top_logprobs": None}, (0, None)),
        ({"logprobs": False, "top_logprobs": 0}, (None, None)),
        ({"logprobs": True, "logprob_token_ids": [4, 5]}, (None, [4, 5])),
    ],
)
async def test_chat_logprobs_become_candidates(fields: dict[str, Any], expected: tuple[Any, Any]) -> None:
    params = (await _chat(_service(), **fields)).sampling_params
    assert (params.logprobs, params.logprob_token_ids) == expected


@pytest.mark.parametrize(
    ("response_format", "expected"),
    [
        ({"type": "text"}, {}),
        ({"type": "json_object"}, {"json_object": True}),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "string"}}},
            {"json": {"type": "string"}},
        ),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, {"json_object": True}),
        (
            {"type": "structural_tag", "format": {"type": "any_text"}},
            {"structural_tag": '{"type": "structural_tag", "format": {"type": "any_text"}}'},
        ),
        (
            {"type": "structural_tag", "structures": [], "triggers": ["<"]},
            {"structural_tag": '{"type": "structural_tag", "structures": [], "triggers": ["<"]}'},
        ),
    ],
)
async def test_a_response_format_becomes_a_constraint(response_format: Any, expected: dict[str, Any]) -> None:
    for params in (
        (await _chat(_service(), response_format=response_format)).sampling_params,
        (await _complete(_service(), prompt="a", response_format=response_format))[0].sampling_params,
    ):
        assert msgspec.to_builtins(params.structured_outputs) == (expected or None)


# --- parser, reasoning ----------------------------------------------------------------------------------------------


async def test_parse_context_tells_what_reading_the_answer_needs() -> None:
    calls = [{"id": str(i), "type": "function", "function": {"name": "get", "arguments": "{}"}} for i in range(2)]
    messages = [*HI, {"role": "assistant", "content": None, "tool_calls": calls}, {"role": "tool", "content": "r"}]
    request = await _chat(
        _service(tools="hermes"),
        messages=messages,
        tools=[TOOL],
        parallel_tool_calls=False,
        chat_template_kwargs={"x": 1},
    )
    context = request.parse_context
    assert context is not None
    assert context.history_tool_call_cnt == 2
    assert (context.tool_choice, context.parallel_tool_calls, context.include_reasoning) == ("auto", False, True)
    assert context.tools == [TOOL]
    assert context.chat_template_kwargs["x"] == 1


@pytest.mark.parametrize(
    ("template", "fields", "expected"),
    [
        (None, {}, False),
        ("{{ messages[0].content }}<think>\n", {}, False),
        ("{{ messages[0].content }}<think>\n\n</think>\n", {}, True),
        (None, {"chat_template_kwargs": {"enable_thinking": False}}, True),
        (None, {"reasoning_effort": "none"}, True),
        (None, {"include_reasoning": False}, True),
    ],
)
async def test_reasoning_has_ended_where_the_prompt_says_so(
    template: str | None, fields: dict[str, Any], expected: bool
) -> None:
    request = await _chat(_service(reasoning="qwen3", template=template), **fields)
    assert request.reasoning_ended is expected
    assert request.reasoning_parser_kwargs is not None
    assert request.sampling_params.skip_special_tokens is False


async def test_without_a_reasoning_parser_nothing_is_said_about_reasoning() -> None:
    request = await _chat(_service())
    assert request.reasoning_ended is request.reasoning_parser_kwargs is None
    assert request.sampling_params.skip_special_tokens is True


async def test_server_defaults_lie_under_the_requests_variables() -> None:
    service = _service(template=ECHO, default_chat_template_kwargs={"x": "d", "enable_thinking": True})
    assert _text(await _chat(service)) == "<|im_start|>d|True||Hi"
    own = {"x": "r", "enable_thinking": None}
    assert _text(await _chat(service, chat_template_kwargs=own)) == "<|im_start|>r|True||Hi"
    assert _text(await _chat(service, reasoning_effort="none")) == "<|im_start|>d|False|none|Hi"
    assert _text(await _chat(service, reasoning_effort="low", chat_template_kwargs={"enable_thinking": False})) == (
        "<|im_start|>d|False|low|Hi"
    )


async def test_tools_can_be_left_out_when_none_may_be_called() -> None:
    template = "{{ tools | length if tools else 0 }}"
    for exclude, expected in ((False, "1"), (True, "0")):
        service = _service(template=template, exclude_tools_when_tool_choice_none=exclude)
        assert _text(await _chat(service, tools=[TOOL], tool_choice="none")) == expected


async def test_documents_reach_the_template() -> None:
    service = _service(template="{{ documents[0].title }}")
    assert _text(await _chat(service, documents=[{"title": "T", "text": "x"}])) == "T"


# --- offsets, truncation --------------------------------------------------------------------------------------------


async def test_offsets_are_ranges_of_the_templated_text() -> None:
    service = _service()
    request = await _chat(service, return_token_offsets=True)
    assert request.token_offsets is not None
    chat, _ = convert(ChatCompletionRequest, {"messages": HI})
    text = service.prompt_text(chat)
    assert "".join(text[slice(*offset)] for offset in request.token_offsets) == text
    assert len(request.token_offsets) == len(request.token_ids)
    (ids_only,) = await _complete(service, prompt=[1, 2], return_token_offsets=True)
    assert ids_only.token_offsets is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"truncate_prompt_tokens": 2}, [4, 5]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, [1, 2]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, [4, 5]),
        ({"truncate_prompt_tokens": 9}, [1, 2, 3, 4, 5]),
        ({"truncate_prompt_tokens": -1}, [1, 2, 3, 4, 5]),
    ],
)
async def test_truncation_keeps_the_asked_for_end(fields: dict[str, Any], expected: list[int]) -> None:
    (request,) = await _complete(_service(), prompt=[1, 2, 3, 4, 5], **fields)
    assert request.token_ids == expected


async def test_truncation_to_the_context_leaves_room_for_one_token() -> None:
    (request,) = await _complete(_service(max_model_len=20), prompt=list(range(30)), truncate_prompt_tokens=-1)
    assert request.token_ids == list(range(11, 30))
    assert request.sampling_params.max_tokens == 1


@pytest.mark.parametrize("length", [20, 21])
async def test_a_prompt_without_room_for_an_answer_is_refused(length: int) -> None:
    with pytest.raises(PromptTooLongError) as caught:
        await _complete(_service(max_model_len=20), prompt=list(range(length)))
    assert caught.value.prompt_len == length


async def test_a_hopelessly_long_text_is_refused_before_it_is_tokenized() -> None:
    with pytest.raises(InvalidRequestError, match="maximum context length is 20"):
        await _complete(_service(max_model_len=20), prompt="a" * 100_000)


# --- rules ----------------------------------------------------------------------------------------------------------

NAMED = {"type": "function", "function": {"name": "other"}}
RULES: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "stream options without a stream": ({"stream_options": {"include_usage": True}}, "stream=True", "stream_options"),
    "top_logprobs without logprobs": ({"top_logprobs": 2}, "must be set to true", "top_logprobs"),
    "negative top_logprobs": ({"logprobs": True, "top_logprobs": -2}, "positive value or -1", "top_logprobs"),
    "named logprobs without logprobs": ({"logprob_token_ids": [1]}, "must be set to true", "logprob_token_ids"),
    "prompt scores of a stream": ({"stream": True, "prompt_logprobs": 1}, "stream=True", "prompt_logprobs"),
    "no tools in the list": ({"tools": []}, "must not be an empty array", "tools"),
    "a choice without tools": ({"tool_choice": "required"}, "`tools` must be set", "tool_choice"),
    "a tool that is not there": ({"tools": [TOOL], "tool_choice": NAMED}, "does not match any", "tool_choice"),
    "two constraints": ({"structured_outputs": {"json": {}, "regex": "a"}}, "only use one kind", "structured_outputs"),
    "a schema without schema": ({"response_format": {"type": "json_schema"}}, "must be provided", "response_format"),
    "a tag without content": ({"response_format": {"type": "structural_tag"}}, "structural_tag", "response_format"),
    "beam search": ({"use_beam_search": True}, "Beam search", "use_beam_search"),
    "an empty salt": ({"cache_salt": ""}, "non-empty string", "cache_salt"),
    "a salt with a slash": ({"cache_salt": "a/b"}, "cache_salt", "cache_salt"),
    "both prompt flags": ({"continue_final_message": True, "add_generation_prompt": True}, "Cannot set both", None),
    "too many tokens": ({"max_tokens": 5000}, "max_tokens=5000 cannot be greater", "max_tokens"),
    "too many tokens by the new name": (
        {"max_completion_tokens": 5000},
        "max_completion_tokens=5000",
        "max_completion_tokens",
    ),
    "too long a truncation": ({"truncate_prompt_tokens": 5000}, "cannot be greater", "truncate_prompt_tokens"),
    "no token at all": ({"max_tokens": 0}, "at least 1", "max_tokens"),
    "a hot temperature": ({"temperature": 2.5}, "temperature", "temperature"),
    "several greedy answers": ({"temperature": 0, "n": 2}, "greedy", "n"),
    "a count without a prefix": ({"prefix_message_count": 1}, "needs prefix_token_ids", "prefix_message_count"),
    "a prefix without a count": ({"prefix_token_ids": [1]}, "needs prefix_message_count", "prefix_message_count"),
    "a prefix of too many messages": (
        {"prefix_token_ids": [1], "prefix_message_count": 2},
        "more than the 1 messages",
        "prefix_message_count",
    ),
    "a prefix that is cut": (
        {"prefix_token_ids": [1], "prefix_message_count": 1, "truncate_prompt_tokens": 5},
        "cannot be truncated",
        "truncate_prompt_tokens",
    ),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
async def test_a_broken_rule_is_refused_with_its_field(rule: tuple[dict[str, Any], str, str | None]) -> None:
    fields, words, param = rule
    with pytest.raises(InvalidRequestError, match=words) as caught:
        await _chat(_service(tools="hermes"), **fields)
    assert caught.value.param == param


SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "no role": ({"messages": [{"content": "x"}]}, "body.messages.0.role"),
    "a role that is no text": ({"messages": [{"role": 5}]}, "body.messages.0.role"),
    "content that is a number": ({"messages": [{"role": "user", "content": 5}]}, "body.messages.0.content"),
    "a part that is a number": ({"messages": [{"role": "user", "content": [5]}]}, "body.messages.0.content.0"),
    "calls that are no list": ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "body.messages.0.tool_calls"),
    "a call that is a text": (
        {"messages": [{"role": "assistant", "tool_calls": ["x"]}]},
        "body.messages.0.tool_calls.0",
    ),
    "a message that is a text": ({"messages": ["x"]}, "body.messages.0"),
    "too many stop strings": ({"stop": ["a"] * 5}, "body.stop"),
    "a tool without a name": ({"tools": [{"type": "function", "function": {}}]}, "body.tools.0.function.name"),
    "a role in its place": ({"tool_choice": "sometimes"}, "body.tool_choice"),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
async def test_a_body_of_another_shape_is_refused_with_its_path(shape: tuple[dict[str, Any], str]) -> None:
    fields, path = shape
    with pytest.raises(BodyValidationError) as caught:
        await _chat(_service(tools="hermes"), **fields)
    assert caught.value.problems[0][0] == path


@pytest.mark.parametrize("prompt", [5, [[1], 2], [1, "a"], [1.5], [-1], [True], {"a": 1}, ["a", None]])
async def test_a_prompt_of_another_shape_is_refused(prompt: Any) -> None:
    with pytest.raises(BodyValidationError, match=r"body\.prompt"):
        await _complete(_service(), prompt=prompt)


@pytest.mark.parametrize("prompt", [None, "", [], [[]], [""]])
async def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"non-empty|No token_ids"):
        await _complete(_service(), prompt=prompt)


async def test_texts_and_ids_may_stand_side_by_side() -> None:
    requests = await _complete(_service(), prompt=["Hello", [5, 6]])
    assert [request.token_ids for request in requests] == [[19556], [5, 6]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"prompt_embeds": "x"}, "prompt_embeds"),
        ({"logprob_token_ids": [1]}, "`logprobs` must be set"),
        ({"logprobs": -2}, "positive value or -1"),
    ],
)
async def test_a_rule_of_completions_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        await _complete(_service(), prompt="a", **fields)


async def test_an_unknown_model_is_not_found() -> None:
    with pytest.raises(ModelNotFoundError):
        await _chat(_service(), model="other")


# --- trust ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"chat_template": "x"}, {"chat_template_kwargs": {"chat_template": "x"}}])
async def test_a_template_of_the_request_needs_trust(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="--trust-request-chat-template"):
        await _chat(_service(), **fields)


async def test_a_trusted_template_is_used() -> None:
    request = await _chat(_service(trust_request_chat_template=True), chat_template="{{ messages[0].content }}!")
    assert _text(request) == "Hi!"


@pytest.mark.parametrize("name", ["mm_processor_kwargs", "media_io_kwargs"])
async def test_media_options_of_the_request_need_trust(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="--trust-request-mm-kwargs"):
        await _chat(_service(), **{name: {"image": {"x": 1}}})


async def test_media_are_refused_where_no_model_takes_them() -> None:
    part = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
    with pytest.raises(InvalidRequestError, match="smol is not a multimodal model: it cannot take image"):
        await _chat(_service(), messages=[{"role": "user", "content": [part]}])


@pytest.mark.parametrize("name", ["messages", "tokenize"])
async def test_a_variable_with_the_name_of_an_input_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        await _chat(_service(), chat_template_kwargs={name: 1})


# --- prefixes, tokenize, threads --------------------------------------------------------------------------------------


async def test_a_prefix_is_kept_and_continued() -> None:
    service = _service()
    first = await _chat(service)
    ids = [*first.token_ids, 40, 41, 42, 2]
    messages = [*HI, {"role": "assistant", "content": "?"}, {"role": "user", "content": "More"}]
    second = await _chat(service, messages=messages, prefix_token_ids=ids, prefix_message_count=2)
    assert second.token_ids[: len(ids)] == ids
    assert _text(second).endswith("<|im_end|>\n<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n")
    assert second.sampling_params.max_tokens == 4096 - len(second.token_ids)
    with pytest.raises(PrefixMismatchError) as caught:
        await _chat(service, messages=messages, prefix_token_ids=[9, *ids[1:]], prefix_message_count=2)
    assert caught.value.position == 0


@pytest.mark.parametrize("fields", [{}, {"prompt": "a", "messages": HI}])
async def test_tokenize_takes_a_text_or_a_conversation(fields: dict[str, Any]) -> None:
    request, _ = convert(TokenizeRequest, fields)
    with pytest.raises(InvalidRequestError, match="either prompt or messages"):
        await _service().tokenize(request)


async def test_tokenize_renders_a_chat_as_render_does() -> None:
    service = _service()
    request, _ = convert(TokenizeRequest, {"messages": HI, "tools": [TOOL]})
    assert (await service.tokenize(request)).tokens == (await _chat(service)).token_ids


async def test_a_long_prompt_does_not_hold_up_the_loop() -> None:
    service = _service(max_model_len=None)
    task = asyncio.create_task(_complete(service, prompt="The quick brown fox jumps. " * 20_000))
    worst = 0.0
    while not task.done():
        began = time.perf_counter()
        await asyncio.sleep(0.002)
        worst = max(worst, time.perf_counter() - began)
    (request,) = await task
    assert len(request.token_ids) > 100_000
    assert worst < 0.5


async def test_requests_decode_again_as_generate_requests() -> None:
    request = await _chat(render_service("smol"), logprobs=True, stop=["a"], tools=[TOOL], tool_choice="none")
    body = msgspec.json.encode(request)
    assert msgspec.json.decode(body, type=GenerateRequest) == request
