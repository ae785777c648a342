"""`kubectl coil` in the demo: what it says of the cluster, as it says it."""

import subprocess
import sys

from integration.cluster.cluster import Cluster
from integration.demo.narration import DemoError

_SECONDS = 180.0


def ask_coil(cluster: Cluster, *arguments: str) -> str:
    """What the command prints. Raises DemoError unless it says that all is well, by exit code 0."""
    command = [sys.executable, "-m", "kubectl_coil", *arguments, f"--kubeconfig={cluster.plane.admin_kubeconfig}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        told = done.stdout + done.stderr
        raise DemoError(f"kubectl coil {' '.join(arguments)} ended with code {done.returncode}:\n{told}")
    return done.stdout


def print_answer(answer: str) -> None:
    print(f"\n{answer}", flush=True)
