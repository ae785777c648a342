"""coild by another module that runs coild's: as it is without packages for development, or watched from within."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

COILD: Final = "coild"
PLAIN: Final = "integration.bench.plain_coild"
WATCHED: Final = "integration.bench.watched_coild"
_REPOSITORY = Path(__file__).parents[2]


def run_by(module: str, command: Sequence[str], *arguments: str) -> tuple[list[str], dict[str, str]]:
    """coild's command line with that module in the place of coild's own, and what this needs of the environment.

    `arguments` are the module's; they come before coild's.
    """
    python, switch, _, *flags = command
    environment = {}
    if module != COILD:
        # It is part of no installation.
        paths = (str(_REPOSITORY), os.environ.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return [python, switch, module, *arguments, *flags], environment
