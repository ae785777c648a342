"""An image's files unpacked, and programs started in them as a container runtime would: the root read-only.

For tests. A program sees the image's environment and no other variable, /proc, a few devices, this machine's network,
and what is mounted for it; it dies with this process.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS = 60
_ENTER = """
set -e
root=$1
shift
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero urandom; do touch dev/$device; mount --bind /dev/$device dev/$device; done
while [ "$1" != -- ]; do mkdir -p "./$2"; mount --bind "$1" "./$2"; shift 2; done
shift
mount -o remount,bind,ro "$root" "$root"
# Not in this shell's place: the kernel forgets to end with its parent whoever becomes another user.
code=0
env --ignore-environment "$@" || code=$?
exit $code
"""


@dataclass(frozen=True, slots=True)
class Container:
    """How one program is started: `user` instead of the image's, further variables, and folders by their source."""

    user: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[Path, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rootfs:
    """The files below `root`, the image's configuration (OCI image specification, config)."""

    root: Path
    layer: Path
    configuration: Mapping[str, Any]

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a container of the image begins with."""
        return dict(variable.split("=", 1) for variable in self.configuration["config"]["Env"])

    @property
    def user(self) -> str:
        """The image's user, as `uid:gid`."""
        return str(self.configuration["config"]["User"])

    def command(self, argv: Sequence[str], *, container: Container) -> list[str]:
        """What starts a program of the image in a mount namespace and process ids of its own; root."""
        variables = {**self.environment, **container.environment}
        mounts = [part for source, target in container.mounts.items() for part in (str(source), target.lstrip("/"))]
        return [
            *("setpriv", "--pdeathsig", "KILL"),
            *("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER),
            *("sh", str(self.root), *mounts, "--", *(f"{name}={value}" for name, value in variables.items())),
            # It finds the program by the image's PATH.
            *("/usr/sbin/chroot", f"--userspec={container.user or self.user}", "--groups=", str(self.root), *argv),
        ]

    def run(
        self, *argv: str, container: Container | None = None, seconds: float = SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """A program of the image from its start to its end, within that time."""
        return subprocess.run(
            self.command(argv, container=container or Container()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


def unpack_image(archive: Path, folder: Path) -> Rootfs:
    """The archive's one image, unpacked below the folder; root, for owners and modes."""
    layout, root = folder / "layout", folder / "root"
    blobs = layout / "blobs" / "sha256"
    _unpack(archive, layout)
    [descriptor] = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads(_blob(blobs, descriptor).read_text())
    [layer] = manifest["layers"]
    _unpack(_blob(blobs, layer), root)
    configuration = json.loads(_blob(blobs, manifest["config"]).read_text())
    return Rootfs(root, _blob(blobs, layer), configuration)


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    unpack = ["tar", "--extract", "--preserve-permissions", "--numeric-owner"]
    subprocess.run([*unpack, f"--file={archive}", f"--directory={folder}"], check=True, timeout=SECONDS)


def _blob(blobs: Path, descriptor: Mapping[str, Any]) -> Path:
    path: Path = blobs / descriptor["digest"].removeprefix("sha256:")
    return path
