"""The programs of the image: those of the project file but for kubectl-coil, which runs where kubectl is."""

import tomllib
from collections.abc import Mapping
from typing import Final

from integration.image.build import REPOSITORY

ELSEWHERE: Final = frozenset({"kubectl-coil"})


def read_programs() -> Mapping[str, str]:
    """Where each begins, by its name."""
    scripts: Mapping[str, str] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    return {name: target for name, target in scripts.items() if name not in ELSEWHERE}
