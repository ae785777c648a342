"""The store against the obvious model: a dict, searched from end to end."""

from collections.abc import Iterable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coil.crd.meta import ObjectMeta
from coil.reconcile.store import Store
from tests.coil.kube.thing import Thing

_KEYS = st.sampled_from(["a", "b", "c", "d"])
_LABELS = st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["1", "2"]))


def _by_label(thing: Thing) -> Iterable[str]:
    return [f"{name}={value}" for name, value in thing.metadata.labels.items()]


def _by_size(thing: Thing) -> Iterable[str]:
    return (str(thing.size),) * 2  # named twice, found once


_INDEXERS = {"label": _by_label, "size": _by_size}
_VALUES = {"label": ["x=1", "x=2", "y=1", "y=2", "z=1"], "size": ["0", "1", "2", "3"]}


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store: Store[Thing] = Store(_INDEXERS)
        self.model: dict[str, Thing] = {}

    @rule(key=_KEYS, labels=_LABELS, size=st.integers(0, 2))
    def put(self, key: str, labels: dict[str, str], size: int) -> None:
        thing = Thing(metadata=ObjectMeta(name=key, labels=labels), size=size)
        assert self.store.put(key, thing) == self.model.get(key)
        self.model[key] = thing

    @rule(key=_KEYS)
    def remove(self, key: str) -> None:
        assert self.store.remove(key) == self.model.pop(key, None)

    @invariant()
    def agrees(self) -> None:
        assert len(self.store) == len(self.model)
        assert list(self.store) == list(self.model)
        assert self.store.items() == list(self.model.values())
        for index, values in _VALUES.items():
            for value in values:
                found = self.store.by_index(index, value)
                expected = [thing for thing in self.model.values() if value in _INDEXERS[index](thing)]
                assert sorted(map(str, found)) == sorted(map(str, expected))

    @invariant()
    def an_empty_store_holds_nothing(self) -> None:
        if not self.model:
            assert self.store._indexes == {"label": {}, "size": {}}


TestStore = StoreMachine.TestCase


def test_an_unknown_index_is_a_mistake() -> None:
    store: Store[Thing] = Store({})
    with pytest.raises(KeyError):
        store.by_index("pool", "x")


def test_an_indexer_that_raises_changes_nothing() -> None:
    def by_colour(thing: Thing) -> list[str]:
        if thing.colour == "bad":
            raise ValueError("no such colour")
        return [thing.colour]

    store: Store[Thing] = Store({"size": _by_size, "colour": by_colour})
    good = Thing(metadata=ObjectMeta(name="a"), size=1, colour="red")
    store.put("a", good)
    with pytest.raises(ValueError, match="no such colour"):
        store.put("a", Thing(metadata=ObjectMeta(name="a"), size=2, colour="bad"))
    assert store.items() == store.by_index("size", "1") == store.by_index("colour", "red") == [good]
    assert store.by_index("size", "2") == []
