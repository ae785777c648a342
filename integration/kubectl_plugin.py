"""kubectl-coil where kubectl finds it, a file of that name in a folder of the PATH; and run without it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 180.0


def write_kubectl_plugin(folder: Path) -> None:
    """Put an executable into the folder that runs the checkout's own."""
    plugin = folder / "kubectl-coil"
    plugin.write_text(f'#!/bin/sh\nexec {sys.executable} -m kubectl_coil "$@"\n')
    plugin.chmod(0o755)


def ask_coil(kubeconfig: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the document of a command that could ask the cluster."""
    command = [sys.executable, "-m", "kubectl_coil", *arguments, "--output=json", f"--kubeconfig={kubeconfig}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode in (0, 1), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document
