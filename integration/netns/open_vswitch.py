"""Debian's Open vSwitch in a network namespace: its database, and the switch. Its datapath is in user space, but in the
virtual machine (session `kernel_guest`) it is the kernel's.
"""

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coild.neutron.openvswitch import INTEGRATION_BRIDGE
from integration.cluster.process import Process
from integration.netns.netns import Netns
from integration.patience import wait_until
from integration.vm.run import INSIDE_VARIABLE

_SCHEMA: Final = "/usr/share/openvswitch/vswitch.ovsschema"
_SWITCH: Final = "/usr/lib/openvswitch-switch/ovs-vswitchd"
_SECONDS: Final = 60.0


@dataclass(slots=True)
class OpenVSwitch:
    """A node's, without and with Neutron's agent: it makes the integration bridge. Make one with `start`."""

    netns: Netns
    folder: Path
    name: str
    processes: ExitStack
    switch: Process

    @property
    def socket(self) -> Path:
        return self.folder / "db.sock"

    @classmethod
    @contextmanager
    def start(cls, netns: Netns, folder: Path) -> Iterator["OpenVSwitch"]:
        """Both programs running, with the integration bridge. They end with the context."""
        database = folder / "conf.db"
        _run("ovsdb-tool", "create", str(database), _SCHEMA)
        with ExitStack() as stack:
            name = f"ovs-{secrets.token_hex(4)}"
            made = cls(netns, folder, name, stack, _spawn(stack, netns, folder, name, "ovsdb-server", _server(folder)))
            wait_until(made.socket.is_socket, what="the database of Open vSwitch")
            made.vsctl("--no-wait", "init")
            made.start_switch()
            made.vsctl(
                *("add-br", INTEGRATION_BRIDGE, "--", "set", "bridge", INTEGRATION_BRIDGE),
                f"datapath_type={datapath_type()}",
            )
            yield made

    def start_switch(self) -> None:
        """The switch itself, if it is not running."""
        self.switch = _spawn(self.processes, self.netns, self.folder, self.name, "ovs-vswitchd", _vswitchd(self.folder))

    def pause(self) -> None:
        """From now on the switch takes nothing up."""
        self.switch.send_signal(signal.SIGSTOP)

    def vsctl(self, *arguments: str) -> str:
        """What `ovs-vsctl` prints."""
        return _run("ovs-vsctl", f"--db=unix:{self.socket}", f"--timeout={_SECONDS:.0f}", *arguments)

    def ports(self) -> set[str]:
        """Names of the ports of the integration bridge."""
        return set(self.vsctl("list-ports", INTEGRATION_BRIDGE).split())

    def rows(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """The rows of a table; maps are pairs behind the word `map` (RFC 7047, section 5.1)."""
        said = json.loads(self.vsctl("--format=json", f"--columns={','.join(columns)}", "list", table))
        return [dict(zip(said["headings"], row, strict=True)) for row in said["data"]]


def datapath_type() -> str:
    """The kernel's in the virtual machine, whose kernel has one and is nobody else's; else that in user space."""
    if INSIDE_VARIABLE not in os.environ:
        return "netdev"
    _run("modprobe", "openvswitch")
    return "system"


def _server(folder: Path) -> Sequence[str]:
    return ("ovsdb-server", str(folder / "conf.db"), f"--remote=punix:{folder}/db.sock", f"--unixctl={folder}/db.ctl")


def _vswitchd(folder: Path) -> Sequence[str]:
    return (_SWITCH, f"unix:{folder}/db.sock", f"--unixctl={folder}/switch.ctl")


def _spawn(stack: ExitStack, netns: Netns, folder: Path, cluster: str, name: str, argv: Sequence[str]) -> Process:
    inside = ["nsenter", f"--net={netns.path}", "--", *argv]
    process = Process(name, inside, cluster=cluster, log=folder / f"{name}.log", env={"OVS_RUNDIR": str(folder)})

    def stop() -> None:
        process.send_signal(signal.SIGCONT)
        process.stop()

    stack.callback(stop)
    return process


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=2 * _SECONDS, check=False)
    assert done.returncode == 0, (argv, done.stderr)
    return done.stdout
