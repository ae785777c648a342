"""Numbers of policies, and of the lists of policies that concern sources, the *classes*.

A class is its first policy and the class of the others, so that tables can go from one policy to the next. Policies and
classes have numbers for as long as anything is of a class with them.

Invariant: the numbers follow from the names of what is in use, but for two names that would have one (`_allocate`), and
for policies that were given another number (`renumber`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2s
from typing import Final, TypeAlias

from coil.crd.egress_gateway import PolicyRef
from coil.eip.eip_set import ALONE, CLOSED_WORD, MOST_POLICIES, NEXT, POLICIES, number_word
from coil.eip.element_ledger import ElementLedger

PolicyList: TypeAlias = tuple[PolicyRef, ...]
"""In the order of precedence, at most MOST_POLICIES."""

CLOSED_REF: Final = PolicyRef(namespace="", name="")
"""Stands for the policies of a source beyond MOST_POLICIES. No policy is called so."""


def limit_policies(refs: Sequence[PolicyRef]) -> PolicyList:
    """All of them, or the first ones and what drops the rest."""
    if len(refs) <= MOST_POLICIES:
        return tuple(refs)
    return *refs[: MOST_POLICIES - 1], CLOSED_REF


@dataclass(slots=True)
class _Policy:
    number: int
    generation: int = 0
    classes: int = 0
    """Those that begin with it."""


@dataclass(slots=True)
class _Class:
    rest: int
    """The lower half of its word."""
    users: int = 0
    """Sources, and classes that end in it."""


class PolicyClasses:
    """Writes the elements of `NEXT` into the ledger. `touched` are policies that have got a number, another one, or
    none any more.
    """

    def __init__(self, ledger: ElementLedger) -> None:
        self._ledger = ledger
        self._policies: dict[PolicyRef, _Policy] = {}
        self._numbers: set[int] = {1}
        """Those in use; the first is that of `CLOSED_WORD`."""
        self._classes: dict[PolicyList, _Class] = {}
        self._rests: dict[PolicyRef, set[int]] = {}
        self._following: dict[PolicyList, set[PolicyList]] = {}
        """Those that end in it, and have one policy more."""
        self.touched: set[PolicyRef] = set()

    def word(self, refs: PolicyList) -> str:
        """The word of a class that is in use."""
        if refs == (CLOSED_REF,):
            return CLOSED_WORD
        return number_word(self._policies[refs[0]].number, self._classes[refs].rest)

    def policy_word(self, ref: PolicyRef) -> str | None:
        """The policy's own word; None if it is in no class."""
        known = self._policies.get(ref)
        return None if known is None else number_word(known.number)

    def join(self, refs: PolicyList) -> None:
        """Somebody is of that class."""
        if refs == (CLOSED_REF,):
            return
        known = self._classes.get(refs)
        if known is None:
            known = self._classes[refs] = _Class(self._begin(refs))
            if len(refs) > 1:
                self.join(refs[1:])
                self._following.setdefault(refs[1:], set()).add(refs)
                self._write(refs)
        known.users += 1

    def leave(self, refs: PolicyList) -> None:
        """Somebody is not of that class any more."""
        if refs == (CLOSED_REF,):
            return
        self._classes[refs].users -= 1
        if self._classes[refs].users:
            return
        if len(refs) > 1:
            self._ledger.write(("next", refs), {})
            self._following[refs[1:]].discard(refs)
            if not self._following[refs[1:]]:
                del self._following[refs[1:]]
            self.leave(refs[1:])
        self._end(refs)

    def renumber(self, ref: PolicyRef) -> None:
        """Give the policy another number. Whoever is of a class that begins with it has to be told the new word."""
        known = self._policies[ref]
        before = known.number
        known.generation += 1
        known.number = self._allocate(ref, known.generation)
        self._numbers.discard(before)
        self.touched.add(ref)
        for refs in [refs for refs in self._classes if refs[0] == ref]:
            self._write(refs)
            for longer in self._following.get(refs, ()):
                self._write(longer)

    def _begin(self, refs: PolicyList) -> int:
        """The policy that a class begins with is in use; returns the lower half of the word of the class."""
        ref = refs[0]
        known = self._policies.get(ref)
        if known is None:
            known = self._policies[ref] = _Policy(self._allocate(ref, 0))
            self._rests[ref] = {ALONE}
            self.touched.add(ref)
        known.classes += 1
        if len(refs) == 1:
            return ALONE
        rests = self._rests[ref]
        rest = next(number for number in _numbers(*_names(refs[1:])) if number not in rests)
        rests.add(rest)
        return rest

    def _end(self, refs: PolicyList) -> None:
        ref = refs[0]
        ended = self._classes.pop(refs)
        if ended.rest != ALONE:
            self._rests[ref].discard(ended.rest)
        known = self._policies[ref]
        known.classes -= 1
        if not known.classes:
            del self._policies[ref], self._rests[ref]
            self._numbers.discard(known.number)
            self.touched.add(ref)

    def _allocate(self, ref: PolicyRef, generation: int) -> int:
        name = _names([ref]) if not generation else (*_names([ref]), str(generation))
        number = next(number for number in _numbers(*name) if number not in self._numbers)
        self._numbers.add(number)
        return number

    def _write(self, refs: PolicyList) -> None:
        if len(refs) > 1:
            self._ledger.write(("next", refs), {NEXT: {self.word(refs): self.word(refs[1:])}})


def _names(refs: Sequence[PolicyRef]) -> list[str]:
    return [f"{ref.namespace}/{ref.name}" for ref in refs]


def _numbers(*names: str) -> Iterator[int]:
    """Numbers for a name, the same ones in every process: from 2 to POLICIES, each once."""
    start = int.from_bytes(blake2s(" ".join(names).encode(), digest_size=8).digest())
    for offset in range(POLICIES - 1):
        yield (start + offset) % (POLICIES - 1) + 2
