"""Which packets of the node's pods are judged, and what the Node says of those that are dropped."""

from ipaddress import ip_address

from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.link import LinkName
from coild.model.attachment import Attachment
from coild.node.condition import describe_available, describe_dropped
from coild.node.pod_packets import plan_packets


def attachment(number: int, *addresses: str, link: LinkName | None) -> Attachment:
    key = AttachmentKey(ContainerId(f"c{number}"), "eth0")
    return Attachment(key=key, pod=None, addresses=tuple(map(ip_address, addresses)), link=link)


def test_one_pod_of_each_family_is_judged_in_both_directions() -> None:
    pods = [
        attachment(1, "10.1.0.7", link=None),
        attachment(2, "10.1.0.8", link=LinkName("veth2")),
        attachment(3, "10.1.0.9", "fd01::9", link=LinkName("veth3")),
    ]
    planned = [
        (what, packet.input, packet.output, str(packet.source or packet.destination))
        for what, packet in plan_packets(pods, LinkName("eth0")).items()
    ]
    assert sorted(planned) == [
        ("IPv4 from pods", "veth2", "eth0", "10.1.0.8"),
        ("IPv4 to pods", "eth0", "veth2", "10.1.0.8"),
        ("IPv6 from pods", "veth3", "eth0", "fd01::9"),
        ("IPv6 to pods", "eth0", "veth3", "fd01::9"),
    ]


def test_what_is_dropped_is_a_condition_of_the_node() -> None:
    reason = "IPv4 from pods: iptables (legacy) chain FORWARD: its policy drops it"
    told = describe_dropped([reason])
    assert (told.type, told.status, told.reason) == ("CoilPodTrafficDropped", True, "ForwardDropped")
    assert reason in told.message
    assert describe_dropped(()).status is False


def test_a_network_that_is_available_is_told_as_kubernetes_has_it() -> None:
    told = describe_available()
    assert (told.type, told.status) == ("NetworkUnavailable", False)
