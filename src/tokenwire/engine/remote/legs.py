"""The prompt's own leg, where one is needed: prefill on another worker, or scores that streams cannot carry.

Prefill hands on its KV cache in `kv_transfer_params`, as vLLM's connectors have it: the prefill worker is asked with
`do_remote_decode`, and what it returns goes to the decode worker untouched. What the parameters mean, how blocks
travel, and what happens when the other side is gone, is between the two workers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec

from tokenwire.engine.base import EngineOutput, EngineRequest, PromptOutput
from tokenwire.errors import ServiceError

logger = logging.getLogger(__name__)

REMOTE_DECODE: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}

RunLeg = Callable[[EngineRequest], Awaitable[list[EngineOutput]]]


async def prefill_leg(request: EngineRequest, run: RunLeg) -> tuple[EngineRequest, PromptOutput | None]:
    """Run the prompt on a prefill worker; the request that is left for the decode worker, and the prompt's facts.

    Without a prefill worker that answers, the decode worker is given the whole request: it loses time and nothing else.
    """
    leg = replace(_one_token(request), kv_transfer_params=dict(REMOTE_DECODE))
    try:
        outputs = await run(leg)
    except ServiceError as exc:
        logger.warning("Request %s is prefilled by its decode worker: %s", request.request_id, exc.message)
        return request, None
    params = outputs[-1].kv_transfer_params
    if params is None:
        logger.warning("A prefill worker returned no kv_transfer_params; has it a KV connector that produces?")
    rest = replace(
        without_prompt_scores(request),
        kv_transfer_params=params,
        ec_transfer_params=outputs[-1].ec_transfer_params or request.ec_transfer_params,
    )
    return rest, outputs[0].prompt


async def scoring_leg(request: EngineRequest, run: RunLeg) -> tuple[EngineRequest, PromptOutput | None]:
    """Have the prompt scored in a whole answer; the request that is left to stream, and the prompt's facts."""
    outputs = await run(_one_token(request))
    return without_prompt_scores(request), outputs[0].prompt


def _one_token(request: EngineRequest) -> EngineRequest:
    sampling = msgspec.structs.replace(
        request.sampling, n=1, max_tokens=1, min_tokens=0, logprobs=None, logprob_token_ids=None, stop=None
    )
    return replace(request, sampling=sampling, stream=False)


def without_prompt_scores(request: EngineRequest) -> EngineRequest:
    """The request with its prompt unscored, and free to read the prefix cache again."""
    sampling = request.sampling
    if sampling.wants_prompt_scores:
        sampling = msgspec.structs.replace(
            sampling,
            prompt_logprobs=None,
            prompt_logprob_token_ids=None,
            prompt_logprob_start=None,
            skip_reading_prefix_cache=None,
        )
    return replace(request, sampling=sampling)
