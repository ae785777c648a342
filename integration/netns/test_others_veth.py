"""A pod's veth that Coil's Go program has made: looked at, and found whole for as long as packets reach the pod."""

import secrets
from collections.abc import Callable
from ipaddress import ip_address

import pytest

from coil.kernel.link import LinkName
from coil.netlink.error import PodCheckError
from coil.netlink.host import HostNetwork
from coil.podnet.host_link import PodAlias
from coil.podnet.plan import PodPlan, plan_pod
from integration.go_coild import Generation, GoCoild, GoPod
from integration.kernel_state import KernelState
from integration.netns.netns import Netns

NODE = ("192.0.2.7", "2001:db8::7")
ADDRESSES = {"ipv4": "10.64.0.1", "ipv6": "fd64::1"}


@pytest.fixture(params=list(Generation), ids=lambda generation: generation.value)
def attach(request: pytest.FixtureRequest, network: HostNetwork, host: Netns, pod: Netns) -> Callable[..., PodPlan]:
    """Wires `pod` as Go's coild does it; returns what ours would have planned."""

    def wire(*families: str) -> PodPlan:
        go = GoCoild(KernelState(str(host.path)), request.param, NODE)
        lengths = {"ipv4": 32, "ipv6": 128}
        wired = GoPod(
            pool="default",
            container_id=secrets.token_hex(32),
            addresses=tuple(f"{ADDRESSES[family]}/{lengths[family]}" for family in families),
        )
        go.attach(wired, KernelState(str(pod.path)))
        found = {family: ip_address(ADDRESSES[family]) for family in families}
        return plan_pod(
            host_name=LinkName(wired.host_link),
            ifname=LinkName("eth0"),
            alias=PodAlias("default", wired.container_id, "eth0"),
            addresses=(found.get("ipv4"), found.get("ipv6")),  # type: ignore[arg-type]
            mtu=1400,
        )

    return wire


@pytest.mark.parametrize("families", [("ipv4", "ipv6"), ("ipv4",), ("ipv6",)])
async def test_it_is_as_good_as_ours(
    network: HostNetwork, host: Netns, pod: Netns, attach: Callable[..., PodPlan], families: tuple[str, ...]
) -> None:
    """Once it is marked as a pod's, as coild does where it takes pods over."""
    plan = attach(*families)
    with pytest.raises(PodCheckError, match="group"):
        await network.check_pod(plan, pod.path)
    await network.mark_pod_links([plan.host.name])
    before = host.state(), pod.state()
    await network.check_pod(plan, pod.path)
    assert (host.state(), pod.state()) == before


@pytest.mark.parametrize(
    ("where", "damage", "missing"),
    [
        ("host", "route del 10.64.0.1 table 116", "route 10.64.0.1/32 dev {name} table 116 proto 30"),
        ("host", "-6 route del fd64::1 table 116", "route fd64::1/128 dev {name} table 116 proto 30"),
        ("host", "link set {name} alias other", "alias 'COIL:default:"),
        ("host", "link set {name} down", "link {name} up"),
        ("host", "link del {name}", "link {name}; link eth0 (in the pod)"),
        ("pod", "address del fd64::1/128 dev eth0", "address fd64::1/128 on eth0 (in the pod)"),
        ("pod", "address del 10.64.0.1/32 dev eth0", "address 10.64.0.1/32 on eth0 (in the pod)"),
        ("pod", "link set eth0 down", "link eth0 up (in the pod)"),
    ],
)
async def test_what_a_packet_needs_is_missed(
    network: HostNetwork,
    host: Netns,
    pod: Netns,
    attach: Callable[..., PodPlan],
    where: str,
    damage: str,
    missing: str,
) -> None:
    plan = attach("ipv4", "ipv6")
    words = {"name": plan.host.name}
    (host if where == "host" else pod).ip(*damage.format(**words).split())
    with pytest.raises(PodCheckError) as caught:
        await network.check_pod(plan, pod.path)
    assert missing.format(**words) in str(caught.value)
