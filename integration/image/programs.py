"""The programs of the image: those of the project file."""

import tomllib
from collections.abc import Mapping

from integration.image.build import REPOSITORY


def read_programs() -> Mapping[str, str]:
    """Where each begins, by its name."""
    scripts: Mapping[str, str] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    return scripts
