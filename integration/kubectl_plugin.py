"""`kubectl coil` as a process of its own, without kubectl."""

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
