"""`python -m tokenwire.engine.local.warm_up [MODEL]`: what a first start would wait for, done at installation.

Prepares the model (the default one is converted) and, by answering a few requests, has the CPU kernels compiled, whose
code is kept beside their source.
"""

from __future__ import annotations

import asyncio
import sys

from tokenwire.engine.base import EngineRequest
from tokenwire.engine.local.engine import LocalEngine
from tokenwire.engine.local.options import LocalEngineOptions
from tokenwire.wire.sampling import SamplingParams


async def warm_up(model: str | None = None) -> None:
    """A prompt that is long enough to be split over threads, then many sequences at once."""
    engine = LocalEngine(LocalEngineOptions(model=model))
    await engine.start()
    try:
        for n, prompt_len in ((1, min(256, engine.info.max_model_len // 2)), (16, 8)):
            params = SamplingParams(n=n, max_tokens=2, ignore_eos=True)
            request = EngineRequest(f"warm-up-{n}", [0] * prompt_len, params, stream=False)
            async for _ in engine.generate(request):
                pass
    finally:
        await engine.close()


if __name__ == "__main__":
    asyncio.run(warm_up(*sys.argv[1:2]))
