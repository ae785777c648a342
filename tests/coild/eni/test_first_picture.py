"""What counts while EC2 has not answered."""

from dataclasses import replace
from ipaddress import IPv4Network

from coil.kernel.link import MacAddress
from coild.eni.first_picture import guess_interfaces
from tests.coild.eni.test_inventory import A, record, told
from tests.coild.eni.test_journal import CHECKPOINT

NOBODY = MacAddress("")


def test_without_a_journal_the_primary_interface_alone_is_known_to_be_the_nodes() -> None:
    """By its hardware address: the device number 0 is another's."""
    found = [told(record(0, A)), told(record(1, A))]
    [only] = guess_interfaces(found, None, primary=record(1).mac, version=4)
    assert (only.interface.id, only.is_primary, only.interface.ranges) == (record(1).id, True, frozenset({A}))


def test_while_nobody_has_named_the_primary_interface_nothing_is() -> None:
    found = [told(record(0, A)), told(record(1, A))]
    assert guess_interfaces(found, None, primary=NOBODY, version=4) == ()


def test_what_was_to_be_left_alone_still_is() -> None:
    [known, *_] = CHECKPOINT.interfaces
    checkpoint = replace(CHECKPOINT, interfaces=(replace(known, interface=replace(known.interface, managed=False)),))
    described = replace(told(record(1)), interface=known.interface.id, mac=known.interface.mac)
    [only] = guess_interfaces([described], checkpoint, primary=NOBODY, version=4)
    assert not only.interface.managed


def test_its_own_address_is_no_pods_whatever_the_order_in_which_metadata_name_it() -> None:
    [known, *_] = CHECKPOINT.interfaces
    interface = known.interface
    single = IPv4Network("10.0.0.77/32")
    checkpoint = replace(
        CHECKPOINT, interfaces=(replace(known, interface=replace(interface, ranges=frozenset({single}))),)
    )
    described = replace(
        told(record(0)),
        interface=interface.id,
        mac=interface.mac,
        local_ipv4s=(single.network_address, interface.primary),
    )
    [only] = guess_interfaces([described], checkpoint, primary=interface.mac, version=4)
    assert IPv4Network(interface.primary) not in only.interface.ranges
