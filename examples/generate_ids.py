"""Token ids in, token ids out. Start a server first: `tokenwire serve`."""

import os

from tokenwire.client import Client, SamplingParams

with Client(os.environ.get("TOKENWIRE_URL", "http://127.0.0.1:8000")) as client:
    prompt = client.tokenize("The capital of France is").tokens
    reply = client.generate(prompt, SamplingParams(max_tokens=8, temperature=0.0))
    print("in  ", prompt)
    print("out ", reply.token_ids)
    print("text", repr(client.detokenize(reply.token_ids)))
    print("why it ended:", reply.choices[0].finish_reason)
