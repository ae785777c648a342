"""A source whose listeners live no longer than a term."""

from collections.abc import Callable

from coil.reconcile.term import TermSource

Change = tuple[str | None, str | None]


class Follower:
    def __init__(self) -> None:
        self.objects = ["a"]
        self.tell: Callable[[str | None, str | None], None] = lambda old, new: None

    def items(self) -> list[str]:
        return self.objects

    def subscribe(self, listener: Callable[[str | None, str | None], None], /) -> None:
        self.tell = listener


def test_a_term_hears_of_what_is_there_and_of_what_changes_until_it_ends() -> None:
    follower = Follower()
    source = TermSource(follower)
    follower.tell(None, "nobody listens")
    first: list[Change] = []
    second: list[Change] = []
    source.subscribe(lambda old, new: first.append((old, new)))
    follower.tell("a", "b")
    source.end_term()
    follower.tell("b", None)
    source.subscribe(lambda old, new: second.append((old, new)))
    assert first == [(None, "a"), ("a", "b")]
    assert second == [(None, "a")]
