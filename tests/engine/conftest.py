"""Tiny models, made once per session."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.harness import Reference
from tests.engine.tiny_models import CONFIGS, make_model


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("models")
    return {name: make_model(name, root / name) for name in CONFIGS}


@pytest.fixture(scope="session")
def references(folders: dict[str, Path]) -> dict[str, Reference]:
    return {name: Reference(folder) for name, folder in folders.items()}
