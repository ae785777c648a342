"""Takes the rules and chains that are one program's out of the tables of iptables, whichever backend has them.

    find_claimed_rules(claim), remove_claimed_rules(claim)      iptables-nft: all of it in one transaction
    find_legacy_rules(claim), remove_legacy_rules(claim)        iptables-legacy: each table in one step

The tables of iptables-nft are nftables tables whose matches libnftables cannot render. They are neither rendered nor
written here: a rule is deleted by its handle, which no other rule ever has, whatever else it says. What is between two
looks is no matter: a rule that is gone fails the transaction, and it is planned again.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from coil.kernel.family import Family
from coil.kernel.iptables import BUILT_IN_CHAINS, IptablesClaim, plan_removal
from coil.kernel.nft_table import TableFamily
from coil.nft.legacy_iptables import PROGRAMS, has_legacy_table, restore_legacy, save_legacy
from coil.nft.netfilter import (
    Dump,
    Message,
    NetfilterSocket,
    NftError,
    attributes,
    delete_chain,
    delete_rule,
    dump_objects,
    flush_chain,
    has_nftables,
    has_table,
    text,
)

_FAMILIES: Final = (TableFamily.IP, TableFamily.IP6)
_ATTEMPTS: Final = 8
"""How often a removal is planned anew since others have changed the rules meanwhile."""
_RULE_CHAIN, _RULE_HANDLE, _RULE_EXPRESSIONS = 2, 3, 4
_CHAIN_NAME: Final = 3
_EXPRESSION_NAME, _EXPRESSION_DATA = 1, 2
_MATCH_NAME, _MATCH_INFO = 1, 3


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A rule or a chain, in words, and what has to be done with it."""

    label: str
    message: Message


def find_claimed_rules(claim: IptablesClaim) -> list[str]:
    """Rules and chains, in words, of the calling thread's namespace. Raises NftError."""
    return list(dict.fromkeys(found.label for found in _read_claimed(claim)))


def remove_claimed_rules(claim: IptablesClaim) -> None:
    """Delete them from the tables of iptables-nft. Idempotent. Raises NftError, and then nothing has changed, such as
    where a rule of another program jumps to one of the chains.
    """
    socket = NetfilterSocket()
    try:
        for attempt in range(_ATTEMPTS):
            messages = [found.message for found in _read_claimed(claim)]
            if not messages:
                return
            try:
                socket.transact(messages, doing=f"delete the rules of {claim.owner} from iptables-nft")
            except NftError as error:
                if error.errno != errno.ENOENT or attempt == _ATTEMPTS - 1:
                    raise
    finally:
        socket.close()


def find_legacy_rules(claim: IptablesClaim) -> list[str]:
    """The tables of iptables-legacy with such rules or chains, in words. Raises NftError."""
    return [f"rules in {PROGRAMS[family]} {table}" for family, table, _ in _plan_legacy(claim)]


def remove_legacy_rules(claim: IptablesClaim) -> None:
    """Delete them from the tables of iptables-legacy. Idempotent. Raises NftError, with the command by which an
    administrator can do it, where the programs are missing or refuse; some tables may have been changed by then.
    """
    for family, _, changes in _plan_legacy(claim):
        try:
            restore_legacy(family, changes)
        except NftError as error:
            raise _by_hand(error, family, claim) from error


def _plan_legacy(claim: IptablesClaim) -> Iterator[tuple[Family, str, str]]:
    """Family, name and changes of each table that has any of it."""
    for family in Family:
        for table in BUILT_IN_CHAINS:
            if not has_legacy_table(family, table):
                continue
            try:
                saved = save_legacy(family, table)
            except NftError as error:
                raise _by_hand(error, family, claim) from error
            if changes := plan_removal(saved, table, claim):
                yield family, table, changes


def _by_hand(error: NftError, family: Family, claim: IptablesClaim) -> NftError:
    program = PROGRAMS[family]
    return NftError(
        doing=error.doing,
        reason=f"{error.reason}; rules of {claim.owner} may be left in {program}: if so, run on the node "
        f"`{program}-save | grep -v {claim.grep} | {program}-restore`",
    )


def _read_claimed(claim: IptablesClaim) -> list[_Claimed]:
    """The rules first, as chains go only when nothing leads to them."""
    if not has_nftables():
        return []
    places = [
        (family, table)
        for family in _FAMILIES
        for table in BUILT_IN_CHAINS
        if has_table(family, table, doing=_doing(claim))
    ]
    rules = [rule for place in places for rule in _read_rules(*place, claim)]
    return rules + [chain for place in places for chain in _read_chains(*place, claim)]


def _read_rules(family: TableFamily, table: str, claim: IptablesClaim) -> Iterator[_Claimed]:
    dump = partial(dump_objects, Dump.RULES, family, table, doing=_doing(claim))
    for chain in BUILT_IN_CHAINS[table]:
        # Some kernels tell of the other chains, too.
        for rule in (each for each in dump(selection=text(_RULE_CHAIN, chain)) if _word(each[_RULE_CHAIN]) == chain):
            comments = [each for each in _comments(rule.get(_RULE_EXPRESSIONS, b"")) if claim.owns(each)]
            if comments:
                message = delete_rule(family, table, chain, rule[_RULE_HANDLE])
                yield _Claimed(f"rule {comments[0]} in {family} {table} {chain}", message)


def _read_chains(family: TableFamily, table: str, claim: IptablesClaim) -> list[_Claimed]:
    own = claim.chains.get(table, frozenset())
    chains = dump_objects(Dump.CHAINS, family, table, doing=_doing(claim))
    found = [name for chain in chains if (name := _word(chain[_CHAIN_NAME])) in own]
    # All are empty before the first one goes, as they may lead to each other.
    return [
        _Claimed(f"chain {name} in {family} {table}", request(family, table, name))
        for request in (flush_chain, delete_chain)
        for name in found
    ]


def _comments(expressions: bytes) -> Iterator[str]:
    """What the rule's matches of the kind `comment` say: `struct xt_comment_info` (linux/netfilter/xt_comment.h)."""
    for _, expression in attributes(expressions):
        parts = dict(attributes(expression))
        if _word(parts[_EXPRESSION_NAME]) == "match":
            match = dict(attributes(parts[_EXPRESSION_DATA]))
            if _word(match[_MATCH_NAME]) == "comment":
                yield _word(match[_MATCH_INFO])


def _word(content: bytes) -> str:
    return content.split(b"\0", 1)[0].decode(errors="replace")


def _doing(claim: IptablesClaim) -> str:
    return f"look for rules of {claim.owner} in iptables-nft"
