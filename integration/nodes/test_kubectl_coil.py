"""`kubectl coil` in clusters that are not as usual: one node cut off, IPv6 before IPv4, and no IPv4 at all."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from integration.cluster.node import Node
from integration.kubectl_plugin import ask_coil, collect_sysdump
from integration.nodes.coil_cluster import DEFAULT_POOL, CoilCluster, Families
from integration.patience import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(3600)]

USUAL = "10s"
"""How long a user waits for a node that does not answer, if not told otherwise."""


@contextmanager
def disconnected(coil: CoilCluster, node: Node) -> Iterator[None]:
    """Nothing reaches the node until the block ends; the cluster has noticed when it begins."""

    def is_ready() -> bool:
        [state] = [each["status"] for each in conditions(coil, node) if each["type"] == "Ready"]
        return bool(state == "True")

    drop = "chain c { type filter hook prerouting priority raw; iifname eth0 drop; }"
    coil.kernel(node).run("nft", f"add table inet cut {{ {drop}; }}")
    try:
        wait_until(lambda: not is_ready(), what=f"{node.name} is not Ready")
        yield
    finally:
        coil.kernel(node).run("nft", "delete table inet cut")
        coil.cluster.wait_ready()
        coil.release.wait_rolled_out()


def conditions(coil: CoilCluster, node: Node) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = coil.read("node", node.name)["status"]["conditions"]
    return found


def test_a_node_that_is_cut_off(coil: CoilCluster, tmp_path: Path) -> None:
    """What is known without it is told, with its name for the rest, and within bounds."""
    here, away = coil.nodes
    kubeconfig = coil.plane.admin_kubeconfig
    with coil.room() as room:
        # Nobody evicts them, however long it takes.
        stays = {"tolerations": [{"operator": "Exists"}]}
        room.run(room.pod("here", here, **stays), room.pod("away", away, **stays))
        addresses = {pod.name: pod.ipv4 for pod in room.pods()}
        wait_until(lambda: ask_coil(kubeconfig, "status")[1]["verdict"] == "fine", what="all is fine")
        with disconnected(coil, away):
            code, status = ask_coil(kubeconfig, "status", patience=USUAL)
            assert (code, status["verdict"]) == (1, "degraded")
            silent = next(each["message"] for each in status["findings"] if each["subject"] == "nodes")
            assert silent == f"these are not Ready, and are not asked: {away.name}"
            assert status["nodes"]["total"] == 2

            code, checked = ask_coil(kubeconfig, "ipam", "check", "--settle=1s", patience=USUAL)
            assert (code, checked["findings"], checked["nodes"]) == (1, [], 1)
            assert any(away.name in trouble for trouble in checked["troubles"])

            code, shown = ask_coil(kubeconfig, "ipam", "show", addresses["away"], patience=USUAL)
            assert any(away.name in trouble for trouble in shown["troubles"])

            for source, other in (("here", "away"), ("away", "here")):
                # The node's routes to the other are gone as soon as the routing daemon has noticed.
                pod = f"{room.namespace}/{source}"
                code, traced = ask_coil(kubeconfig, "trace", pod, addresses[other], patience=USUAL)
                assert any(away.name in told for told in (traced["reason"], *traced["doubts"])), traced

            done = collect_sysdump(kubeconfig, tmp_path / "dump.zip", patience=USUAL)
            assert done.returncode == 1, done.stderr
            with ZipFile(tmp_path / "dump.zip") as dump:
                index = json.loads(dump.read("index.json"))
                assert f"nodes/{here.name}.json" in dump.namelist()
            assert f"nodes/{away.name}.json" in {each["name"] for each in index["files"] if each["error"]}
        wait_until(lambda: ask_coil(kubeconfig, "status")[1]["verdict"] == "fine", what="all is fine again")


def test_connectivity_with_a_node_that_is_cut_off(coil: CoilCluster) -> None:
    with coil.room(pool=DEFAULT_POOL), disconnected(coil, coil.nodes[1]):
        code, document = ask_coil(coil.plane.admin_kubeconfig, "connectivity")
        outcomes = {each["outcome"] for each in document["checks"]}
        assert document["nodes"] == [coil.nodes[0].name]
        assert (code, "failed" in outcomes, document["leftOver"]) == (0, False, False), document


def test_where_ipv6_is_first_or_alone(other: CoilCluster, tmp_path: Path) -> None:
    """Kubernetes' lists of addresses begin with IPv6, Coil's results with IPv4."""
    kubeconfig, nodes = other.plane.admin_kubeconfig, other.nodes
    families = other.cluster.network.families.value
    with other.room(Families.DUAL if 4 in families else Families.IPV6, pool=DEFAULT_POOL) as room:
        room.run(*(room.pod(f"pod-{node.name}", node) for node in nodes))
        for pod in other.read("pods", f"--namespace={room.namespace}")["items"]:
            listed = [each["ip"] for each in pod["status"]["podIPs"]]
            assert tuple(ip_address(address).version for address in listed) == families
            assert pod["status"]["podIP"] == listed[0]
        assert room.find_gaps() == []
        pods = {pod.name: pod.ipv6 for pod in room.pods()}
        wait_until(lambda: ask_coil(kubeconfig, "status")[0] == 0, what="all is fine")
        wait_until(lambda: ask_coil(kubeconfig, "ipam", "check")[0] == 0, what="all agree on the addresses")
        first, second = pods
        code, shown = ask_coil(kubeconfig, "ipam", "show", str(pods[second]))
        assert (code, [each["name"] for each in shown["pods"]]) == (0, [second])
        code, traced = ask_coil(kubeconfig, "trace", f"{room.namespace}/{first}", str(pods[second]))
        assert (code, traced["verdict"], traced["sourceSeen"]) == (0, "delivered", pods[first])
        code, document = ask_coil(kubeconfig, "connectivity")
        assert [each for each in document["checks"] if each["outcome"] == "failed"] == []
        assert (code, {each["family"] for each in document["checks"]} - {""}) == (
            0,
            {f"IPv{each}" for each in families},
        )
        done = collect_sysdump(kubeconfig, tmp_path / "dump.zip")
        assert (done.returncode, done.stderr) == (0, "")
