"""Leaving: the nodes are cleaned up, the release goes, and the pods that run keep their network. Last of its folder."""

import json

import pytest

from coil.runtime.settings import EIP_LEASE_NAMESPACE
from integration.cluster.node_config import CNI_BIN_DIR, CNI_CONF_DIR
from integration.nodes.coil_cluster import CoilCluster
from integration.nodes.talk import Talk, kernels

MESH = "egress.vxlan"

pytestmark = pytest.mark.cluster


def test_a_cleanup_and_the_end_of_the_release_leave_running_pods_alone(coil: CoilCluster) -> None:
    # Nobody is left who could take its pods down.
    talk = Talk.begin(coil.make_room())
    assert all(coil.kernel(node).link(MESH) for node in coil.nodes)
    before = kernels(coil)
    with talk.unbroken():
        coil.release.upgrade({"cleanup.enabled": True})
        coil.release.wait_rolled_out("daemonset/coil-cleanup")
        for node in coil.nodes:
            assert "coil" not in node.run(["ls", str(CNI_BIN_DIR), str(CNI_CONF_DIR)])
            assert coil.kernel(node).link(MESH) is None
        coil.release.uninstall()
    assert kernels(coil) == before
    assert talk.find_gaps() == []
    kinds = "deployments,daemonsets,services,serviceaccounts,configmaps,roles,rolebindings"
    left = json.loads(coil.programs.kubectl("get", kinds, "--output=json"))["items"]
    assert [item["metadata"]["name"] for item in left if item["metadata"]["name"].startswith("coil")] == []
    cluster_wide = "clusterroles,clusterrolebindings,validatingwebhookconfigurations,mutatingwebhookconfigurations"
    left = coil.read(cluster_wide)["items"]
    assert [item["metadata"]["name"] for item in left if item["metadata"]["name"].startswith("coil")] == []
    # The objects stay, and whoever installs again goes on with them.
    assert [item["metadata"]["name"] for item in coil.read("addresspools")["items"]] == [talk.room.pool]
    assert coil.read("namespace", EIP_LEASE_NAMESPACE)["status"]["phase"] == "Active"
