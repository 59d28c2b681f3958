"""Stop a running request from elsewhere; it answers with what it had. `tokenwire serve` first."""

import asyncio
import os

from tokenwire.client import AsyncClient


async def main() -> None:
    async with AsyncClient(os.environ.get("TOKENWIRE_URL", "http://127.0.0.1:8000")) as client:
        prompt = (await client.tokenize("Count for ever: 1, 2, 3,")).tokens
        ids: list[int] = []
        ended = None
        async with client.generate_stream(
            prompt, {"max_tokens": 400, "ignore_eos": True}, request_id="to-be-stopped"
        ) as stream:
            async for chunk in stream:
                choice = chunk.choices[0]
                ids += choice.token_ids or []
                ended = choice.finish_reason
                if len(ids) == 5 and ended is None and stream.request_id is not None:
                    print(await client.abort(stream.request_id))
        print(f"ended by {ended!r} with {len(ids)} ids: {ids[:8]}...")


asyncio.run(main())
