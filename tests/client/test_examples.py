"""The examples run as they stand, each in a process of its own: on the scripted server, and on a model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.scripted_app import END, ToyServer
from tests.support.process import tokenwire

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = {
    "generate_ids.py": "why it ended: stop",
    "stream.py": "2: done, 12 tokens",
    "packed_logprobs.py": "streamed the same ids: True",
    "conversation_with_a_tool.py": "answer: it rains",
    "abort.py": "aborted=['r']",
}
"""What each prints on the scripted server."""


def run_example(name: str, url: str) -> str:
    environment = {**os.environ, "TOKENWIRE_URL": url}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SHOWN)


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_an_example_runs_on_the_scripted_server(name: str, base_url: str, toy: ToyServer) -> None:
    if name == "conversation_with_a_tool.py":
        toy.script = [[*b'CALL get_weather {"city": "Oslo"}', END], [*b"it rains", END]]
    assert SHOWN[name] in run_example(name, base_url)


@pytest.fixture(scope="module")
def model_server() -> Iterator[str]:
    """A full server: `tokenwire serve` with its default model."""
    tools = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    with tokenwire("serve", "--port", "0", *tools) as process:
        process.wait_ready()
        yield process.address


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(SHOWN))
def test_an_example_runs_on_a_model(name: str, model_server: str) -> None:
    assert run_example(name, model_server)
