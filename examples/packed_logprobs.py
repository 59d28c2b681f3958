"""Scores as numpy arrays, over MessagePack: no Python object is made per token. `tokenwire serve` first."""

import os

from tokenwire.client import Client

with Client(os.environ.get("TOKENWIRE_URL", "http://127.0.0.1:8000"), wire="msgpack") as client:
    prompt = client.tokenize("Once upon a time").tokens
    reply = client.generate(prompt, {"max_tokens": 16, "logprobs": 4, "seed": 1}, logprobs_format="packed")

logprobs = reply.choices[0].logprobs
assert logprobs is not None
scores = logprobs.arrays()
print("candidates   ", scores.token_ids.shape, scores.token_ids.dtype)  # [tokens, sampled + top 4]
print("sampled      ", scores.sampled.round(3))
print("ranks        ", scores.ranks)
print("mean log-prob", float(scores.sampled.mean()))
