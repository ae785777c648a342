"""What iproute2 prints becomes lines, and two inventories are told apart by them."""

from typing import Any

from integration.soak.inventory import differences, parse_inventory, without_namespaces

LINKS: list[dict[str, Any]] = [
    {"ifname": "lo", "addr_info": [{"local": "127.0.0.1", "prefixlen": 8}]},
    {"ifname": "veth1", "ifalias": "COIL:default:c:eth0", "addr_info": []},
]
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("-4", {"dst": "default", "dev": "eth0"}),
    ("-6", {"type": "unreachable", "dst": "fd00::/64", "table": "119", "expires": 7}),
]
RULES: list[tuple[str, dict[str, Any]]] = [("-4", {"priority": 2000, "table": "116"})]
INVENTORY = parse_inventory(links=LINKS, routes=ROUTES, rules=RULES, namespaces=[{"nsid": 3}])


def test_everything_is_a_line() -> None:
    assert {
        "link lo",
        "address 127.0.0.1/8 lo",
        "link veth1 COIL:default:c:eth0",
        "route -4 unicast default eth0 main",
        "route -6 unreachable fd00::/64  119",
        "rule -4 2000 116",
        "namespace 3",
    } == INVENTORY


def test_what_is_left_and_what_is_gone_is_told() -> None:
    now = (INVENTORY - {"link lo"}) | {"link veth2"}
    assert differences(now, INVENTORY) == ["left behind: link veth2", "gone: link lo"]
    assert differences(INVENTORY, INVENTORY) == []


def test_ids_of_namespaces_can_be_left_out() -> None:
    assert INVENTORY - without_namespaces(INVENTORY) == {"namespace 3"}
