"""Where this package keeps things on disk: built programs, and one folder per running cluster."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """The folder for what is costly to make again: ``$XDG_CACHE_HOME/coil``, by default ``~/.cache/coil``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "coil"


def clusters_root() -> Path:
    """The folder with one folder per cluster, named by its id. What is not recorded here does not exist."""
    return cache_root() / "clusters"
