"""Numbers of policies and classes."""

from hypothesis import given
from hypothesis import strategies as st

from coil.crd.egress_gateway import PolicyRef
from coil.eip.eip_set import CLOSED_WORD, MOST_POLICIES, NEXT
from coil.eip.element_ledger import ElementLedger
from coil.eip.policy_class import CLOSED_REF, PolicyClasses, PolicyList, limit_policies

REFS = tuple(PolicyRef(namespace="x", name=name) for name in "abcde")
LISTS = st.lists(st.sampled_from(REFS), min_size=1, max_size=4, unique=True).map(tuple)


def path(ledger: ElementLedger, word: str) -> list[str]:
    """The words from a class to its end."""
    following = ledger.elements().get(NEXT, {})
    found = [word]
    while word in following:
        word = str(following[word])
        found.append(word)
    return found


def check(classes: PolicyClasses, ledger: ElementLedger, used: list[PolicyList]) -> None:
    """Each class leads through its policies in their order, and no two have one word."""
    words = {refs: classes.word(refs) for refs in used}
    assert len(set(words.values())) == len(words)
    for refs, word in words.items():
        majors = [each.partition(":")[0] for each in path(ledger, word)]
        assert majors == [str(classes.policy_word(ref)).partition(":")[0] for ref in refs]


@given(st.lists(st.tuples(LISTS, st.booleans()), max_size=12), st.sampled_from(REFS))
def test_a_class_leads_through_its_policies(steps: list[tuple[PolicyList, bool]], other: PolicyRef) -> None:
    ledger = ElementLedger()
    classes = PolicyClasses(ledger)
    used: list[PolicyList] = []
    for refs, renumbered in steps:
        if refs in used:
            classes.leave(refs)
            used.remove(refs)
        else:
            classes.join(refs)
            used.append(refs)
        if renumbered and classes.policy_word(other) is not None:
            before = classes.policy_word(other)
            classes.renumber(other)
            assert classes.policy_word(other) != before
        check(classes, ledger, used)
    for refs in used:
        classes.leave(refs)
    assert ledger.elements() == {}
    assert all(classes.policy_word(ref) is None for ref in REFS)


def test_a_name_has_the_same_number_in_every_process() -> None:
    words = []
    for order in (REFS, REFS[::-1]):
        classes = PolicyClasses(ElementLedger())
        for ref in order:
            classes.join((ref,))
        classes.join(REFS)
        words.append([*map(classes.policy_word, REFS), classes.word(REFS)])
    assert words[0] == words[1]


def test_beyond_the_limit_everything_is_closed() -> None:
    refs = [PolicyRef(namespace="x", name=str(number)) for number in range(MOST_POLICIES + 2)]
    assert limit_policies(refs[:MOST_POLICIES]) == tuple(refs[:MOST_POLICIES])
    limited = limit_policies(refs)
    assert limited == (*refs[: MOST_POLICIES - 1], CLOSED_REF)
    ledger = ElementLedger()
    classes = PolicyClasses(ledger)
    classes.join(limited)
    words = path(ledger, classes.word(limited))
    assert (len(words), words[-1]) == (MOST_POLICIES, CLOSED_WORD)
    classes.leave(limited)
    assert ledger.elements() == {}
