"""The benchmark scripts: what they print and write. No test looks at a time.

1. Every script tells its arguments, and runs at its smallest size (`slow`, as that starts servers).
2. A script writes its own part of a page and nothing else; the page has a part for each.
3. A ratio is the median of the rounds' ratios, each of our configurations against each peer.
4. The same numbers make the same plot, byte for byte.
5. Weights made for a peer are those they were made from, with the same metadata.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(autouse=True)
def _bench_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)


def run(script: str, *arguments: str, timeout_s: float = 60) -> str:
    command = [sys.executable, str(BENCH / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=timeout_s).stdout


@pytest.mark.parametrize("script", ["engine.py", "startup.py", "growth.py"])
def test_a_script_tells_its_arguments(script: str) -> None:
    text = run(script, "--help")
    assert "--json" in text
    assert "--page" in text


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "arguments", [["engine.py", "--quick", "--no-transformers"], ["startup.py", "--quick"], ["growth.py", "--quick"]]
)
def test_a_script_runs_at_its_smallest_size(arguments: list[str], tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    text = run(*arguments, "--json", str(output), timeout_s=600)
    assert "| --- |" in text
    assert json.loads(output.read_text())["machine"]["cores"] > 0


def test_a_section_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    pages = importlib.import_module("common.pages")
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- bench:a -->\nold\n<!-- end bench:a -->\nbetween\n<!-- bench:b -->\nkept\n<!-- end bench:b -->\n"
    )
    pages.write_section("a", "new\n", page)
    assert page.read_text() == (
        "before\n<!-- bench:a -->\nnew\n<!-- end bench:a -->\nbetween\n<!-- bench:b -->\nkept\n<!-- end bench:b -->\n"
    )
    with pytest.raises(ValueError, match="bench:c"):
        pages.write_section("c", "text", page)


@pytest.mark.parametrize("name", ["engine", "startup", "growth"])
def test_the_page_has_a_part_for_every_script(name: str, tmp_path: Path) -> None:
    pages = importlib.import_module("common.pages")
    copy = tmp_path / "performance.md"
    copy.write_text(pages.PAGE.read_text())
    pages.write_section(name, "text", copy)
    assert f"<!-- bench:{name} -->\ntext\n<!-- end bench:{name} -->" in copy.read_text()


def test_a_page_names_no_place_of_one_machine() -> None:
    pages = importlib.import_module("common.pages")
    arguments = ["--json", "/tmp/a.json", "--page", "--tokenizer", "big=/opt/big", "--vllm-python", "/opt/bin/python"]
    assert pages.command("x.py", arguments) == "python bench/x.py --tokenizer big=PATH --vllm-python PATH"


def test_numbers_are_shown_with_the_digits_that_mean_something() -> None:
    pages = importlib.import_module("common.pages")
    assert pages.table(["size", "a", "b"], [["x", 1234.5, None], ["y", 0.25, 3]]) == (
        "| size | a | b |\n| --- | ---: | ---: |\n| x | 1,234 | – |\n| y | 0.25 | 3 |"
    )


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    engine = importlib.import_module("engine")
    rates = {"1 stream, tok/s": {"tokenwire float32": [10.0, 40.0, 90.0], "peer": [10.0, 20.0, 30.0]}}
    assert engine.ratio_table(rates).splitlines()[-1] == "| 1 stream, tok/s | 2.00 |"
    assert engine.rate_table(rates).splitlines()[-1] == "| 1 stream, tok/s | 40.0 | 20.0 |"
    assert engine.ratio_table({"case": {"tokenwire float32": [1.0]}}) == ""


def test_the_same_numbers_make_the_same_plot(tmp_path: Path) -> None:
    plots = importlib.import_module("common.plots")
    panels = [
        plots.Panel("lines", x="streams", lines={"a": [(1, 2.0), (128, 3.0)]}, log_x=True),
        plots.Panel("bars", categories=["one", "two"], bars={"a": [1.0, None], "b": [2.0, 300.0]}),
    ]
    written = []
    for name in ("first.svg", "second.svg"):
        plots.write(tmp_path / name, panels)
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    assert b">streams<" in written[0]
    assert len(written[0]) < 60_000


@pytest.mark.parametrize("kind, tolerance", [("Q8_0", 0.02), ("F32", 0.0)])
def test_weights_made_for_a_peer_are_those_they_were_made_from(kind: str, tolerance: float, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    peer_gguf = importlib.import_module("common.peer_gguf")
    source = tmp_path / "source.gguf"
    matrix = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_context_length(128)
    writer.add_token_list(["a", "b"])
    writer.add_tensor("token_embd.weight", matrix)
    writer.add_tensor("output_norm.weight", matrix[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    made = gguf.GGUFReader(peer_gguf.write(source, tmp_path / "made.gguf", kind))
    assert made.fields["llama.context_length"].contents() == 128
    assert made.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    tensors = {tensor.name: tensor for tensor in made.tensors}
    assert tensors["token_embd.weight"].tensor_type.name == kind
    kept = gguf.quants.dequantize(tensors["token_embd.weight"].data, tensors["token_embd.weight"].tensor_type)
    assert np.abs(kept - matrix).max() <= tolerance
    assert tensors["output_norm.weight"].tensor_type.name == "F32"
