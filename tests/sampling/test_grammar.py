"""Whatever a constrained sequence writes, its text meets the constraint.

1. Random walks through the masks end in texts that jsonschema or `re` accept, for every kind and both libraries.
2. What vLLM wrote under the same constraint is allowed, token by token, and EOS only at the end.
3. No special token passes for text; EOS and the request's stop ids are allowed exactly where the text is complete.
4. Whitespace and additional properties follow the request's options and the server's.
5. An impossible constraint fails with a sentence, and a slow one does not hold up the others.
6. Equal requests share a compilation; the cache forgets the least recently used.
7. tekken.json vocabularies work too.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import Tokenizer

from tokenwire.engine.local.grammar.compiler import CompiledGrammar, GrammarCompiler
from tokenwire.engine.local.grammar.matcher import GrammarMatcher
from tokenwire.engine.local.grammar.pool import CompilePool
from tokenwire.engine.local.grammar.xgrammar_backend import XgrammarBackend
from tokenwire.errors import InvalidRequestError
from tokenwire.wire.sampling import StructuredOutputs

DATA = Path(__file__).parent.parent / "data"
FOLDER = DATA / "tokenizers" / "smol"
V, EOS = 49152, 2
TOKENIZER = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(FOLDER, vocab_size=V, eos_token_ids=[EOS])
    yield compiler
    compiler.close()


@pytest.fixture(scope="module")
def optionless() -> Iterator[GrammarCompiler]:
    """vLLM reads the whitespace options from the server alone, so its records were made without the request's."""
    compiler = GrammarCompiler(FOLDER, vocab_size=V, eos_token_ids=[EOS], request_options=False)
    yield compiler
    compiler.close()


def compiled(compiler: GrammarCompiler, **spec: Any) -> CompiledGrammar:
    return compiler.submit(StructuredOutputs(**spec)).result(30)


def allowed(matcher: GrammarMatcher, size: int = V) -> set[int]:
    words = np.zeros((size + 31) // 32, dtype=np.int32)
    if not matcher.fill(words):
        return set(range(size))
    bits = np.unpackbits(words.view(np.uint8), bitorder="little", count=size)
    return set(np.flatnonzero(bits).tolist())


def walk(matcher: GrammarMatcher, seed: int, limit: int = 400) -> list[int]:
    """Random allowed tokens until EOS; short tokens and EOS are preferred, so that it ends."""
    rng = np.random.default_rng(seed)
    tokens: list[int] = []
    while len(tokens) < limit:
        choices = allowed(matcher)
        assert choices, "a mask must allow something"
        if EOS in choices:
            tokens.append(EOS)
        else:
            ranked = sorted(choices, key=lambda i: len(TOKENIZER.id_to_token(i) or ""))
            closing = [i for i in ranked[:400] if TOKENIZER.id_to_token(i) in ('"', "}", "]", '"}', ">", "</f>")]
            pool = closing if closing and rng.random() < 0.5 else ranked
            tokens.append(int(rng.choice(pool)))
        assert matcher.accept(tokens[-1])
        if tokens[-1] == EOS:
            return tokens
    return tokens


def text_of(tokens: list[int]) -> str:
    return str(TOKENIZER.decode([t for t in tokens if t != EOS]))


SCHEMAS: dict[str, Any] = {
    "object": {
        "type": "object",
        "properties": {"n": {"type": "string", "maxLength": 5}, "a": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["n", "a"],
        "additionalProperties": False,
    },
    "enum": {"enum": ["x", 1, None, {"a": [True]}]},
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    "ref": {"$defs": {"d": {"const": "z"}}, "type": "array", "items": {"$ref": "#/$defs/d"}, "maxItems": 2},
    "anyOf": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[ab]{2}$"}]},
    # These three are beyond xgrammar.
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
    "allOf": {"allOf": [{"type": "string"}, {"enum": ["yes", "no", 3]}]},
    "patterns": {
        "type": "object",
        "patternProperties": {"^x[0-9]$": {"type": "boolean"}, "^y$": {"type": "null"}},
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_json_walks_meet_their_schema(compiler: GrammarCompiler, name: str) -> None:
    grammar = compiled(compiler, json=SCHEMAS[name])
    for seed in range(3):
        tokens = walk(grammar.matcher(stop_ids=[EOS]), seed)
        assert tokens[-1] == EOS
        jsonschema.validate(json.loads(text_of(tokens)), SCHEMAS[name])


PATTERNS = [r"[a-z]{3}-[0-9]{2}", r"(yes|no)!?", r"\p{Lu}\d", r"(?i)abc", r"[^x]{2,4}", "é€+", r"^a$"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_regex_walks_match_their_regex(compiler: GrammarCompiler, pattern: str) -> None:
    grammar = compiled(compiler, regex=pattern)
    for seed in range(3):
        tokens = walk(grammar.matcher(stop_ids=[EOS]), seed)
        assert tokens[-1] == EOS
        if r"\p" in pattern:
            assert re.fullmatch(r"\w\d", text_of(tokens))
        else:
            assert re.fullmatch(pattern, text_of(tokens))


CHOICES = ["yes", "no", 'qu"ote\\', "new\nline\ttab", "é€", "\x01\x7f"]


def test_choice_walks_give_one_of_the_choices(compiler: GrammarCompiler) -> None:
    grammar = compiled(compiler, choice=CHOICES)
    seen = {text_of(walk(grammar.matcher(stop_ids=[EOS]), seed)) for seed in range(40)}
    assert seen <= set(CHOICES)
    assert len(seen) > 3


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a" [0-9]{1,3} "z"',
        'start: "a" NUM "z"\nNUM: /[0-9]{1,3}/',
        '# a ::= comment\nstart: "a" /[0-9]{1,3}/ "z"',
    ],
    ids=["ebnf", "lark", "lark_with_comment"],
)
def test_grammars_are_followed_in_both_notations(compiler: GrammarCompiler, grammar: str) -> None:
    tokens = walk(compiled(compiler, grammar=grammar).matcher(stop_ids=[EOS]), 1)
    assert re.fullmatch(r"a[0-9]{1,3}z", text_of(tokens))


def test_json_object_walks_give_objects(compiler: GrammarCompiler) -> None:
    grammar = compiled(compiler, json_object=True)
    for seed in range(3):
        tokens = walk(grammar.matcher(stop_ids=[EOS]), seed)
        if tokens[-1] == EOS:
            assert isinstance(json.loads(text_of(tokens)), dict)
        assert text_of(tokens).lstrip().startswith("{")


TAGS = {
    "old": {
        "structures": [{"begin": "<f>", "schema": {"type": "boolean"}, "end": "</f>"}],
        "triggers": ["<f"],
    },
    "new": {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<f"],
            "tags": [
                {"begin": "<f>", "content": {"type": "json_schema", "json_schema": {"type": "boolean"}}, "end": "</f>"}
            ],
        },
    },
}


@pytest.mark.parametrize("form", TAGS)
@pytest.mark.parametrize("as_text", [False, True])
def test_a_structural_tag_leaves_text_free_and_binds_the_tag(
    compiler: GrammarCompiler, form: str, as_text: bool
) -> None:
    tag = json.dumps(TAGS[form]) if as_text else TAGS[form]
    matcher = compiled(compiler, structural_tag=tag).matcher(stop_ids=[EOS])
    for token in TOKENIZER.encode("Some text. ").ids:
        assert matcher.accept(token)
    assert EOS in allowed(matcher)
    for token in TOKENIZER.encode("<f>true").ids:
        assert matcher.accept(token)
    assert EOS not in allowed(matcher)
    assert matcher.validate(TOKENIZER.encode("</f> and on").ids) == len(TOKENIZER.encode("</f> and on").ids)
    assert matcher.validate(TOKENIZER.encode("x").ids) == 0


def recorded() -> Iterator[Any]:
    for line in (DATA / "conformance" / "generate.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        request = record.get("request") or {}
        if record["status"] == 200 and request.get("sampling_params", {}).get("structured_outputs"):
            yield pytest.param(record, id=record["id"])


@pytest.mark.parametrize("record", list(recorded()))
def test_what_vllm_wrote_under_the_same_constraint_is_allowed(
    optionless: GrammarCompiler, record: dict[str, Any]
) -> None:
    spec = record["request"]["sampling_params"]["structured_outputs"]
    matcher = compiled(optionless, **spec).matcher(stop_ids=[EOS])
    for token in record["response"]["choices"][0]["token_ids"]:
        assert token in allowed(matcher)
        assert matcher.accept(token)
    assert matcher.is_terminated == (record["response"]["choices"][0]["finish_reason"] == "stop")


def test_special_tokens_are_no_text(compiler: GrammarCompiler) -> None:
    special = {i for i, token in TOKENIZER.get_added_tokens_decoder().items() if token.special and i != EOS}
    assert special
    matcher = compiled(compiler, regex=".*").matcher(stop_ids=[EOS])
    assert not special & allowed(matcher)
    assert EOS in allowed(matcher)
    matcher = compiled(compiler, json={"type": "string"}).matcher(stop_ids=[EOS])
    assert matcher.accept(TOKENIZER.encode('"').ids[0])
    assert not (special | {EOS}) & allowed(matcher)


@pytest.mark.parametrize("pattern", ["ab?", "(?i)ab?"], ids=["xgrammar", "llguidance"])
def test_stop_ids_of_the_request_end_the_text_too(compiler: GrammarCompiler, pattern: str) -> None:
    stop = TOKENIZER.encode("z").ids[0]
    matcher = compiled(compiler, regex=pattern).matcher(stop_ids=[EOS, stop])
    assert not {EOS, stop} & allowed(matcher)
    assert not matcher.accept(stop)
    assert matcher.accept(TOKENIZER.encode("a").ids[0])
    assert allowed(matcher) >= {EOS, stop}
    assert matcher.accept(stop)
    assert matcher.is_terminated
    assert allowed(matcher) == {EOS, stop}, "after its end a grammar allows nothing but stop ids"
    assert matcher.accept(EOS)
    matcher.rollback(2)
    assert allowed(matcher) >= {EOS, stop}
    assert not matcher.is_terminated


OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def takes(compiler: GrammarCompiler, text: str, **spec: Any) -> bool:
    matcher = compiled(compiler, **spec).matcher(stop_ids=[EOS])
    tokens = [*TOKENIZER.encode(text).ids, EOS]
    return matcher.validate(tokens) == len(tokens)


def test_whitespace_follows_the_options(compiler: GrammarCompiler) -> None:
    compact, spaced, wide = '{"a":1}', '{"a": 1}', '{\n  "a" : 1\n}'
    assert [takes(compiler, t, json=OBJECT) for t in (compact, spaced, wide)] == [True, True, True]
    for options in ({"json": OBJECT}, {"json_object": True}):
        texts = [takes(compiler, t, **options, disable_any_whitespace=True) for t in (compact, spaced, wide)]
        assert texts == [True, False, False]
    assert [takes(compiler, t, json=OBJECT, whitespace_pattern=" ?") for t in (compact, spaced, wide)] == [
        True,
        True,
        False,
    ]


def test_additional_properties_can_be_closed(compiler: GrammarCompiler) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": True,
    }
    inner = {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}, "allOf": [{}, {}]}}
    assert takes(compiler, '{"a":1,"b":2}', json=schema, disable_additional_properties=True), "what is said stays"
    assert takes(compiler, '[{"b":2}]', json=inner)
    assert not takes(compiler, '[{"b":2}]', json=inner, disable_additional_properties=True)


def test_the_server_can_set_the_options_for_all() -> None:
    compiler = GrammarCompiler(FOLDER, vocab_size=V, eos_token_ids=[EOS], compact_json=True)
    assert not takes(compiler, '{"a": 1}', json=OBJECT)
    compiler.close()


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"regex": "([a-z"}, "Grammar error: .*unclosed character class"),
    ({"regex": "(?=a)b"}, "look-around"),
    ({"json": "{not json"}, "Invalid JSON grammar specification"),
    ({"json": {"type": "foo"}}, "Invalid type: foo"),
    ({"json": {"$ref": "#/x"}}, "'/x' does not exist"),
    ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
    ({"json": False}, "no value"),
    ({"json": "[1]"}, "must be a JSON schema"),
    ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "greater than maximum"),
    ({"grammar": "root ::= ("}, "Expected"),
    ({"grammar": "start: /[/"}, "unclosed character class"),
    ({"grammar": "root ::= nothing"}, "nothing"),
    ({"grammar": "root ::= root"}, "cannot be met by any text"),
    ({"grammar": "start: start"}, "cannot be met by any text"),
    ({"json": {"$ref": "#"}}, "cannot be met by any text"),
    ({"choice": ["\ud800"]}, "."),
    ({"json": {"enum": []}}, "Unsatisfiable"),
    ({"structural_tag": {"type": "nope"}}, "Invalid structural tag"),
    ({"structural_tag": "nope"}, "structural_tag"),
    (
        {"structural_tag": {"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<b"]}},
        "triggers",
    ),
    ({"structural_tag": {"structures": [{"begin": "<a>"}], "triggers": ["<a"]}}, "schema"),
]


@pytest.mark.parametrize(("spec", "message"), BROKEN, ids=lambda v: json.dumps(v)[:40])
def test_an_impossible_constraint_fails_with_a_sentence(
    compiler: GrammarCompiler, spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=re.compile(message, re.DOTALL)) as caught:
        compiled(compiler, **spec)
    assert caught.value.param == "structured_outputs"


def test_a_slow_job_is_given_up_and_the_next_one_runs() -> None:
    pool = CompilePool(workers=1, timeout_s=0.2)
    release = threading.Event()
    slow: Future[bool] = pool.submit(release.wait)
    with pytest.raises(InvalidRequestError, match="took longer than 0.2 s"):
        slow.result(5)
    assert pool.submit(lambda: 7).result(5) == 7
    release.set()
    assert pool.submit(lambda: 8).result(5) == 8
    pool.close()


def test_equal_requests_share_a_compilation_and_old_ones_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    original = XgrammarBackend.compile

    def count(self: XgrammarBackend, source: Any) -> Any:
        calls.append(source.text)
        return original(self, source)

    monkeypatch.setattr(XgrammarBackend, "compile", count)
    compiler = GrammarCompiler(FOLDER, vocab_size=V, eos_token_ids=[EOS], cache_bytes=1)
    first = compiler.submit(StructuredOutputs(regex="a"))
    assert compiler.submit(StructuredOutputs(regex="a")) is first
    first.result(30)
    compiled(compiler, regex="a")
    compiled(compiler, regex="b")
    compiled(compiler, regex="a")
    with pytest.raises(InvalidRequestError):
        compiled(compiler, regex="(")
    with pytest.raises(InvalidRequestError):
        compiled(compiler, regex="(")
    assert calls == ["a", "b", "a", "(", "("], "a failure is not kept"
    compiler.close()


def test_a_tekken_vocabulary_works(tmp_path: Path) -> None:
    pieces = [bytes([i]) for i in range(256)] + [b"true", b"ab"]
    vocab = [{"rank": i, "token_bytes": base64.b64encode(p).decode(), "token_str": None} for i, p in enumerate(pieces)]
    config = {
        "pattern": "[a-z]+|.",
        "num_vocab_tokens": 258,
        "default_vocab_size": 261,
        "default_num_special_tokens": 3,
    }
    special = [{"rank": 2, "token_str": "</s>", "is_control": True}]
    (tmp_path / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": special}))
    compiler = GrammarCompiler(tmp_path, vocab_size=261, eos_token_ids=[2])
    for spec in ({"json": {"type": "boolean"}}, {"json": {"allOf": [{"type": "boolean"}, {"const": True}]}}):
        matcher = compiled(compiler, **spec).matcher(stop_ids=[2])
        assert 3 + 256 in allowed(matcher, 261)
        assert matcher.validate([3 + 256, 2]) == 2
        assert matcher.validate([3 + 257]) == 0
    compiler.close()
