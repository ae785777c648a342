"""What an admin of Coil has on PATH: kubectl with Coil's plugin, helm, and coil-migrator."""

import sys
from pathlib import Path

from integration.cluster.control_plane import find_kubectl
from integration.helm.program import find_helm

_MODULES = {
    "coil-migrator": "coil_migrator",
    "kubectl-coil": "kubectl_coil",
    "kubectl_complete-coil": "kubectl_coil.completion",
}


def write_admin_programs(folder: Path) -> None:
    """Put them into the folder: Coil's own run from the checkout, the others are those of the tests."""
    (folder / "kubectl").symlink_to(find_kubectl())
    (folder / "helm").symlink_to(find_helm())
    for name, module in _MODULES.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        program.chmod(0o755)
