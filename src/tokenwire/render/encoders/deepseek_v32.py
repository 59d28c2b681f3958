"""DeepSeek V3.2's chat format.

A user message opens the assistant's turn itself, with `<think>` or `</think>`; tool results follow the calls as one
block. The format has no separate generation prompt, so `add_generation_prompt` and `continue_final_message` change
nothing in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenwire.errors import InvalidRequestError
from tokenwire.render.chat import ChatInput, EncodedChat
from tokenwire.render.encoders import EncoderOptions
from tokenwire.render.encoders.dsml import (
    ASSISTANT,
    BOS,
    DSML,
    END_THINK,
    EOS,
    THINK,
    USER,
    calls_block,
    last_user_index,
    require_messages,
    response_format_section,
    schemas,
    unknown_role,
)
from tokenwire.render.messages import Message, normalize
from tokenwire.render.tokenizer import Tokenizer

TOOLS = f"""## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<{DSML}function_calls>" block like the following as part of your reply to the user:
<{DSML}function_calls>
<{DSML}invoke name="$FUNCTION_NAME">
<{DSML}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML}parameter>
...
</{DSML}invoke>
<{DSML}invoke name="$FUNCTION_NAME2">
...
</{DSML}invoke>
</{DSML}function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:
<{DSML}function_calls>
...
</{DSML}function_calls>
<function_results>
...
</function_results>
{THINK}...thinking about results{END_THINK}
Here are the functions available in JSONSchema format:
<functions>
%s
</functions>
"""  # noqa: E501 (the model was trained on these very lines)


class DeepseekV32Encoder:
    name = "deepseek_v32"
    can_truncate = True
    has_own_calls = False

    def encode(self, chat: ChatInput) -> EncodedChat:
        conversation = normalize(chat.messages, "string")
        messages = conversation.messages
        require_messages(messages)
        if chat.tools:
            messages = [{"role": "system", "tools": chat.tools}, *messages]
        thinking = bool(chat.variables.get("thinking") or chat.variables.get("enable_thinking"))
        if thinking and messages[-1]["role"] == "user":
            messages = _without_old_developers(messages)
        writer = _Writer(messages, thinking)
        return EncodedChat(BOS + "".join(writer.message(i) for i in range(len(messages))), conversation.media)

    def fingerprint_parts(self) -> list[str]:
        return [self.name, TOOLS]


def _without_old_developers(messages: Sequence[Message]) -> list[Message]:
    """A new user message, with thinking on, drops what developers said before it."""
    last = last_user_index(messages)
    return [message for i, message in enumerate(messages) if i >= last or message["role"] != "developer"]


class _Writer:
    """Writes the messages of one conversation; what one looks like depends on its neighbours."""

    def __init__(self, messages: Sequence[Message], thinking: bool) -> None:
        self._messages = messages
        self._thinking = thinking
        self._last_user = last_user_index(messages)

    def message(self, index: int) -> str:
        message = self._messages[index]
        writer = _BY_ROLE.get(message["role"])
        if writer is None:
            raise unknown_role(message["role"])
        return writer(self, index, message)

    def system(self, index: int, message: Message) -> str:
        return (message.get("content") or "") + _tools_section(message) + response_format_section(message)

    def developer(self, index: int, message: Message) -> str:
        if not message["content"]:
            raise InvalidRequestError("Invalid message for role `developer`: it is empty.")
        text = _tools_section(message) + response_format_section(message)
        return self._user_turn(index, f"{text}\n\n# The user's message is: {message['content']}")

    def user(self, index: int, message: Message) -> str:
        return self._user_turn(index, message["content"])

    def _user_turn(self, index: int, text: str) -> str:
        return f"{USER}{text}{ASSISTANT}{self._think_mark(index == self._last_user)}"

    def _think_mark(self, is_current: bool) -> str:
        return THINK if self._thinking and is_current else END_THINK

    def tool(self, index: int, message: Message) -> str:
        caller = index - 1
        while caller >= 0 and self._messages[caller]["role"] == "tool":
            caller -= 1
        calls = self._messages[caller].get("tool_calls") if caller >= 0 else None
        place = index - caller
        if not calls or len(calls) < place:
            raise InvalidRequestError("No tool calls but found tool output")
        text = "\n\n<function_results>" if place == 1 else ""
        text += f"\n<result>{message['content']}</result>"
        if place == len(calls):
            text += f"\n</function_results>\n\n{self._think_mark(index >= self._last_user)}"
        return text

    def assistant(self, index: int, message: Message) -> str:
        calls = message.get("tool_calls") or []
        text = message["content"] or ""
        if self._thinking and index > self._last_user:
            reasoning = message.get("reasoning")
            if not reasoning and not calls:
                raise InvalidRequestError(
                    "With thinking on, an assistant message after the last user message needs reasoning or tool_calls.",
                )
            text = f"{reasoning or ''}{END_THINK}{text}"
        return text + calls_block(calls, "function_calls") + EOS


_BY_ROLE = {
    "system": _Writer.system,
    "developer": _Writer.developer,
    "user": _Writer.user,
    "tool": _Writer.tool,
    "assistant": _Writer.assistant,
}


def _tools_section(message: Message) -> str:
    tools = message.get("tools")
    return f"\n\n{TOOLS % schemas(tools)}" if tools else ""


def make_encoder(tokenizer: Tokenizer, options: EncoderOptions) -> DeepseekV32Encoder:
    return DeepseekV32Encoder()
