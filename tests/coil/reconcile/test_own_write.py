"""Own writes stand in for a cache that is late, and never for one that is not."""

import msgspec

from coil.crd.egress_tunnel import EgressTunnel
from coil.crd.meta import ObjectMeta
from coil.reconcile.own_write import OwnWrites


def tunnel(version: str) -> EgressTunnel:
    return EgressTunnel(metadata=ObjectMeta(name="n1", uid="u", resource_version=version))


def test_a_chain_of_writes_is_believed_until_the_cache_has_the_last() -> None:
    writes: OwnWrites[EgressTunnel] = OwnWrites()
    first, second, third = tunnel("1"), tunnel("2"), tunnel("3")
    writes.note(first, second, cached=first)
    writes.note(second, third, cached=first)
    assert writes.latest("n1", first) is third
    writes.observe(first, second)
    assert writes.latest("n1", second) is third
    writes.observe(second, third)
    assert writes.unseen() == []


def test_news_that_nobody_here_has_written_count() -> None:
    writes: OwnWrites[EgressTunnel] = OwnWrites()
    writes.note(tunnel("1"), tunnel("2"), cached=tunnel("1"))
    other = tunnel("7")
    writes.observe(tunnel("1"), other)
    assert writes.latest("n1", other) is other


def test_an_answer_that_the_cache_has_overtaken_is_forgotten() -> None:
    writes: OwnWrites[EgressTunnel] = OwnWrites()
    later = tunnel("7")
    writes.note(tunnel("1"), tunnel("2"), cached=later)
    assert writes.latest("n1", later) is later


def test_what_was_made_here_is_there_until_it_is_deleted() -> None:
    writes: OwnWrites[EgressTunnel] = OwnWrites()
    made = tunnel("2")
    writes.note(None, made, cached=None)
    assert writes.latest("n1", None) is made
    writes.observe(msgspec.structs.replace(made), None)
    assert writes.latest("n1", None) is None


def test_a_write_that_changed_nothing_is_nothing() -> None:
    writes: OwnWrites[EgressTunnel] = OwnWrites()
    writes.note(tunnel("1"), tunnel("1"), cached=tunnel("1"))
    assert writes.unseen() == []
