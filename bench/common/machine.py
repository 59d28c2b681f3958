"""What a figure was measured on: processor, cores, memory, versions, and how busy the machine was."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path


def describe(*packages: str) -> dict[str, object]:
    """Facts for the head of a result; `packages` whose versions matter, those that are installed."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "python": platform.python_version(),
        "versions": {name: version for name in packages if (version := _version(name)) is not None},
        "load_before": round(os.getloadavg()[0], 2),
    }


def sentence(machine: dict[str, object]) -> str:
    """One line for a page."""
    versions = machine["versions"]
    assert isinstance(versions, dict)
    named = "".join(f", {name} {version}" for name, version in versions.items())
    return (
        f"{machine['cores']} cores of {machine['processor']}, {machine['memory_gib']} GiB, "
        f"Python {machine['python']}{named}; load average before the run {machine['load_before']}."
    )


def _processor() -> str:
    model, flags = platform.machine(), ""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        if key.strip() == "flags":
            flags = value
            break
    widest = next((name for name in ("avx512f", "avx2") if name in flags.split()), None)
    return f"{model} ({'AVX-512' if widest == 'avx512f' else 'AVX2'})" if widest else model


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
