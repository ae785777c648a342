"""To whom a VXLAN port of a bridge sends copies."""

from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.bridge import FLOOD_MAC, FloodChanges, diff_flood
from coil.kernel.link import LinkName, MacAddress
from coil.kernel.vxlan import ForwardingEntry

DEVICE = LinkName("cnx-1")
PEERS = [ip_address(f"192.0.2.{number}") for number in range(1, 5)]
MACS = [FLOOD_MAC, MacAddress("fa:16:3e:00:00:01"), MacAddress("fa:16:3e:00:00:02")]
entries = st.builds(ForwardingEntry, st.just(DEVICE), st.sampled_from(MACS), st.sampled_from(PEERS))


def test_what_was_learnt_from_a_node_goes_with_it() -> None:
    flooded, learnt = (ForwardingEntry(DEVICE, mac, PEERS[0]) for mac in MACS[:2])
    assert diff_flood(DEVICE, {flooded, learnt}, PEERS[1:2]) == FloodChanges(
        deletes=(flooded, learnt), adds=(ForwardingEntry(DEVICE, FLOOD_MAC, PEERS[1]),)
    )


@given(st.sets(entries), st.sets(st.sampled_from(PEERS)))
def test_the_changes_lead_to_exactly_the_peers(actual: set[ForwardingEntry], peers: set[object]) -> None:
    changes = diff_flood(DEVICE, actual, peers)  # type: ignore[arg-type]
    after = actual - set(changes.deletes) | set(changes.adds)
    assert {entry.remote for entry in after if entry.mac == FLOOD_MAC} == peers
    assert {entry.remote for entry in after} <= peers
    assert {entry for entry in actual if entry.remote in peers} <= after
    assert not diff_flood(DEVICE, after, peers)  # type: ignore[arg-type]
