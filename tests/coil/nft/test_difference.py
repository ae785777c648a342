"""From any table to any other, in one transaction that keeps what it can."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.nft_table import DataType, NftSet, NftTable
from coil.nft.difference import plan_commands
from tests.coil.nft.memory_nft import MemoryNft
from tests.coil.nft.tables import EIP, IPV4_ROUTER, MOVED_ROUTER, ROUTER, nft_tables


def sync(nft: MemoryNft, wanted: NftTable) -> list[dict[str, Any]]:
    commands = plan_commands(nft.listing(wanted.name), wanted)
    if commands:
        nft.run(commands)
    return commands


def test_sets_that_stay_keep_their_elements() -> None:
    nft = MemoryNft()
    sync(nft, EIP)
    nft.put("class4", "10.0.0.1", "1:1")
    nft.put("nodes", "02:00:00:00:00:01", 7)
    otherwise = replace(EIP, sets=tuple(of_marks(entry) if entry.name == "class4" else entry for entry in EIP.sets))
    sync(nft, otherwise)
    assert nft.elements("class4") == []
    assert nft.elements("nodes") == [["02:00:00:00:00:01", 7]]
    assert sync(nft, otherwise) == []


def of_marks(entry: NftSet) -> NftSet:
    return replace(entry, value=DataType.MARK)


def figures(nft: MemoryNft, table: NftTable) -> dict[str, int]:
    return {
        entry["counter"]["name"]: entry["counter"]["packets"] for entry in nft.listing(table.name) if "counter" in entry
    }


@given(st.lists(nft_tables(), min_size=1, max_size=5))
def test_it_converges_and_then_stays(tables: list[NftTable]) -> None:
    nft, fresh = MemoryNft(), MemoryNft()
    for wanted in [*tables, tables[0]]:
        kept = {counter: count for counter, count in figures(nft, wanted).items() if counter in wanted.counters}
        sync(nft, wanted)
        assert sync(nft, wanted) == []
        assert kept.items() <= figures(nft, wanted).items()
        for counter in wanted.counters:
            nft.count(counter)
    sync(fresh, tables[0])
    assert essence(nft, tables[0]) == essence(fresh, tables[0])


def essence(nft: MemoryNft, table: NftTable) -> dict[str, Any]:
    """What is there, without handles and figures; the order counts among the rules of one chain only."""
    found: dict[str, Any] = {}
    for entry in nft.listing(table.name):
        for kind, content in entry.items():
            place = f"{kind} {content.get('chain', content.get('name'))}"
            kept = {key: value for key, value in content.items() if key not in {"handle", "packets", "bytes"}}
            found.setdefault(place, []).append(kept)
    return found


def test_a_new_table() -> None:
    commands = plan_commands([], ROUTER)
    verbs = [next(iter(command)) for command in commands]
    kinds = [next(iter(command["add"])) for command in commands]
    assert set(verbs) == {"add"}
    assert kinds == ["table", *["counter"] * 8, *["set"] * 4, *["chain"] * 4, *["rule"] * 17]


def test_counters_outlive_a_change_of_the_rules() -> None:
    nft = MemoryNft()
    sync(nft, ROUTER)
    nft.count("invalid_ipv4")
    commands = sync(nft, MOVED_ROUTER)
    counted = figures(nft, ROUTER)
    assert counted.pop("invalid_ipv4") == 1
    assert (len(counted), set(counted.values())) == (7, {0})
    assert {next(iter(command)) for command in commands} == {"flush", "add"}


def test_what_is_no_longer_wanted_goes() -> None:
    nft = MemoryNft()
    sync(nft, ROUTER)
    sync(nft, IPV4_ROUTER)
    assert figures(nft, ROUTER).keys() == set(IPV4_ROUTER.counters)
