"""Who has to go for a new connection."""

from dataclasses import dataclass
from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from coil.admission.connection_table import ConnectionTable
from coil.kernel.family import IPAddress


@dataclass(eq=False)
class Open:
    source: IPAddress
    idle_since: float | None
    used: bool = False


def connection(host: int, since: float | None, *, used: bool = False) -> Open:
    return Open(ip_address(f"10.0.0.{host}"), since, used)


def test_the_oldest_idle_one_goes() -> None:
    table: ConnectionTable[Open] = ConnectionTable(limit=3, share=3)
    at_work, second, third = connection(1, None), connection(2, 2.0), connection(3, 1.0)
    assert [table.add(each) for each in (at_work, second, third)] == [None, None, None]
    assert table.add(connection(4, 3.0)) is third
    assert table.add(connection(5, 4.0)) is second


def test_one_that_never_had_a_request_goes_first() -> None:
    table: ConnectionTable[Open] = ConnectionTable(limit=2, share=2)
    used, silent = connection(1, 0.0, used=True), connection(2, 1.0)
    table.add(used)
    table.add(silent)
    assert table.add(connection(3, 2.0, used=True)) is silent
    assert table.add(connection(4, 3.0, used=True)) is used


def test_a_source_with_more_than_its_share_loses_its_own() -> None:
    table: ConnectionTable[Open] = ConnectionTable(limit=4, share=2)
    old = connection(1, 0.0)
    crowd = [connection(9, 1.0 + number) for number in range(5)]
    assert [table.add(each) for each in (old, *crowd)] == [None, None, None, None, crowd[0], crowd[1]]
    newcomer = connection(2, 10.0)
    assert table.add(newcomer) is crowd[2]
    assert table.add(connection(3, 11.0)) is old  # now nobody has more than two


def test_where_all_are_at_work_the_new_one_goes() -> None:
    table: ConnectionTable[Open] = ConnectionTable(limit=2, share=2)
    table.add(connection(1, None))
    table.add(connection(1, None))
    newcomer = connection(2, 1.0)
    assert table.add(newcomer) is newcomer
    assert table.add(connection(3, 2.0)) is not newcomer


def test_one_that_is_gone_makes_room() -> None:
    table: ConnectionTable[Open] = ConnectionTable(limit=1, share=1)
    first = connection(1, 1.0)
    table.add(first)
    table.remove(first)
    table.remove(first)
    assert table.add(connection(2, 2.0)) is None


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=60), st.integers(1, 8), st.integers(1, 4))
def test_there_are_never_more_and_nobody_at_work_goes(arrivals: list[tuple[int, bool]], limit: int, share: int) -> None:
    table: ConnectionTable[Open] = ConnectionTable(limit=limit, share=share)
    there: set[Open] = set()
    for moment, (host, works) in enumerate(arrivals):
        newcomer = connection(host, float(moment))
        victim = table.add(newcomer)
        there.add(newcomer)
        if victim is not None:
            assert victim.idle_since is not None
            there.remove(victim)
        if works and newcomer in there:
            newcomer.idle_since = None
        assert len(there) <= limit
