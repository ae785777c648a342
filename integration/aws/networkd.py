"""systemd-networkd on an instance, as an image has it beside coild: it configures links, and what it does to the rest.

It sees the instance's links and nothing of the machine: /run and /etc/systemd are its own, and there is no udev, which
it takes from /sys being read-only (`udev_available` in systemd), as in a container.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from integration.aws.instance import Instance
from integration.cluster.process import Process, complete_lines
from integration.cluster.workspace import Workspace
from integration.patience import wait_until

_ROOT: Final = Path(__file__).resolve().parent.parent.parent
PROGRAM: Final = Path("/usr/lib/systemd/systemd-networkd")
_SETTINGS: Final = Path("/etc/systemd")
_STATE: Final = ("", "leases", "links", "lldp")
"""Folders below /run/systemd/netif. systemd makes them for the service, for its own user."""
_WRITABLE: Final = 0o1777
_SECONDS: Final = 60.0
_REMOVALS: Final = ("Removing foreign routing policy rule", "Removing foreign route")


class Networkd:
    """It runs; make it with `up`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    @contextmanager
    def up(cls, workspace: Workspace, instance: Instance, files: Mapping[str, str]) -> Iterator["Networkd"]:
        """With these files below /etc/systemd and no others, until the end of the block. What it has made stays."""
        folder = workspace.make_folder("networkd", secrets.token_hex(4))
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        inside = [*instance.namespaces.entrance, "unshare", "--mount", "--propagation=private"]
        argv = [*inside, sys.executable, "-m", __name__, str(folder)]
        process = workspace.spawn(f"networkd-{secrets.token_hex(2)}", argv, env={"PYTHONPATH": str(_ROOT)})
        made = cls(process)
        try:
            process.wait_ready(lambda: made._has_said("Enumeration completed"), timeout=_SECONDS)
            yield made
        finally:
            process.stop()

    def wait_link(self, link: str, state: str) -> None:
        """Return when it says that the link is `configured` or `unmanaged`."""
        wait_until(lambda: self._has_said(f"{link}: State changed:", f"-> {state}"), what=f"{link} is {state}")

    @property
    def removals(self) -> int:
        """How many rules and routes of others it has deleted."""
        return sum(any(words in line for words in _REMOVALS) for line in complete_lines(self._process.log))

    def _has_said(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in complete_lines(self._process.log))


def main() -> None:
    """Become systemd-networkd, in a mount namespace that nobody else is in, with the files of the folder."""
    for argv in (
        ("mount", "-t", "tmpfs", "tmpfs", "/run"),
        ("mount", "--bind", sys.argv[1], str(_SETTINGS)),
        ("mount", "-o", "remount,bind,ro", "/sys"),
    ):
        subprocess.run(argv, check=True, timeout=_SECONDS)
    for name in _STATE:
        folder = Path("/run/systemd/netif") / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(_WRITABLE)
    environment = {"SYSTEMD_LOG_LEVEL": "debug", "SYSTEMD_LOG_TARGET": "console"}
    os.execve(PROGRAM, [str(PROGRAM)], environment)  # noqa: S606 - it takes the place of this process


if __name__ == "__main__":
    main()
