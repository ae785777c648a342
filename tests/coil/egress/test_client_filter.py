"""What the table of egress clients holds, and that it is read back as it was meant."""

from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from coil.egress.client_filter import (
    CLIENTS,
    ROUTERS,
    parse_client_elements,
    plan_client_elements,
    plan_client_table,
)
from coil.kernel.family import Family
from coil.kernel.nft_element import SetName
from coil.kernel.nft_table import TableFamily

addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))


def test_every_element_is_for_a_set_of_the_table() -> None:
    table = plan_client_table(udp_port=5555)
    sets = {SetName(TableFamily.INET, table.name, entry.name) for entry in table.sets}
    assert sets == {*CLIENTS.values(), *ROUTERS.values()}


def test_a_client_has_routers_of_its_own_family() -> None:
    client = ip_address("10.1.0.7")
    elements = plan_client_elements({client: frozenset(map(ip_address, ("10.2.0.1", "fd00::1")))})
    assert elements == {
        CLIENTS[Family.IPV4]: {"10.1.0.7": None},
        ROUTERS[Family.IPV4]: {("10.1.0.7", "10.2.0.1"): None},
    }


def test_a_client_without_routers_is_a_client() -> None:
    client = ip_address("fd00::7")
    assert plan_client_elements({client: frozenset()}) == {CLIENTS[Family.IPV6]: {"fd00::7": None}}


def test_routers_of_what_is_no_client_are_left_out() -> None:
    assert parse_client_elements({ROUTERS[Family.IPV4]: {("10.1.0.7", "10.2.0.1"): None}}) == {}


@given(st.dictionaries(addresses, st.frozensets(addresses)))
def test_elements_are_read_back(peers: dict[object, frozenset[object]]) -> None:
    own = {
        client: frozenset(router for router in routers if router.version == client.version)  # type: ignore[attr-defined]
        for client, routers in peers.items()
    }
    assert parse_client_elements(plan_client_elements(peers)) == own  # type: ignore[arg-type]
