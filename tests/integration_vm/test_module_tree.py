"""Which modules go into the guest, and in which order they are loaded."""

from integration.vm.module_tree import module_name, parse_dependencies

DEP = """\
kernel/net/ipv4/ipip.ko: kernel/net/ipv4/tunnel4.ko kernel/net/ipv4/ip_tunnel.ko
kernel/net/ipv4/tunnel4.ko:
kernel/net/ipv4/ip_tunnel.ko:
kernel/net/ipv4/fou.ko: kernel/net/ipv6/ip6_udp_tunnel.ko kernel/net/ipv4/udp_tunnel.ko
kernel/net/ipv4/udp_tunnel.ko:
kernel/net/ipv6/ip6_udp_tunnel.ko:
kernel/net/ipv6/fou6.ko: kernel/net/ipv4/fou.ko kernel/net/ipv6/ip6_udp_tunnel.ko kernel/net/ipv4/udp_tunnel.ko
kernel/drivers/net/net-failover.ko.xz:
"""


def test_a_module_comes_after_all_that_it_needs() -> None:
    paths = parse_dependencies(DEP).paths(["fou6", "ipip", "fou"])
    names = [module_name(path) for path in paths]
    assert sorted(names) == ["fou", "fou6", "ip6_udp_tunnel", "ip_tunnel", "ipip", "tunnel4", "udp_tunnel"]
    assert names.index("udp_tunnel") < names.index("fou") < names.index("fou6")
    assert names.index("tunnel4") < names.index("ipip")


def test_what_is_built_in_is_left_out() -> None:
    assert parse_dependencies(DEP).paths(["vfat", "tunnel4"]) == ["kernel/net/ipv4/tunnel4.ko"]


def test_a_name_may_be_written_either_way() -> None:
    tree = parse_dependencies(DEP)
    assert tree.paths(["net-failover"]) == tree.paths(["net_failover"]) == ["kernel/drivers/net/net-failover.ko.xz"]


def test_all_below_a_folder() -> None:
    assert parse_dependencies(DEP).below(["kernel/net/ipv6"]) == ["ip6_udp_tunnel", "fou6"]
    assert parse_dependencies(DEP).below(["kernel/net/ip"]) == []
