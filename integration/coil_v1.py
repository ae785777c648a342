"""The state that Coil v1 leaves on a node, written down as `ip` commands, so that the programs here can be started on
it. Nothing here is made by our own code. v1 knows IPv4 only.

Where each fact comes from (cybozu-go/coil, folder v1 of its release 2.0):

* cni/add.go: the pair is made in the pod's namespace and its host's end moved out; it has the name that Calico would
  give it with the prefix `veth`, no alias, hardware addresses drawn by the kernel and the kernel's MTU. Each host's end
  has 169.254.1.1/32, with the scope of the link. The route to the pod is in the main table.
* Its netlink library gives a route without a protocol the protocol boot (3), as `ip` does.
* coild/routing.go: a node's blocks are in table 119, with the protocol 30 and the scope universe, and lead to lo.
* installer/install.go: the node forwards both families. There are no rules.
* cni/conf.go, docs/coil.md: the plugin's configuration names coild's URL.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from integration.apiserver.sandbox import Sandbox
from integration.go_coild import await_usable
from integration.kernel_state import EXPORT_TABLE, KernelState

CONFIGURATION: Mapping[str, Any] = {"type": "coil", "coild": "http://127.0.0.1:9383"}
_GATEWAY = "169.254.1.1"


@dataclass(frozen=True, slots=True)
class V1Node:
    """What v1's installer, coild and plugin do to the node `kernel`."""

    kernel: KernelState

    def start(self, *blocks: str) -> None:
        """The node's part: it forwards, and announces its blocks."""
        self.kernel.run("busybox", "sysctl", "-q", "-w", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        for block in blocks:
            route = ["dev", "lo", "table", EXPORT_TABLE, "proto", "30", "scope", "global"]
            self.kernel.run("ip", "route", "add", block, *route)

    def attach(self, sandbox: Sandbox, address: str) -> dict[str, Any]:
        """Wire the pod of the sandbox; returns the result that the runtime has cached."""
        inside, name = sandbox.kernel, host_link(sandbox)
        inside.run("ip", "link", "add", "name", "eth0", "type", "veth", "peer", "name", name)
        # Duplicate address detection takes seconds; without its probes it has the same outcome at once.
        inside.run(
            "busybox", "sysctl", "-q", "-w", *(f"net.ipv6.conf.{link}.dad_transmits=0" for link in ("eth0", name))
        )
        inside.run("ip", "link", "set", "eth0", "up")
        inside.run("ip", "link", "set", name, "netns", self.kernel.netns)
        self.kernel.run("ip", "link", "set", name, "up")
        self.kernel.run("ip", "address", "add", f"{_GATEWAY}/32", "dev", name, "scope", "link")
        self.kernel.run("ip", "route", "add", address, "dev", name, "scope", "link")
        inside.run("ip", "address", "add", f"{address}/32", "dev", "eth0")
        inside.run("ip", "route", "add", _GATEWAY, "dev", "eth0", "scope", "link")
        inside.run("ip", "route", "add", "default", "via", _GATEWAY)
        await_usable(inside, "eth0")
        await_usable(self.kernel, name)
        host, eth0 = self.kernel.link(name), inside.link("eth0")
        assert host is not None
        assert eth0 is not None
        return {
            "cniVersion": "0.3.1",
            "interfaces": [
                {"name": name, "mac": host["address"]},
                {"name": "eth0", "mac": eth0["address"], "sandbox": sandbox.netns},
            ],
            "ips": [{"version": "4", "interface": 1, "address": f"{address}/32"}],
            "dns": {},
        }


def host_link(sandbox: Sandbox) -> str:
    """The name of the host's end of the pod's veth."""
    text = f"{sandbox.pod.namespace}.{sandbox.pod.name}"
    return f"veth{hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:11]}"
