"""Ids and scores as numpy arrays, over MessagePack: no Python object is made per token. `tokenwire serve` first."""

import os

import numpy as np

from tokenwire.client import Client

SAMPLING = {"max_tokens": 16, "logprobs": 4, "seed": 1}

with Client(os.environ.get("TOKENWIRE_URL", "http://127.0.0.1:8000"), wire="msgpack") as client:
    prompt = client.tokenize("Once upon a time").tokens
    whole = client.generate(prompt, SAMPLING).choices[0]
    with client.generate_stream(prompt, SAMPLING) as stream:
        chunks = [chunk.choices[0] for chunk in stream if chunk.choices]

assert whole.logprobs is not None
scores = whole.logprobs.arrays()
print("ids          ", whole.token_id_array)
print("candidates   ", scores.token_ids.shape, scores.token_ids.dtype)  # [tokens, sampled + top 4]
print("sampled      ", scores.sampled.round(3))
print("ranks        ", scores.ranks)
print("mean log-prob", float(scores.sampled.mean()))

streamed = np.concatenate([chunk.token_id_array for chunk in chunks])
print("streamed the same ids:", np.array_equal(streamed, whole.token_id_array))
