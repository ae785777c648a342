"""A node's directories in a temporary place, and the plugin as a runtime would run it there."""

import json
import subprocess
from pathlib import Path
from typing import Any

from coil_installer.settings import Settings, parse_settings
from integration.plugin.executable import plugin_executable

CONFLIST: dict[str, Any] = {"cniVersion": "1.0.0", "name": "k8s-pod-network", "plugins": [{"type": "coil"}]}


def environ_of(root: Path, **more: str) -> dict[str, str]:
    return {
        "CNI_ETC_DIR": str(root / "etc/cni/net.d"),
        "CNI_BIN_DIR": str(root / "opt/cni/bin"),
        "CNI_NETCONF": json.dumps(CONFLIST),
        "COIL_PATH": str(plugin_executable()),
    } | more


def settings_of(root: Path, **more: str) -> Settings:
    return parse_settings(environ_of(root, **more))


def plugin_of(root: Path) -> Path:
    return root / "opt/cni/bin/coil"


def conflist_of(root: Path) -> Path:
    return root / "etc/cni/net.d/10-coil.conflist"


def run_plugin_at(plugin: Path, stdin: bytes = b"", /, **environ: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([plugin], env=environ, input=stdin, capture_output=True, timeout=60, check=False)


def snapshot(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Path → (inode, mode, content) of every file."""
    return {
        str(path.relative_to(root)): (path.stat().st_ino, path.stat().st_mode, path.read_bytes())
        for path in root.rglob("*")
        if path.is_file()
    }
