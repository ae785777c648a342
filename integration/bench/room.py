"""The room in which everything is measured: network, mounts and process ids of its own.

`ptp` switches forwarding on, coild writes rules and routes, and each pod needs a named namespace: none of that may
touch the machine. So the benchmarks run again as the first process of new namespaces, with private file systems for
/run/netns and for temporary files. The kernel takes all of it away with that process (links, namespaces, files and
every process that was started inside), and the process goes when whoever started the benchmarks goes, however it ends.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from integration.cluster.cache import clusters_root

_SCRATCH = "COIL_BENCH_SCRATCH"
NETNS_FOLDER = Path("/run/netns")
# Of RFC 5737: they lead nowhere.
UPLINK_ADDRESS = "192.0.2.10"
_GATEWAY_ADDRESS = "192.0.2.1"


class RoomError(Exception):
    """What is to be measured would touch the machine, and there is no room."""


def room_obstacle() -> str:
    """Why there can be no room on this machine, as one sentence; "" when nothing is in the way."""
    if os.geteuid() != 0:
        return "network namespaces need root: run it as root"
    missing = [program for program in ("setpriv", "unshare", "mount", "ip") if shutil.which(program) is None]
    if missing:
        return f"there is no {', '.join(missing)} here: install util-linux and iproute2"
    return ""


def inside_room() -> bool:
    return _SCRATCH in os.environ


def require_room() -> None:
    """Raises RoomError unless this process is inside."""
    if not inside_room():
        raise RoomError(room_obstacle() or "this process did not enter the room")


def run_in_room(arguments: Sequence[str]) -> int:
    """Run `python -m integration.bench ARGUMENTS` again, inside, to its end; gives its exit code.

    SIGINT reaches the process inside by itself (it is in the same process group) and is left to it. SIGTERM ends the
    room at once; so does the death of this process.
    """
    with TemporaryDirectory(prefix="coil-bench-") as scratch:
        command = [
            *("setpriv", "--pdeathsig", "KILL", "--"),
            *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"),
            *(sys.executable, "-m", "integration.bench", *arguments),
        ]
        environment = {**os.environ, _SCRATCH: scratch, "TMPDIR": scratch}
        with subprocess.Popen(command, env=environment) as process:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda _signal, _frame: process.kill())
            return process.wait()


def furnish_room() -> None:
    """What a host has from its boot: a network with a way out, and places to write. Once, first thing inside."""
    for folder in (NETNS_FOLDER, Path(os.environ[_SCRATCH]), clusters_root()):
        folder.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", "mode=0755", "coil-bench", str(folder))
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", "uplink", "type", "veth", "peer", "name", "world")
    _run("ip", "link", "set", "world", "up")
    _run("ip", "link", "set", "uplink", "up")
    _run("ip", "address", "add", f"{UPLINK_ADDRESS}/24", "dev", "uplink")
    _run("ip", "route", "add", "default", "via", _GATEWAY_ADDRESS)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=30)
