"""kube-proxy on a node, in whichever mode, and whether it has done its work for a Service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import IPv4Address, ip_address
from pathlib import Path

from integration.cluster.command_line import Version
from integration.cluster.node_config import render_proxy
from integration.cluster.process import Process
from integration.cluster.proxy_mode import ProxyMode, choose_proxy_mode
from integration.kernel_state import KernelState
from integration.patience import wait_until
from integration.service import Service

_PATIENCE = 240.0
"""Seconds for what takes one natively."""
_PAUSE = 0.5
"""Seconds between two looks that start a program."""


class KubeProxy:
    """Runs from the beginning; `spawn` starts a program, by name and command, on the node that `kernel` is of."""

    def __init__(
        self,
        node: str,
        *,
        program: Path,
        version: Version,
        kubeconfig: Path,
        folder: Path,
        bind_address: str,
        kernel: KernelState,
        spawn: Callable[[str, Sequence[str]], Process],
    ) -> None:
        self._node = node
        self._kernel = kernel
        self._mode = choose_proxy_mode(version)
        config = folder / "kube-proxy.yaml"
        config.write_text(
            render_proxy(
                node,
                kubeconfig=kubeconfig,
                mode=self._mode,
                feature_gates=version.feature_gates,
                bind_address=bind_address,
                # With iptables it starts some twenty programs for each, a third of the guest's processor time.
                min_sync_period="1s" if self._mode is ProxyMode.NFTABLES else "4s",
            )
        )
        start = partial(spawn, f"kube-proxy-{node}", [str(program), f"--config={config}"])
        self.service = Service(start, ready=lambda: True)

    def wait_programmed(self, address: str) -> None:
        """Return when a Service's address leads to an endpoint."""
        self._wait(address, programmed=True)

    def wait_withdrawn(self, address: str) -> None:
        """Return when a Service's address leads to no endpoint."""
        self._wait(address, programmed=False)

    def _wait(self, address: str, *, programmed: bool) -> None:
        is_programmed = {
            ProxyMode.NFTABLES: self._has_element,
            ProxyMode.IPTABLES: self._has_rule,
            ProxyMode.IPVS: self._has_server,
        }[self._mode]
        wait_until(
            lambda: is_programmed(address) is programmed,
            what=f"kube-proxy on {self._node} has {'programmed' if programmed else 'withdrawn'} {address}",
            timeout=_PATIENCE,
            pause=_PAUSE,
        )

    def _has_element(self, address: str) -> bool:
        family = "ip" if isinstance(ip_address(address), IPv4Address) else "ip6"
        if "kube-proxy" not in self._kernel.run("nft", "list", "tables", family):
            return False
        return f"{address} . " in self._kernel.run("nft", "list", "map", family, "kube-proxy", "service-ips")

    def _has_rule(self, address: str) -> bool:
        save = "iptables-save" if isinstance(ip_address(address), IPv4Address) else "ip6tables-save"
        lines = self._kernel.run(save, "-t", "nat").splitlines()
        return any(f" {address}/" in line and "-j KUBE-SVC" in line for line in lines)

    def _has_server(self, address: str) -> bool:
        return has_real_server(self._kernel.run("cat", "/proc/net/ip_vs", check=False), address)


def has_real_server(table: str, address: str) -> bool:
    """Whether a virtual server of IPVS with the address has a real one: ``table`` is /proc/net/ip_vs.

    A line `TCP  C6130001:01BB rr` or `TCP  [fd5f:c011:0000:…]:01BB rr` for each virtual server, then one that begins
    with `->` for each of its real ones.
    """
    wanted = ip_address(address)
    text = f"{int(wanted):08X}:" if isinstance(wanted, IPv4Address) else f"[{wanted.exploded}]:"
    found = False
    for words in (line.split() for line in table.splitlines()):
        if words[:1] == ["->"]:
            if found:
                return True
        else:
            found = len(words) > 1 and words[1].startswith(text)
    return False
