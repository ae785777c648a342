"""A root file system with what the installer puts on a node, a place for a Unix socket, and nothing else.

No Python, no library, no shell, no /proc, no /dev. Commands are run in it by chroot(8), as root.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from coil_installer.node_files import install
from coil_installer.settings import NodeFolders, Settings

SOCKET = Path("/run/coild.sock")
PLUGIN = Path("/opt/cni/bin/coil")
CONFLIST = {"cniVersion": "1.0.0", "name": "k8s-pod-network", "plugins": [{"type": "coil", "socket": str(SOCKET)}]}
_SECONDS = 60


class Jail:
    """The root at `root`; the socket's folder is the only thing that the installer did not make."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.socket.parent.mkdir(parents=True)

    @property
    def socket(self) -> Path:
        """Where a server outside listens, so that the plugin inside finds it at SOCKET."""
        return self.outside(SOCKET)

    def outside(self, path: Path) -> Path:
        return self._root / path.relative_to("/")

    def folders(self) -> NodeFolders:
        return NodeFolders(
            conf_dir=self.outside(Path("/etc/cni/net.d")),
            conf_name="10-coil.conflist",
            bin_dir=self.outside(PLUGIN.parent),
        )

    def install(self, plugin: Path) -> None:
        install(Settings(folders=self.folders(), plugin=plugin, netconf=json.dumps(CONFLIST)))

    def start(self, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """The plugin inside, with that environment and no other variable."""
        assert os.geteuid() == 0, "another root file system takes root"
        return subprocess.Popen(
            ["chroot", self._root, PLUGIN],
            # chroot itself is looked up by ours.
            env=dict(environ),
            executable="/usr/sbin/chroot",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, environ: Mapping[str, str], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        """One call from its start to its end; no output on standard error is accepted."""
        with self.start(environ) as process:
            output, complaints = process.communicate(stdin, timeout=_SECONDS)
        assert complaints == b""
        return subprocess.CompletedProcess([PLUGIN], process.returncode, output, complaints)

    def listing(self) -> dict[str, tuple[int, int, int, int]]:
        """Path → (inode, mode, size, time of change) of everything in it."""
        found = {}
        for folder, folders, files in os.walk(self._root):
            for name in (*folders, *files):
                path = Path(folder, name)
                status = path.lstat()
                found[str(path)] = (status.st_ino, status.st_mode, status.st_size, status.st_ctime_ns)
        return found
