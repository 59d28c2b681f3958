"""Tokenizer folders.

1. Configuration files complete the tokenizer file: missing tokens, special flags, bos and eos around a text, templates.
2. Pieces, bytes and texts agree. 3. Text that is no text is refused by name. 4. What cannot be loaded says why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from tests.support.tokenizers import SMOL, added_tokens, tokenizer
from tokenwire.errors import InvalidRequestError
from tokenwire.render.token_bytes import byte_of_char
from tokenwire.render.tokenizer import Tokenizer, TokenizerLoadError


def _byte_tokenizer() -> tokenizers.Tokenizer:
    vocab = {char: i for i, char in enumerate(byte_of_char())}
    raw = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_tokens(["<plain>"])
    return raw


def _folder(path: Path, **files: Any) -> Path:
    _byte_tokenizer().save(str(path / "tokenizer.json"))
    for name, content in files.items():
        file = path / name.replace("__", ".")
        file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def test_tokens_that_only_the_configuration_lists_are_appended(tmp_path: Path) -> None:
    decoder = {
        "257": {"content": "<tool>", "special": False, "normalized": False},
        "258": {"content": "<end>", "special": True, "normalized": False},
    }
    loaded = Tokenizer.load(_folder(tmp_path, tokenizer_config__json={"added_tokens_decoder": decoder}))
    assert loaded.encode("<tool>a<end>") == [257, loaded.piece_to_id("a"), 258]
    assert loaded.special_ids == {258}
    assert loaded.special.added_ids == {256, 257, 258}
    assert (loaded.vocab_size, loaded.max_token_id) == (259, 258)


@pytest.mark.parametrize("key", ["additional_special_tokens", "extra_special_tokens"])
def test_named_and_extra_tokens_become_special(tmp_path: Path, key: str) -> None:
    config = {"eos_token": "<plain>", "image_token": {"content": "<img>"}, key: ["<extra>"]}
    loaded = Tokenizer.load(_folder(tmp_path, tokenizer_config__json=config))
    assert loaded.eos_token_id == 256
    assert loaded.special.named == {"eos_token": "<plain>", "image_token": "<img>"}
    assert {loaded.id_to_piece(i) for i in loaded.special_ids} == {"<plain>", "<img>", "<extra>"}
    assert loaded.decode([256, 65 - 33], skip_special_tokens=True) == loaded.decode([65 - 33])


def test_extra_tokens_may_have_names(tmp_path: Path) -> None:
    config = {"extra_special_tokens": {"boi_token": "<boi>"}}
    loaded = Tokenizer.load(_folder(tmp_path, tokenizer_config__json=config))
    assert loaded.special.named == {"boi_token": "<boi>"}
    assert loaded.piece_to_id("<boi>") in loaded.special_ids


def test_the_older_special_tokens_map_is_read(tmp_path: Path) -> None:
    folder = _folder(tmp_path, tokenizer_config__json={}, special_tokens_map__json={"eos_token": {"content": "<eos>"}})
    assert Tokenizer.load(folder).eos_token == "<eos>"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"add_bos_token": True}, ["<b>", "a"]),
        ({"add_eos_token": True}, ["a", "<e>"]),
        ({"add_bos_token": True, "add_eos_token": True}, ["<b>", "a", "<e>"]),
        ({"add_bos_token": False}, ["a"]),
        ({}, ["a"]),
    ],
)
def test_bos_and_eos_are_put_where_the_configuration_says(
    tmp_path: Path, flags: dict[str, bool], expected: list[str]
) -> None:
    config = {"bos_token": "<b>", "eos_token": "<e>", **flags}
    loaded = Tokenizer.load(_folder(tmp_path, tokenizer_config__json=config))
    assert [loaded.id_to_piece(i) for i in loaded.encode("a")] == expected
    assert [loaded.id_to_piece(i) for i in loaded.encode("a", add_special_tokens=False)] == ["a"]
    before, after = loaded.surround
    assert expected[before : len(expected) - after] == ["a"]


def test_templates_come_from_the_file_then_from_the_configuration(tmp_path: Path) -> None:
    listed = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    folder = _folder(tmp_path, tokenizer_config__json={"chat_template": listed})
    assert Tokenizer.load(folder).chat_templates == {"default": "A", "tool_use": "B"}
    (folder / "chat_template.jinja").write_text("C")
    assert Tokenizer.load(folder).chat_template == "C"
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "D"}))
    assert Tokenizer.load(folder).chat_template == "D"


def test_truncation_saved_in_the_file_is_off(tmp_path: Path) -> None:
    raw = _byte_tokenizer()
    raw.enable_truncation(3)
    raw.enable_padding(length=10)
    raw.save(str(tmp_path / "tokenizer.json"))
    assert len(Tokenizer.load(tmp_path).encode("abcdef")) == 6


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cn", "Co", "Cc"]), max_size=40))  # smol lacks a few bytes
def test_bytes_of_the_tokens_are_the_bytes_of_the_text(text: str) -> None:
    smol = tokenizer("smol+chatmlthink")
    ids = smol.encode(text, add_special_tokens=False)
    assert b"".join(smol.token_bytes(i) or b"" for i in ids) == text.encode()
    assert smol.decode(ids) == text
    assert [smol.piece_to_id(smol.id_to_piece(i) or "") for i in ids] == ids


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["<|im_end|>", "<think>", "a", " ", "é", "<|", "\n"]), max_size=8).map("".join))
def test_ordinary_encoding_spells_special_tokens_out(text: str) -> None:
    smol = tokenizer("smol+chatmlthink")
    ids = smol.encode_ordinary(text)
    assert smol.decode(ids) == text
    assert not smol.special.added_ids.intersection(ids)


def test_offsets_are_character_ranges() -> None:
    text = "é <|im_end|>日本"
    ids, offsets = tokenizer("smol").encode_with_offsets(text)
    end = ids.index(2)
    assert text[slice(*offsets[end])] == "<|im_end|>"
    assert offsets[0] == (0, 1)


def test_sentencepiece_bytes_keep_spaces_and_byte_pieces(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "▁a": 1, "b": 2, "<0xC3>": 3, "<0xA9>": 4, "▁": 5}
    raw = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    raw.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path)
    assert [loaded.token_bytes(i) for i in (1, 2, 3, 4)] == [b" a", b"b", b"\xc3", b"\xa9"]
    assert loaded.decode([1, 3, 4]) == "aé"


def test_added_tokens_of_the_test_tokenizers_have_the_listed_ids() -> None:
    for token in added_tokens("smol+glm"):
        assert tokenizer("smol+glm").piece_to_id(token["content"]) == token["id"]


def test_a_lone_surrogate_is_refused_by_name() -> None:
    for encode in (tokenizer("smol").encode, tokenizer("smol").encode_with_offsets):
        with pytest.raises(InvalidRequestError, match="surrogate"):
            encode("a\ud83d")


def test_ids_outside_the_vocabulary_decode_to_nothing() -> None:
    smol = tokenizer("smol")
    assert smol.decode([19556, 999_999, -1, 2**40]) == smol.decode([19556]) == "Hello"
    assert smol.id_to_piece(-1) is smol.id_to_piece(999_999) is smol.token_bytes(999_999) is None


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    with pytest.raises(TokenizerLoadError, match="no tokenizer.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerLoadError, match="tokenizer.json"):
        Tokenizer.load(tmp_path)
    _folder(tmp_path, tokenizer_config__json="[]")
    with pytest.raises(TokenizerLoadError, match="JSON object"):
        Tokenizer.load(tmp_path)
    with pytest.raises(TokenizerLoadError, match="not a tokenizer file"):
        Tokenizer.load(SMOL / "chat_template.jinja")


def test_a_file_stands_for_its_folder() -> None:
    assert Tokenizer.load(SMOL / "tokenizer.json").chat_template == tokenizer("smol").chat_template
