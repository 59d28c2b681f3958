"""A dialogue with a tool, and its training record: every prompt begins with exactly the ids before it.

Start a server with a tool parser first: `tokenwire serve --enable-auto-tool-choice --tool-call-parser hermes`.
"""

import os
import sys

from tokenwire.client import Client, Conversation

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def get_weather(city: str) -> dict[str, str | int]:
    return {"city": city, "celsius": 7, "sky": "rain"}


with Client(os.environ.get("TOKENWIRE_URL", "http://127.0.0.1:8000")) as client:
    chat = Conversation(client, tools=TOOLS, sampling_params={"max_tokens": 64})
    chat.user("What is the weather in Oslo?")
    turn = chat.generate()
    if turn.tool_calls:
        for result in chat.run_tools({"get_weather": get_weather}, on_error="tell"):
            print("tool:", result.call.function.name, result.call.function.arguments, "->", result.content)
        turn = chat.generate()
    print("answer:", turn.message.content)

record = chat.record()
print(f"{len(record)} ids, {int(record.loss_mask.sum())} of them sampled")
print("mean log-prob of the sampled ids:", float(record.logprobs[record.loss_mask].mean()))
print("weights:", [(span.version, span.start, span.end) for span in record.weight_versions])
record.append_jsonl(sys.stdout.buffer)
