"""Each stage imports only stages to its left, and the light half needs neither torch nor transformers.

1. A client machine can import the wire, render, derender, service, server and client with the heavy packages hidden.
2. No module imports a stage to its right.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "tokenwire"
ALLOWED = {
    "wire": {"wire", "errors"},
    "render": {"render", "wire", "errors"},
    "derender": {"derender", "render", "wire", "errors"},
    "engine": {"engine", "wire", "errors"},
    "service": {"service", "engine", "derender", "render", "wire", "errors"},
    "client": {"client", "wire", "errors"},
}
LIGHT = ["wire.generate", "wire.codec", "engine.base", "engine.null", "service.generate", "client", "cli"]
HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "numba", "xgrammar", "vllm"}:
            raise ImportError(name + " is hidden")
sys.meta_path.insert(0, Hide())
"""


@pytest.mark.parametrize("module", LIGHT)
def test_the_light_half_imports_with_the_heavy_packages_hidden(module: str) -> None:
    code = f"{HIDE}\nimport tokenwire.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("stage", sorted(ALLOWED))
def test_a_stage_imports_only_stages_to_its_left(stage: str) -> None:
    wrong = []
    for file in (SOURCE / stage).rglob("*.py"):
        for name in _runtime_imports(ast.parse(file.read_text(encoding="utf-8"))):
            other = name.removeprefix("tokenwire").lstrip(".").split(".")[0]
            if other and other not in ALLOWED[stage]:
                wrong.append(f"{file.relative_to(SOURCE)} imports {name}")
    assert wrong == []


def _runtime_imports(tree: ast.AST) -> list[str]:
    names: list[str] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tokenwire"):
            names += [node.module] if node.module != "tokenwire" else [f"tokenwire.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names += [a.name for a in node.names if a.name.startswith("tokenwire")]
        names += _runtime_imports(node)
    return names
