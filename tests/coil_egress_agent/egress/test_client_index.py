"""Which addresses clients hold, against a plain list of who has what."""

from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from coil.crd.builtin import Pod, PodIP, PodStatus
from coil.crd.egress_client_slice import EgressClientSlice
from coil.crd.meta import ObjectMeta
from coil.kernel.family import IPAddress
from coil_egress_agent.egress.client_index import ClientIndex

OWN = (ip_address("10.0.0.9"), ip_address("fd00::9"))
ADDRESSES = st.sets(st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1", "10.0.0.9", "fd00::9", "nonsense"]))
STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | ADDRESSES), max_size=20)


def make_pod(name: str, addresses: set[str]) -> Pod:
    ips = tuple(PodIP(ip=address) for address in sorted(addresses))
    return Pod(metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"), status=PodStatus(pod_ips=ips))


def usable(addresses: set[str]) -> set[IPAddress]:
    return {ip_address(text) for text in addresses - {"nonsense"}} - set(OWN)


@given(STEPS)
def test_an_address_is_wanted_while_somebody_has_it(steps: list[tuple[str, set[str] | None]]) -> None:
    index = ClientIndex(OWN)
    pods: dict[str, Pod] = {}
    having: dict[str, set[IPAddress]] = {}
    for name, addresses in steps:
        before = set().union(*having.values())
        old = pods.pop(name, None)
        having.pop(name, None)
        if addresses is not None:
            pods[name] = make_pod(name, addresses)
            having[name] = usable(addresses)
        after = set().union(*having.values())
        if old is None and addresses is None:
            continue
        assert index.observe(old, pods.get(name)) == before ^ after
        assert set(index) == after
        assert len(index) == len(after)
        assert all((address in index) == (address in after) for address in [*before, *after, *OWN])
        assert {pod.name: set(pod.addresses) for pod in index.pods} == having


def test_only_families_that_the_router_has() -> None:
    index = ClientIndex(OWN[:1])
    assert index.observe(None, make_pod("a", {"10.0.0.1", "fd00::1"})) == {ip_address("10.0.0.1")}


def make_slice(node: str, *addresses: str) -> EgressClientSlice:
    metadata = ObjectMeta(namespace="net", name=f"world-{node}", uid=f"slice-{node}")
    return EgressClientSlice(metadata=metadata, node_name=node, addresses=addresses)


def test_a_node_tells_an_address_before_its_pod_does() -> None:
    index = ClientIndex(OWN)
    first, second = ip_address("10.0.0.1"), ip_address("fd00::1")
    early = make_slice("n1", "10.0.0.1", "10.0.0.9", "nonsense", "169.254.1.1")
    assert index.observe_slice(None, early) == {first}
    later = make_slice("n1", "10.0.0.1", "fd00::1")
    assert index.observe_slice(early, later) == {second}
    pod = make_pod("a", {"10.0.0.1"})
    assert index.observe(None, pod) == set(), "it is wanted already"
    assert index.observe_slice(later, None) == {second}, "and the pod goes on having the other one"
    assert set(index) == {first}
    assert index.observe(pod, None) == {first}
    assert not index.pods
