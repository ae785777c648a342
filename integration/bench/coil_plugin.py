"""Our plugin as a node has it: put into a folder by the real installer."""

import os
import subprocess
import sys
from pathlib import Path

_SECONDS = 60


def install_plugin(folder: Path, *, netconf: bytes) -> Path:
    """Run the installer with `folder` in place of the node's root; gives the plugin's path.

    Raises RuntimeError with what the installer said, when it fails.
    """
    binaries, configurations = folder / "bin", folder / "net.d"
    for target in (binaries, configurations):
        target.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "CNI_BIN_DIR": str(binaries),
        "CNI_ETC_DIR": str(configurations),
        "CNI_NETCONF": netconf.decode(),
    }
    command = [sys.executable, "-m", "coil_installer"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        complaint = done.stderr.strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"the installer ended with code {done.returncode}: {complaint[-1]}")
    return binaries / "coil"
