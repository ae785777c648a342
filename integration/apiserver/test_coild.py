"""coild on a real node against a real API server: what ADD, CHECK and DEL leave in the kernel.

The oracle is iproute2, and coil.md section 3 is the law: names, alias, gateway, tables, rules, sysctls.
"""

import re
from collections.abc import Callable, Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from coil.kernel.link import LinkGroup
from integration.apiserver.bare_node import NAME, UPLINK_MTU
from integration.apiserver.conftest import SUBNETS, CoilNode
from integration.apiserver.conversation import converse
from integration.apiserver.runtime import CniError, addresses_of
from integration.apiserver.sandbox import Sandbox
from integration.kernel_state import EXPORT_TABLE, POD_TABLE
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

MakePod = Callable[[str], Sandbox]

GATEWAYS = {4: "169.254.1.1", 6: "fe80::1"}
HOST_ADDRESSES = {4: "169.254.1.1/32", 6: "fe80::1/64"}
EVERYWHERE = {4: "0.0.0.0/0", 6: "::/0"}
LENGTHS = {4: 32, 6: 128}
PROTOCOL = "30"


def families(namespace: str) -> list[int]:
    """The IP versions of the pods of a namespace, in the order of a result."""
    return [ip_network(subnet).version for subnet in SUBNETS[namespace].values()]


def host_name(result: dict[str, Any]) -> str:
    name: str = result["interfaces"][1]["name"]
    return name


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0"])
@pytest.mark.parametrize("namespace", ["dual", "v4", "v6"])
def test_the_result_is_what_the_version_wants(coil: CoilNode, make_pod: MakePod, namespace: str, version: str) -> None:
    pod = make_pod(namespace)
    result = coil.runtime.add(pod, version=version)

    host, eth0 = coil.node.kernel.link(host_name(result)), pod.kernel.link("eth0")
    assert host is not None
    assert eth0 is not None
    addresses = [ip_address(address) for address in addresses_of(result)]
    assert [address.version for address in addresses] == families(namespace)
    for address, subnet in zip(addresses, SUBNETS[namespace].values(), strict=True):
        assert address in ip_network(subnet)
    assert result == {
        "cniVersion": version,
        "interfaces": [
            {"name": "eth0", "mac": eth0["address"], "sandbox": pod.netns},
            {"name": host_name(result), "mac": host["address"]},
        ],
        "ips": [
            {
                "interface": 0,
                "address": f"{address}/{LENGTHS[address.version]}",
                "gateway": GATEWAYS[address.version],
                **({"version": str(address.version)} if version.startswith("0.") else {}),
            }
            for address in addresses
        ],
        "routes": [{"dst": EVERYWHERE[family], "gw": GATEWAYS[family]} for family in families(namespace)],
        "dns": {},
    }


@pytest.mark.parametrize("namespace", ["dual", "v4", "v6"])
def test_the_pods_end(coil: CoilNode, make_pod: MakePod, namespace: str) -> None:
    pod = make_pod(namespace)
    result = coil.runtime.add(pod)

    eth0 = pod.kernel.link("eth0")
    assert eth0 is not None
    assert (eth0["mtu"], eth0["operstate"]) == (UPLINK_MTU, "UP")
    found = [address for link in pod.kernel.ip("address", "show", "dev", "eth0") for address in link["addr_info"]]
    addresses = [address for address in found if address["scope"] == "global"]
    given = {f"{address['local']}/{address['prefixlen']}" for address in addresses}
    assert given == {entry["address"] for entry in result["ips"]}
    assert not [address for address in addresses if address.get("tentative") or address.get("dadfailed")]
    routes = pod.kernel.routes("main")
    host = coil.node.kernel.link(host_name(result))
    assert host is not None
    for family in families(namespace):
        gateway = GATEWAYS[family]
        [to_gateway] = [route for route in routes if route["dst"] == gateway]
        assert (to_gateway["dev"], to_gateway.get("gateway")) == ("eth0", None)
        [default] = [route for route in routes if route["dst"] == "default" and route["gateway"] == gateway]
        assert default["dev"] == "eth0"
        [neighbour] = [entry for entry in pod.kernel.ip("neigh", "show", "dev", "eth0") if entry["dst"] == gateway]
        assert (neighbour["lladdr"], neighbour["state"]) == (host["address"], ["PERMANENT"])
    assert len([route for route in routes if route["dst"] == "default"]) == len(families(namespace))


@pytest.mark.parametrize("namespace", ["dual", "v4", "v6"])
def test_the_hosts_end(coil: CoilNode, make_pod: MakePod, namespace: str) -> None:
    pod = make_pod(namespace)
    result = coil.runtime.add(pod)
    name, kernel = host_name(result), coil.node.kernel

    assert re.fullmatch(r"veth[0-9a-f]{8}", name)
    link = kernel.link(name)
    assert link is not None
    pool = "default" if namespace == "dual" else namespace
    assert link["ifalias"] == f"COIL:{pool}:{pod.container_id}:eth0"
    assert (link["linkinfo"]["info_kind"], link["mtu"], link["operstate"]) == ("veth", UPLINK_MTU, "UP")
    assert int(link["group"]) == LinkGroup.POD
    on_host = {
        f"{address['local']}/{address['prefixlen']}"
        for entry in kernel.ip("address", "show", "dev", name)
        for address in entry["addr_info"]
    }
    assert {HOST_ADDRESSES[family] for family in families(namespace)} <= on_host
    assert on_host - set(HOST_ADDRESSES.values()) == set() or namespace == "v4"  # there the kernel's fe80:: stays
    assert kernel.sysctl(f"net/ipv6/conf/{name}/accept_ra") == "0"
    for address in map(ip_address, addresses_of(result)):
        [route] = [route for route in kernel.routes(POD_TABLE) if route["dst"] == str(address)]
        assert (route["dev"], route["protocol"], route.get("gateway")) == (name, PROTOCOL, None)


def test_the_nodes_rules_and_sysctls(coil: CoilNode) -> None:
    kernel = coil.node.kernel
    for family in ("-4", "-6"):
        [rule] = [rule for rule in kernel.ip(family, "rule", "show") if rule["priority"] == 2000]
        assert (rule["src"], rule["table"]) == ("all", POD_TABLE)
    assert kernel.sysctl("net/ipv4/ip_forward") == "1"
    assert kernel.sysctl("net/ipv6/conf/all/forwarding") == "1"


@pytest.mark.parametrize("namespace", ["dual", "v4", "v6"])
def test_a_block_is_this_nodes_and_exported(coil: CoilNode, make_pod: MakePod, namespace: str) -> None:
    result = coil.runtime.add(make_pod(namespace))

    pool = "default" if namespace == "dual" else namespace
    family, address = next(iter(SUBNETS[namespace])), ip_address(addresses_of(result)[0])
    blocks = [block for block in coil.node.objects("addressblocks") if family in block]
    [block] = [block for block in blocks if address in ip_network(block[family])]
    labels = block["metadata"]["labels"]
    assert (labels["coil.cybozu.com/pool"], labels["coil.cybozu.com/node"]) == (pool, NAME)
    exported = {route["dst"]: route for route in coil.node.kernel.routes(EXPORT_TABLE)}
    for family, given in zip(SUBNETS[namespace], addresses_of(result), strict=True):
        assert ip_address(given) in ip_network(block[family])
        route = exported[block[family]]
        assert (route["dev"], route["protocol"]) == ("lo", PROTOCOL)


def test_pods_of_one_node_and_the_node_reach_each_other(coil: CoilNode, make_pod: MakePod) -> None:
    here, there = make_pod("dual"), make_pod("dual")
    results = [coil.runtime.add(here), coil.runtime.add(there)]
    node = coil.node.kernel

    for family, on_node in ((0, coil.node.ipv4), (1, coil.node.ipv6)):
        first, second = (addresses_of(result)[family] for result in results)
        assert converse(here.kernel.netns, there.kernel.netns, second) == first
        assert converse(there.kernel.netns, here.kernel.netns, first) == second
        assert converse(here.kernel.netns, node.netns, str(on_node)) == first
        assert converse(node.netns, here.kernel.netns, first) in {str(on_node), "169.254.1.1"}


def test_an_add_that_is_repeated_gets_the_same_answer(coil: CoilNode, make_pod: MakePod) -> None:
    pod = make_pod("dual")
    result = coil.runtime.add(pod)
    assert coil.runtime.add(pod) == result
    assert list(coil.node.kernel.pod_links().values()).count(host_name(result)) == 1


def test_check_succeeds_until_something_is_missing(coil: CoilNode, make_pod: MakePod) -> None:
    pod = make_pod("dual")
    result = coil.runtime.add(pod)
    coil.runtime.check(pod, cached=result)
    coil.runtime.check(pod, version="0.4.0", cached=coil.runtime.add(pod, version="0.4.0"))
    with pytest.raises(CniError) as old:
        coil.runtime.check(pod, version="0.3.1")
    assert old.value.code == 1

    pod.kernel.run("ip", "-6", "route", "delete", "default")
    with pytest.raises(CniError, match="::/0"):
        coil.runtime.check(pod, cached=result)


@pytest.mark.parametrize("namespace", ["dual", "v4", "v6"])
def test_del_leaves_nothing_and_may_be_repeated(coil: CoilNode, make_pod: MakePod, namespace: str) -> None:
    pod, other = make_pod(namespace), make_pod(namespace)
    result, kept = coil.runtime.add(pod), coil.runtime.add(other)
    coil.runtime.delete(pod, cached=result)

    assert pod.kernel.link("eth0") is None
    assert coil.node.kernel.link(host_name(result)) is None
    assert not coil.node.kernel.destinations(POD_TABLE).keys() & {entry["address"] for entry in result["ips"]}
    assert coil.node.kernel.link(host_name(kept)) is not None
    with pytest.raises(CniError):
        coil.runtime.check(pod, cached=result)
    coil.runtime.delete(pod, cached=result)
    coil.runtime.check(other, cached=kept)


def test_a_freed_address_is_not_the_next_pods(coil: CoilNode, make_pod: MakePod) -> None:
    pod, other, holder = make_pod("dual"), make_pod("dual"), make_pod("dual")
    coil.runtime.add(holder)
    freed = addresses_of(coil.runtime.add(pod))
    coil.runtime.delete(pod)
    assert not set(freed) & set(addresses_of(coil.runtime.add(other)))


def test_a_pod_whose_namespace_went_first_is_deleted(coil: CoilNode, make_pod: MakePod) -> None:
    pod = make_pod("v4")
    result = coil.runtime.add(pod)
    pod.destroy()
    coil.runtime.delete(pod, cached=result)
    assert coil.node.kernel.link(host_name(result)) is None


def test_the_log_tells_of_each_call_under_the_names_of_coil_v2(coil: CoilNode, make_pod: MakePod) -> None:
    pod, stranger = make_pod("dual"), make_pod("astray")
    coil.runtime.delete(pod, cached=coil.runtime.add(pod))
    with pytest.raises(CniError):
        coil.runtime.add(stranger)

    def calls(of: Sandbox) -> list[tuple[str, str, str]]:
        return [
            (line["grpc.method"], line["grpc.code"], line["level"])
            for line in coil.coild.process.entries()
            if line["event"] == "finished call"
            and line.get("grpc.request.container_id") == of.container_id
            and line["grpc.request.pod.namespace"] == of.pod.namespace
            and line["grpc.request.pod.name"] == of.pod.name
        ]

    # A line is written when the plugin has its answer.
    wait_until(lambda: calls(pod) == [("Add", "OK", "info"), ("Del", "OK", "info")], what="the calls of a pod")
    wait_until(lambda: calls(stranger) == [("Add", "Unavailable", "warning")], what="the call that was refused")


# --- with the node's own addresses as gateways


@pytest.fixture
def node_ip(coil: CoilNode) -> Iterator[None]:
    """coild runs with `--host-address=node-ip` as long as the test does."""
    coil.coild.kill()
    other = coil.node.start_coild("--cooling=500ms", "--host-address=node-ip")
    try:
        yield
    finally:
        other.kill()
        coil.coild.ensure_running()


@pytest.mark.usefixtures("node_ip")
def test_the_node_speaks_to_its_pods_as_its_internal_ip(coil: CoilNode, make_pod: MakePod) -> None:
    """Cilium allows what comes from the node, the kubelet's probes for example, by that address."""
    before = coil.node.kernel.global_addresses()
    own = [str(coil.node.ipv4), str(coil.node.ipv6)]
    pod, other = make_pod("dual"), make_pod("dual")
    result, others = coil.runtime.add(pod), coil.runtime.add(other)
    assert [entry["gateway"] for entry in result["ips"]] == own
    assert [route["gw"] for route in result["routes"]] == own
    on_host = {
        f"{address['local']}/{address['prefixlen']}"
        for entry in coil.node.kernel.ip("address", "show", "dev", host_name(result))
        for address in entry["addr_info"]
    }
    assert on_host == {f"{own[0]}/32", f"{own[1]}/128", "fe80::1/64"}
    for address, elsewhere, on_node in zip(addresses_of(result), addresses_of(others), own, strict=True):
        assert converse(coil.node.kernel.netns, pod.kernel.netns, address) == on_node
        assert converse(pod.kernel.netns, coil.node.kernel.netns, on_node) == address
        assert converse(pod.kernel.netns, other.kernel.netns, elsewhere) == address
    coil.runtime.check(pod, cached=result)
    for sandbox in (pod, other):
        coil.runtime.delete(sandbox)
    assert coil.node.kernel.global_addresses() == before
