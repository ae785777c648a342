"""What the chart does for pods that are ports in Neutron."""

from pathlib import Path
from typing import Any

import pytest

from coild.settings import AddressSourceName
from integration.access.right import chart_rights
from integration.helm.chart import render
from tests.integration_helm.everything import WITH_COILD, all_containers, names, pick, pod_spec, programs

VALUES: dict[str, Any] = {
    "neutron": {
        "vxlanPort": 7999,
        "bindingDirectory": "/opt/kuryr",
        "bindTimeout": "5s",
        "activeTimeout": "0s",
        "openvswitch": {"socketDirectory": "/run/openvswitch", "bridge": "br-pods"},
        "midonet": {"socketDirectory": "/run/midolman"},
        "stateDirectory": "/data/coil",
    }
}


def test_what_a_node_is_told_by_default() -> None:
    coild = programs(render(None, "neutron"))["coild"]
    assert coild.address_source is AddressSourceName.NEUTRON
    assert coild.neutron_binding_dir == Path("/usr/libexec/kuryr")
    assert (coild.neutron_bind_timeout, coild.neutron_active_timeout, coild.acquire_timeout) == (10, 30, 10)
    assert coild.neutron_journal == Path("/var/lib/coil/neutron.journal")
    assert coild.neutron_openvswitch_socket is coild.neutron_midolman_socket is None
    assert not coild.enable_egress


def test_every_value_reaches_the_node() -> None:
    coild = programs(render(VALUES, "neutron"))["coild"]
    assert coild.neutron_binding_dir == Path("/opt/kuryr")
    assert coild.neutron_vxlan_port == 7999
    assert (coild.neutron_bind_timeout, coild.neutron_active_timeout) == (5, 0)
    assert coild.neutron_journal == Path("/data/coil/neutron.journal")
    assert coild.neutron_openvswitch_socket == Path("/run/openvswitch/db.sock")
    assert coild.neutron_openvswitch_bridge == "br-pods"
    assert coild.neutron_midolman_socket == Path("/run/midolman/midolman.sock")


@pytest.mark.parametrize("values", [{}, VALUES])
def test_the_journal_and_the_executables_are_the_nodes(values: dict[str, Any]) -> None:
    coild = pick(render(values, "neutron"), "DaemonSet", "coild")
    settings = programs([coild])["coild"]
    mounts = {Path(each["mountPath"]): each for each in all_containers(coild)["coild"]["volumeMounts"]}
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod_spec(coild)["volumes"]}
    for folder, read_only in ((settings.neutron_journal.parent, False), (settings.neutron_binding_dir, True)):
        assert paths[mounts[folder]["name"]] == str(folder)
        assert mounts[folder].get("readOnly", False) == read_only
    for socket in (settings.neutron_openvswitch_socket, settings.neutron_midolman_socket):
        assert (socket is None) == (not values)
        if socket is not None:
            assert paths[mounts[socket.parent]["name"]] == str(socket.parent)


@pytest.mark.parametrize("profile", [name for name in WITH_COILD if name != "neutron"])
def test_other_nodes_know_nothing_of_it(profile: str) -> None:
    coild = pick(render(None, profile), "DaemonSet", "coild")
    assert "bindings" not in {volume["name"] for volume in pod_spec(coild)["volumes"]}
    assert not [argument for argument in all_containers(coild)["coild"]["args"] if "neutron" in argument]


def test_a_node_may_read_pods_and_nodes_and_write_events_and_nothing_else() -> None:
    rights = [right for right in chart_rights(render(None, "neutron")) if right.account == "coild"]
    assert {(right.verb, right.resource) for right in rights} == {
        ("get", "pods"),
        ("list", "pods"),
        ("watch", "pods"),
        ("list", "nodes"),
        ("watch", "nodes"),
        ("create", "events"),
        ("patch", "events"),
    }
    assert {*rights} <= {*chart_rights(render({"routeSync": {"enabled": True}}))}


def test_tenants_name_no_ports() -> None:
    """The policy that coild relies on is installed with it."""
    assert "coil-raven-port" in names(render(None, "neutron"), "ValidatingAdmissionPolicy")
