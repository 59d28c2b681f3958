"""Recorded cases in which we differ from the reference on purpose, each with its reason.

The test holds this table exact: a case listed here must differ, and no other may.
"""

MORE_CANDIDATES = (
    "The sampled token stands outside the asked-for candidates: we give it and all of them (k+1), as newer upstream "
    "versions do; 0.32 cuts the last candidate."
)

DIFFERENT: dict[str, str] = {
    "logprob_token_ids_text": MORE_CANDIDATES,
    "logit_bias_logprobs": MORE_CANDIDATES,
    "extra_logprobs_bias": MORE_CANDIDATES,
    "prompt_logprobs_stream": "Prompt scores ride on the first chunk instead of vanishing.",
    "prompt_logprob_token_ids_start": "Our engine has this feature; that server's model runner did not.",
    "bad_stream_too_long": "Refused before the first byte with a 400 status, not as an event inside a 200.",
    "extra_whitespace_pattern": "The request's own whitespace options are honoured; that server read only its flags.",
    "extra_models": "owned_by names this server.",
    "extra_version": "Our own version.",
    "extra_abort_ok": "Abort answers what it aborted.",
}

MADE_BY_THE_ENGINE = {
    "logprob_token_ids_text",
    "logit_bias_logprobs",
    "extra_logprobs_bias",
    "prompt_logprob_token_ids_start",
    "extra_whitespace_pattern",
}
"""What these show depends on whose sampler runs: over vLLM, some are as recorded."""

NOT_COMPARED: dict[str, str] = {
    "empty_sampling_params": "Random, and as long as the context: minutes of work that show nothing.",
}
