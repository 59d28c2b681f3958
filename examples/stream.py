"""Many streams at once, each token shown as it comes: `tokenwire serve` first."""

import asyncio
import os

from tokenwire.client import AsyncClient, TextChoice

PROMPTS = ["The sea is", "The desert is", "The moon is"]


async def tell(client: AsyncClient, number: int, text: str) -> None:
    prompt = (await client.tokenize(text)).tokens
    stream = client.generate_stream(
        prompt, {"max_tokens": 12, "temperature": 0.0}, output_mode="text", stream_options={"include_usage": True}
    )
    async with stream:  # leaving it early would stop the server's work too
        async for chunk in stream:
            for choice in chunk.choices:
                assert isinstance(choice, TextChoice)
                print(f"{number}: {choice.token_ids} {choice.text!r}")
            if chunk.usage is not None and not chunk.choices:
                print(f"{number}: done, {chunk.usage.completion_tokens} tokens")


async def main() -> None:
    async with AsyncClient(os.environ.get("TOKENWIRE_URL", "http://127.0.0.1:8000")) as client:
        await asyncio.gather(*(tell(client, number, text) for number, text in enumerate(PROMPTS)))


asyncio.run(main())
