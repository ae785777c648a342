"""The VPC of the tests against what is known of AWS's (VPC User Guide), so that it is not its author's opinion."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Network

import pytest

from integration.aws import administrator
from integration.aws.ec2_state import Interface
from integration.aws.instance import Instance
from integration.aws.metadata_service import MetadataService
from integration.aws.strict_ec2 import StrictEc2
from integration.aws.talk import ask, is_silent, resolve, shout
from integration.aws.vpc import METADATA, Vpc
from integration.aws.vpc_plan import INTERNET6
from integration.cluster.network import Network
from integration.cluster.workspace import Workspace
from integration.egress.capture import Capture
from integration.kernel_state import KernelState
from integration.netns.netns import call_inside

pytestmark = pytest.mark.kernel

TYPE = "m5.large"
SECONDARY = "10.1.0.201"


class World:
    """Two instances in one subnet and a third one in another; `first` has a second interface with an address of its
    own and a secondary one, both configured by hand.
    """

    def __init__(self, workspace: Workspace, network: Network, ec2: StrictEc2, vpc: Vpc) -> None:
        self.ec2 = ec2
        self.network = network
        self.vpc = vpc
        self.subnet = ec2.subnet("10.1.0.0/24")
        subnets = [self.subnet, self.subnet, ec2.subnet("10.1.1.0/24")]
        self.first, self.second, self.other = (
            Instance(workspace, vpc, ec2, instance=ec2.launch(TYPE, subnet), name=f"i{index}")
            for index, subnet in enumerate(subnets)
        )
        self.extra = administrator.attach(ec2, self.first.id, self.subnet, device=1, addresses=(SECONDARY,))
        run = self.first.namespaces.run
        run("ip", "link", "set", "eth1", "up")
        run("ip", "route", "add", "10.1.0.1", "dev", "eth1", "table", "77")
        run("ip", "route", "add", "default", "via", "10.1.0.1", "dev", "eth1", "table", "77")
        vpc.wait_up(self.extra)
        self.own(SECONDARY)

    def own(self, address: str) -> None:
        """Have the first instance use an address of its second interface as it must."""
        self.first.namespaces.run("ip", "address", "add", f"{address}/32", "dev", "lo")
        self.first.namespaces.run("ip", "rule", "add", "from", address, "table", "77")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with Workspace.create() as workspace, StrictEc2.start() as ec2:
        administrator.open_vpc(ec2)
        network = Network.create(workspace)
        with Vpc.up(workspace, network, ec2) as vpc:
            yield World(workspace, network, ec2, vpc)


class TestDelivery:
    def test_neighbours_and_other_subnets_see_each_others_own_addresses(self, world: World) -> None:
        for other in (world.second, world.other):
            assert ask(world.first.host, other.host, str(other.primary)) == str(world.first.primary)

    def test_a_secondary_address_is_delivered_by_the_interface_that_has_it(self, world: World) -> None:
        with Capture(world.first.namespaces.net, "eth1") as second, Capture(world.first.namespaces.net) as first:
            assert ask(world.other.host, world.first.host, SECONDARY) == str(world.other.primary)
            question = second.wait_for(lambda packet: packet.destination == SECONDARY, what="the question")
            second.wait_for(lambda packet: packet.source == SECONDARY, what="the answer")
        assert question.ttl == 63
        assert not first.select(lambda packet: SECONDARY in (packet.source, packet.destination))

    def test_what_is_delivered_follows_ec2_at_once(self, world: World) -> None:
        address = "10.1.0.202"
        world.own(address)
        assert is_silent(world.other.host, world.first.host, address)
        administrator.assign(world.ec2, world.extra, address)
        with Capture(world.first.namespaces.net, "eth1") as captured:
            ask(world.second.host, world.first.host, address)
        assert captured.select(lambda packet: packet.destination == address)
        administrator.unassign(world.ec2, world.extra, address)
        assert is_silent(world.other.host, world.first.host, address)

    def test_prefixes_are_delivered_whole(self, world: World) -> None:
        with world.ec2.change() as backend:
            backend.enis[world.extra].ipv4_prefixes = [{"Ipv4Prefix": "10.1.0.96/28"}]
        world.own("10.1.0.100")
        assert ask(world.other.host, world.first.host, "10.1.0.100") == str(world.other.primary)

    def test_a_link_comes_and_goes_with_its_attachment(self, world: World) -> None:
        kernel = KernelState(str(world.second.namespaces.net))
        assert kernel.link("eth2") is None
        made = administrator.attach(world.ec2, world.second.id, world.subnet, device=2)
        link = kernel.link("eth2")
        assert link is not None
        mac = world.second.interfaces[-1].mac
        assert (link["address"], link["mtu"], link["operstate"]) == (mac, 9001, "DOWN")
        administrator.detach(world.ec2, made)
        assert kernel.link("eth2") is None

    def test_an_instance_finds_its_interfaces_again_after_a_reboot(self, world: World) -> None:
        before = world.other.interfaces
        world.other.stop()
        world.other.start()
        assert world.other.interfaces == before
        assert ask(world.first.host, world.other.host, str(world.other.primary)) == str(world.first.primary)


class TestRefusal:
    def test_a_source_that_is_not_the_interfaces_is_dropped(self, world: World) -> None:
        """The secondary address by the primary interface, as a node sends it that has its rules wrong."""
        world.first.namespaces.run("ip", "rule", "add", "priority", "1", "from", SECONDARY, "table", "main")
        try:
            assert is_silent(world.first.host, world.second.host, str(world.second.primary), source=SECONDARY)
        finally:
            world.first.namespaces.run("ip", "rule", "delete", "priority", "1")
        spoofed = [record for record in world.vpc.flows() if record.action == "spoofed"]
        primary = world.first.interfaces[0].id
        assert {(record.interface, str(record.source)) for record in spoofed} == {(primary, SECONDARY)}
        assert ask(world.first.host, world.second.host, str(world.second.primary), source=SECONDARY) == SECONDARY

    def test_groups_of_the_receiver_decide_and_answers_need_none(self, world: World) -> None:
        closed = administrator.make_group(world.ec2, "closed")
        own = world.second.interfaces[0].id
        address = str(world.second.primary)
        with restored_groups(world, own):
            administrator.set_groups(world.ec2, own, closed)
            assert is_silent(world.first.host, world.second.host, address)
            # The other one's group lets in its members only.
            assert is_silent(world.second.host, world.first.host, str(world.first.primary))
            administrator.allow(world.ec2, administrator.default_group(world.ec2), source_group=closed)
            assert ask(world.second.host, world.first.host, str(world.first.primary)) == address
            administrator.allow(world.ec2, closed, protocol="udp", port=4000, network="10.1.0.0/16")
            assert is_silent(world.first.host, world.second.host, address), "another port"
        rejected = [record for record in world.vpc.flows() if record.action == "rejected"]
        assert {record.interface for record in rejected} == {own, world.first.interfaces[0].id}
        assert {record.protocol for record in rejected} == {"udp"}

    def test_an_address_that_nobody_has_is_silence(self, world: World) -> None:
        with Capture(world.first.namespaces.net) as captured:
            ask(world.first.host, world.second.host, world.second.primary)
            shout(world.first.host, "10.1.1.222")
            captured.wait_for(lambda packet: packet.destination == "10.1.1.222", what="the packet")
        assert not captured.select(lambda packet: packet.protocol == 1)


class TestOutside:
    def test_the_internet_knows_primary_addresses_only(self, world: World) -> None:
        address = "203.0.113.10"
        assert ask(world.first.host, world.vpc.internet, address) == str(world.first.primary)
        assert is_silent(world.first.host, world.vpc.internet, address, source=SECONDARY)

    def test_what_comes_from_the_internet_needs_a_permission(self, world: World) -> None:
        address = str(world.other.primary)
        assert is_silent(world.vpc.internet, world.other.host, address)
        group = administrator.make_group(world.ec2, "public")
        administrator.allow(world.ec2, group, protocol="udp", network="0.0.0.0/0", port=0)
        with restored_groups(world, world.other.interfaces[0].id):
            administrator.set_groups(world.ec2, world.other.interfaces[0].id, group)
            assert is_silent(world.vpc.internet, world.other.host, address), "another port"
            administrator.allow(world.ec2, group, network="0.0.0.0/0")
            assert ask(world.vpc.internet, world.other.host, address) == "203.0.113.10"

    def test_on_premises_knows_all_addresses(self, world: World) -> None:
        assert ask(world.first.host, world.vpc.on_premises, "192.168.50.10", source=SECONDARY) == SECONDARY

    def test_a_subnet_without_a_route_has_no_way_out(self, world: World) -> None:
        with world.ec2.change() as backend:
            table = backend.create_route_table(world.ec2.vpc())
            subnet = world.other.interfaces[0].subnet.id
            association = backend.associate_route_table(table.id, subnet_id=subnet)
        assert is_silent(world.other.host, world.vpc.internet, "203.0.113.10")
        assert ask(world.other.host, world.first.host, str(world.first.primary))
        with world.ec2.change() as backend:
            backend.disassociate_route_table(association)
        assert ask(world.other.host, world.vpc.internet, "203.0.113.10") == str(world.other.primary)

    def test_the_resolver_answers_whoever_asks(self, world: World) -> None:
        for source in (str(world.first.primary), SECONDARY):
            assert resolve(world.first.host, world.vpc.resolver, source=source) == source

    def test_the_metadata_service_knows_who_asks(self, world: World) -> None:
        with MetadataService(world.ec2, netns=world.vpc.router.net, address=str(METADATA), port=80):
            for instance in (world.first, world.other):
                kernel = KernelState(str(instance.namespaces.net))
                url = f"http://{METADATA}/latest"
                token = kernel.run(
                    *("curl", "--silent", "--noproxy", "*", "-X", "PUT", f"{url}/api/token"),
                    *("-H", "X-aws-ec2-metadata-token-ttl-seconds: 60"),
                )
                said = kernel.run(
                    *("curl", "--silent", "--noproxy", "*", f"{url}/meta-data/instance-id"),
                    *("-H", f"X-aws-ec2-metadata-token: {token}"),
                )
                assert said == instance.id


class TestIpv6:
    def test_own_addresses_and_prefixes_are_delivered_inside_and_from_the_internet(self, world: World) -> None:
        cidr = administrator.open_ipv6(world.ec2)
        first, other = (each.interfaces[0].id for each in (world.first, world.other))
        address, prefix = cidr[0x10], IPv6Network((cidr[1 << 64], 80))
        administrator.give_ipv6(world.ec2, first, str(address))
        with world.ec2.change() as backend:
            backend.enis[other].ipv6_prefixes = [{"Ipv6Prefix": str(prefix)}]
        administrator.allow(world.ec2, administrator.default_group(world.ec2), network6="2001:db8:113::/64")
        for instance, own in ((world.first, address), (world.other, prefix[7])):
            instance.namespaces.run("ip", "address", "add", f"{own}/128", "dev", "eth0", "nodad")
        assert ask(world.first.host, world.other.host, prefix[7]) == str(address)
        assert ask(world.other.host, world.vpc.internet, INTERNET6) == str(prefix[7])
        assert ask(world.vpc.internet, world.other.host, prefix[7]) == str(INTERNET6)
        with Capture(world.vpc.router.net, world.vpc.port(other)) as captured:
            world.other.namespaces.run("ip", "address", "add", f"{cidr[0x99]}/128", "dev", "eth0", "nodad")
            assert is_silent(world.other.host, world.first.host, address, source=cidr[0x99])
            assert captured.select(lambda packet: packet.source == str(cidr[0x99])), "it was sent"


def test_flow_records_have_both_ends(world: World) -> None:
    ask(world.first.host, world.other.host, str(world.other.primary))
    ends = (str(world.first.primary), str(world.other.primary))
    found = [record for record in world.vpc.flows() if record.action == "accepted"]
    for interface in (world.first.interfaces[0].id, world.other.interfaces[0].id):
        mine = [record for record in found if record.interface == interface]
        assert {(str(record.source), str(record.destination)) for record in mine} >= {ends, ends[::-1]}


def test_what_the_router_cannot_translate_reaches_no_server(world: World) -> None:
    """The end of a connection that it has forgotten: a server would answer, by the default route of this machine."""
    server = str(world.network.host4)
    with Capture(world.vpc.router.net) as captured, world.first.host.socket(socket.SOCK_DGRAM, server) as asking:
        with call_inside(world.first.host.netns, open_raw) as raw:
            raw.sendto(end_of_connection(str(world.first.primary), server), (server, 0))
        asking.sendto(b"anybody?", (server, 9))
        captured.wait_for(lambda packet: packet.destination == server and packet.port == 9, what="what came after it")
    sources = {packet.source for packet in captured.packets() if packet.destination == server}
    assert sources == {str(world.network.node_addresses(0)[0])}


def open_raw() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)


def end_of_connection(source: str, destination: str) -> bytes:
    """A TCP segment with FIN and ACK, as it follows the header of IPv4."""
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    segment = struct.pack("!HHIIBBHHH", 40000, 6443, 1, 1, 5 << 4, 0x11, 1024, 0, 0)
    words = struct.unpack("!16H", addresses + struct.pack("!HH", socket.IPPROTO_TCP, len(segment)) + segment)
    checksum = ~(sum(words) % 0xFFFF) & 0xFFFF
    return segment[:16] + struct.pack("!H", checksum) + segment[18:]


@contextmanager
def restored_groups(world: World, interface: str) -> Iterator[None]:
    [before] = [each.groups for each in all_interfaces(world) if each.id == interface]
    try:
        yield
    finally:
        administrator.set_groups(world.ec2, interface, *before)


def all_interfaces(world: World) -> list[Interface]:
    return [each for instance in (world.first, world.second, world.other) for each in instance.interfaces]
