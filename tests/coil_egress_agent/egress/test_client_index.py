"""Which addresses clients hold, against a plain list of who has what."""

from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from coil.crd.egress_client_slice import EgressClientSlice
from coil.crd.meta import ObjectMeta
from coil.kernel.family import IPAddress
from coil_egress_agent.egress.client_index import ClientIndex

OWN = (ip_address("10.0.0.9"), ip_address("fd00::9"))
ADDRESSES = st.sets(st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1", "10.0.0.9", "fd00::9", "nonsense"]))
STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | ADDRESSES), max_size=20)


def make_slice(node: str, addresses: set[str]) -> EgressClientSlice:
    metadata = ObjectMeta(namespace="net", name=f"world-{node}", uid=f"slice-{node}")
    return EgressClientSlice(metadata=metadata, node_name=node, addresses=tuple(sorted(addresses)), pods=len(addresses))


def usable(addresses: set[str]) -> set[IPAddress]:
    return {ip_address(text) for text in addresses - {"nonsense"}} - set(OWN)


@given(STEPS)
def test_an_address_is_wanted_while_somebody_has_it(steps: list[tuple[str, set[str] | None]]) -> None:
    index = ClientIndex(OWN)
    slices: dict[str, EgressClientSlice] = {}
    having: dict[str, set[IPAddress]] = {}
    for name, addresses in steps:
        before = set().union(*having.values())
        old = slices.pop(name, None)
        having.pop(name, None)
        if addresses is not None:
            slices[name] = make_slice(name, addresses)
            having[name] = usable(addresses)
        after = set().union(*having.values())
        if old is None and addresses is None:
            continue
        assert index.observe(old, slices.get(name)) == before ^ after
        assert set(index) == after
        assert len(index) == len(after)
        assert all((address in index) == (address in after) for address in [*before, *after, *OWN])
        assert index.pods == sum(slice_.pods for slice_ in slices.values())


def test_only_families_that_the_router_has() -> None:
    index = ClientIndex(OWN[:1])
    assert index.observe(None, make_slice("a", {"10.0.0.1", "fd00::1"})) == {ip_address("10.0.0.1")}


def test_what_cannot_be_a_clients_address_is_left_out() -> None:
    index = ClientIndex(OWN)
    told = make_slice("n1", {"10.0.0.1", "10.0.0.9", "nonsense", "169.254.1.1"})
    assert index.observe(None, told) == {ip_address("10.0.0.1")}
