"""kubectl-coil and its completion where kubectl finds them, files of their names in a folder of the PATH; and run
without kubectl.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 180.0
DUMP_SECONDS = 600.0
PATIENCE = "60s"
"""For each answer: a machine may have much else to do."""

_COMMAND = (sys.executable, "-m", "kubectl_coil")
_PROGRAMS = {"kubectl-coil": "kubectl_coil", "kubectl_complete-coil": "kubectl_coil.completion"}


def write_kubectl_plugin(folder: Path) -> None:
    """Put executables into the folder that run the checkout's own."""
    for name, module in _PROGRAMS.items():
        plugin = folder / name
        plugin.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        plugin.chmod(0o755)


def collect_sysdump(
    kubeconfig: Path, file: Path, *arguments: str, patience: str = PATIENCE
) -> subprocess.CompletedProcess[str]:
    """What `kubectl coil sysdump` says while it writes the file."""
    command = [*_COMMAND, "sysdump", f"--file={file}", *_connection_flags(kubeconfig, patience), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DUMP_SECONDS, check=False)


def ask_coil(kubeconfig: Path, *arguments: str, patience: str = PATIENCE) -> tuple[int, dict[str, Any]]:
    """The exit code and the document of a command that could ask the cluster."""
    command = [*_COMMAND, *arguments, "--output=json", *_connection_flags(kubeconfig, patience)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode in (0, 1), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


def _connection_flags(kubeconfig: Path, patience: str) -> tuple[str, str]:
    return f"--kubeconfig={kubeconfig}", f"--request-timeout={patience}"
