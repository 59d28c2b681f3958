"""A server that speculates: (1) flags of ours and vLLM's `--speculative-config` say the same, and what cannot be is one
sentence; (2) replies, whole and streamed, have the same ids as without, and tell the figures in `metrics`; (3) a stop
string loses none of them; (4) `/metrics` counts drafts under vLLM's names."""

import json

import pytest

from tests.engine.speculating import ids_of, with_tokenizer
from tests.support.http import GENERATE, body, events_of
from tests.support.process import tokenwire
from tests.support.tiny_llama import make_tiny_llama
from tokenwire.commands.engines import vllm_flags
from tokenwire.settings import SettingsError, load, make_parser
from tokenwire.settings.speculation import PromptLookup, prompt_lookup

PROMPT = ids_of("abab")
LOOP = {"allowed_token_ids": ids_of("ab"), "temperature": 0.5, "seed": 1, "ignore_eos": True, "max_tokens": 60}
FLAGS = ("--speculative", "ngram", "--ngram-min", "1", "--per-request-spec-decode-metrics", "detailed")


def settings(*argv):
    return load(make_parser("tokenwire serve", "."), ["M", *argv], {}).settings


@pytest.mark.parametrize(
    "argv, expected",
    [
        ([], None),
        (["--num-speculative-tokens", "7"], None),
        (["--speculative", "ngram"], (4, 2, 4)),
        (["--speculative", "ngram", "--num-speculative-tokens", "7", "--ngram-min", "3"], (7, 3, 4)),
        (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'], (3, 2, 4)),
        (["--speculative-config", '{"method": "ngram", "prompt_lookup_max": 5}'], (4, 5, 5)),
        (["--speculative-config", '{"model": "[ngram]", "prompt_lookup_min": 1, "prompt_lookup_max": 2}'], (4, 1, 2)),
    ],
)
def test_both_spellings_say_the_same(argv, expected):
    assert prompt_lookup(settings(*argv).engine) == (expected and PromptLookup(*expected))


@pytest.mark.parametrize(
    "argv, part",
    [
        (["--speculative", "ngram", "--ngram-min", "5"], "ngram_min=5 must be at most ngram_max=4"),
        (["--speculative-config", '{"method": "eagle", "model": "m"}'], "method 'eagle'"),
        (
            ["--speculative-config", '{"method": "ngram", "draft_tensor_parallel_size": 2}'],
            "draft_tensor_parallel_size",
        ),
        (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 0}'], "at least 1, got 0"),
        (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 65}'], "at most 64, got 65"),
        (["--speculative-config", '{"method": "ngram", "prompt_lookup_min": "2"}'], "got '2'"),
        (["--speculative-config", "ngram"], "a JSON object"),
        (["--engine", "null", "--speculative", "ngram"], "--engine local and vllm"),
    ],
)
def test_what_cannot_be_is_one_sentence(argv, part):
    with pytest.raises(SettingsError) as caught:
        settings(*argv)
    assert part in caught.value.message


def test_vllm_is_told_in_its_own_words():
    flags = vllm_flags(settings("--engine", "vllm", *FLAGS[:4]))
    told = json.loads(flags[flags.index("--speculative-config") + 1])
    assert told == {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 4}
    eagle = '{"method": "eagle", "model": "m"}'
    flags = vllm_flags(settings("--engine", "vllm", "--speculative-config", eagle))
    assert json.loads(flags[flags.index("--speculative-config") + 1]) == json.loads(eagle)
    assert "--speculative-config" not in vllm_flags(settings("--engine", "vllm"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    bare = make_tiny_llama(tmp_path_factory.mktemp("tiny"), vocab_size=97)
    return with_tokenizer(bare, tmp_path_factory.mktemp("tokens") / "model")


@pytest.fixture(scope="module")
def plain_ids(model):
    with serve(model) as process:
        process.wait_ready()
        with process.client() as client:
            return client.post(GENERATE, json=body(PROMPT, **LOOP)).json()["choices"][0]["token_ids"]


@pytest.fixture(scope="module")
def server(model, plain_ids):
    with serve(model, *FLAGS) as process:
        process.wait_ready()
        yield process


def serve(model, *flags):
    return tokenwire("serve", str(model), "--port", "0", "--num-threads", "1", *flags)


def check(figures, num_tokens):
    assert figures["num_spec_tokens"] == 4
    assert len(figures["acceptance_histogram"]) == 5
    assert figures["num_spec_steps"] == sum(figures["acceptance_histogram"]) == len(figures["per_step_accepted"])
    assert figures["num_accepted_draft_tokens"] == sum(figures["per_step_accepted"]) > 5
    assert figures["num_draft_tokens"] == sum(figures["per_step_drafted"])
    assert figures["draft_acceptance_rate"] == figures["num_accepted_draft_tokens"] / figures["num_draft_tokens"]
    assert figures["num_spec_steps"] + figures["num_accepted_draft_tokens"] <= num_tokens


def test_a_whole_reply_tells_what_speculation_did(server, plain_ids):
    with server.client() as client:
        reply = client.post(GENERATE, json=body(PROMPT, **LOOP)).json()
        assert reply["choices"][0]["token_ids"] == plain_ids
        check(reply["metrics"]["speculative_decoding"], 60)
        unguessed = client.post(GENERATE, json=body(PROMPT, max_tokens=1)).json()
        figures = unguessed["metrics"]["speculative_decoding"]
        assert (figures["num_spec_steps"], figures["mean_acceptance_length"], figures["num_spec_tokens"]) == (0, 1.0, 4)
        two = client.post(GENERATE, json=body(PROMPT, **LOOP, n=2)).json()
        assert two.get("metrics") is None


def test_a_stream_has_chunks_of_several_ids_and_the_figures_at_its_end(server, plain_ids):
    with server.client() as client:
        asked = body(PROMPT, **LOOP, logprobs=1, stream=True) | {"stream_options": {"include_usage": True}}
        events = events_of(client.post(GENERATE, json=asked).text)
    chunks = [event["choices"][0] for event in events if event["choices"]]
    assert [token_id for chunk in chunks for token_id in chunk["token_ids"]] == plain_ids
    assert max(len(chunk["token_ids"]) for chunk in chunks) > 1
    assert all(len(chunk["logprobs"]["content"]) == len(chunk["token_ids"]) for chunk in chunks)
    check(events[-1]["metrics"]["speculative_decoding"], 60)


def test_a_stop_string_inside_a_guess_cuts_there_and_keeps_the_figures(server, plain_ids):
    with server.client() as client:
        stop = "".join(chr(29 + token_id) for token_id in plain_ids[30:38])
        reply = client.post(GENERATE, json=body(PROMPT, **LOOP, stop=[stop])).json()
    (choice,) = reply["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    text = "".join(chr(29 + token_id) for token_id in plain_ids)
    assert choice["token_ids"] == plain_ids[: text.index(stop) + 8]
    assert reply["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 3


def test_the_server_counts_drafts_under_vllms_names(server):
    with server.client() as client:
        client.post(GENERATE, json=body(PROMPT, **LOOP))
        text = client.get("/metrics").text
    values = {}
    for line in text.splitlines():
        if "spec_decode" in line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name.replace('engine="0",', "").partition("{")[0] + name.partition("position")[2]] = float(value)
    drafts, accepted = values["vllm:spec_decode_num_drafts_total"], values["vllm:spec_decode_num_accepted_tokens_total"]
    assert 0 < accepted <= values["vllm:spec_decode_num_draft_tokens_total"] <= 4 * drafts
    by_place = [values[f'vllm:spec_decode_num_accepted_tokens_per_pos_total="{i}"}}'] for i in range(4)]
    assert sum(by_place) == accepted
    assert by_place == sorted(by_place, reverse=True)
    assert values["tokenwire_spec_decode_accepted_tokens_total"] == accepted
