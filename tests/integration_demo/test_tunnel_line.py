import pytest

from integration.demo.tunnel_line import TunnelLine, read_tunnel_lines

FLAGS = "qdisc noqueue state UNKNOWN mode DEFAULT group default qlen 1000"
TAIL = "addrgenmode eui64 numtxqueues 1 numrxqueues 1 gso_max_size 65536 "


def one_line(*parts: str) -> str:
    """As iproute2 6.1 prints it."""
    return r"\    ".join(parts) + TAIL


LO = one_line(f"1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 {FLAGS}", "link/loopback 00:00:00:00:00:00 promiscuity 0 ")
UPLINK = one_line(
    f"3: eth0@if12: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 {FLAGS}",
    "link/ether f6:71:4c:15:4a:a6 brd ff:ff:ff:ff:ff:ff link-netnsid 0 promiscuity 0  minmtu 68 maxmtu 65535 ",
    "veth ",
)
FALLBACK = one_line(
    f"4: tunl0@NONE: <NOARP> mtu 1480 {FLAGS}",
    "link/ipip 0.0.0.0 brd 0.0.0.0 promiscuity 0  allmulti 0 minmtu 0 maxmtu 0 ",
    "ipip any remote any local any ttl inherit nopmtudisc ",
)
CATCH_ALL = one_line(
    f"8: coil_ipip4@NONE: <NOARP> mtu 1480 {FLAGS}",
    "link/ipip 0.0.0.0 brd 0.0.0.0 promiscuity 0  allmulti 0 minmtu 0 maxmtu 0 ",
    "ipip external any remote any local any ttl inherit pmtudisc ",
)
IPV4 = one_line(
    f"6: fou4_c6137ffa@NONE: <POINTOPOINT,NOARP,UP,LOWER_UP> mtu 1472 {FLAGS}",
    "link/ipip 10.100.0.1 peer 198.19.127.250 promiscuity 0  allmulti 0 minmtu 0 maxmtu 0 ",
    "ipip any remote 198.19.127.250 local 10.100.0.1 ttl 225 pmtudisc encap fou encap-sport 5555 encap-dport 5555 "
    "noencap-csum noencap-csum6 noencap-remcsum ",
)
IPV6 = one_line(
    f"7: fou6_3b48e144@NONE: <POINTOPOINT,NOARP> mtu 1452 {FLAGS}",
    "link/tunnel6 fd10:100::1 peer fd5f:c011::f4d4 permaddr a24c:dcad:8edf:: promiscuity 0  minmtu 68 maxmtu 65527 ",
    "ip6tnl any remote fd5f:c011::f4d4 local fd10:100::1 hoplimit 225 encaplimit none tclass 0x00 flowlabel 0x00000 "
    "encap fou encap-sport auto encap-dport 5555 noencap-csum encap-csum6 noencap-remcsum ",
)


def test_only_tunnels_to_a_peer_are_shown_by_name_with_where_they_lead() -> None:
    found = read_tunnel_lines("\n".join([LO, FALLBACK, CATCH_ALL, IPV6, UPLINK, IPV4, ""]))
    assert [str(tunnel) for tunnel in found] == [
        "fou4_c6137ffa  mtu 1472  ipip remote 198.19.127.250 ttl 225 encap fou encap-sport 5555 encap-dport 5555",
        "fou6_3b48e144  mtu 1452  ip6tnl remote fd5f:c011::f4d4 hoplimit 225 encap fou encap-sport auto"
        " encap-dport 5555",
    ]
    assert [tunnel.remote for tunnel in found] == ["198.19.127.250", "fd5f:c011::f4d4"]


@pytest.mark.parametrize("printed", ["", LO, f"{LO}\n{FALLBACK}\n{CATCH_ALL}\n{UPLINK}"])
def test_a_pod_without_tunnels_shows_none(printed: str) -> None:
    assert read_tunnel_lines(printed) == []


def test_a_tunnel_without_a_remote_end_leads_nowhere() -> None:
    assert TunnelLine("fou4_c6137ffa", 1472, "ipip ttl 225").remote == ""
