"""The scripted server in memory, and on a real socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import uvicorn

from tests.client.scripted_app import ToyServer
from tokenwire.client import AsyncClient, Client


@pytest.fixture
def toy() -> ToyServer:
    return ToyServer()


@pytest.fixture
async def client(toy: ToyServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient("http://toy", transport=httpx.ASGITransport(toy.app)) as client:
        yield client


@pytest.fixture
async def binary_client(toy: ToyServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient("http://toy", wire="msgpack", transport=httpx.ASGITransport(toy.app)) as client:
        yield client


@pytest.fixture
def base_url(toy: ToyServer) -> Iterator[str]:
    """The address of a real server process thread on a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        server = uvicorn.Server(uvicorn.Config(toy.app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture
def sync_client(base_url: str) -> Iterator[Client]:
    with Client(base_url) as client:
        yield client
