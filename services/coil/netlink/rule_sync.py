"""Policy routing rules of a namespace, read and brought in line. Runs in a worker's thread, in that namespace.

read_rules(connection) -> list[Rule]
sync_rules(wanted, *, claim: RuleClaim, connection) -> RuleChanges      for rules with selectors
ensure_rules(rules, connection) -> RuleChanges                          for those that are for every packet
"""

import errno
from collections.abc import Callable, Collection
from typing import Final

from coil.kernel.family import Family
from coil.kernel.rule import Rule, RuleChanges, RuleClaim, diff_claimed_rules, diff_rules
from coil.netlink.connection import Connection
from coil.netlink.error import NetlinkError
from coil.netlink.request import Request
from coil.netlink.rule_message import append_rule, delete_rule, dump_rules, new_rule, parse_rule

_ATTEMPTS: Final = 4


def read_rules(connection: Connection) -> list[Rule]:
    """The rules of both families in the kernel's order, but for those that select by what `Rule` does not know."""
    rules = (parse_rule(body) for family in Family for body in connection.dump(dump_rules(family)))
    return [rule for rule in rules if rule is not None]


def ensure_rules(rules: Collection[Rule], connection: Connection) -> RuleChanges:
    """Make every rule exist once, and no other of the same protocols that is for every packet."""
    actual = [rule for rule in read_rules(connection) if not rule.selects]
    return _apply(diff_rules(actual, rules), new_rule, connection)


def sync_rules(wanted: Collection[Rule], *, claim: RuleClaim, connection: Connection) -> RuleChanges:
    """Make `wanted` the rules of the claim, each there once, and leave all others alone. Idempotent.

    What comes is there before what goes. Returns all that was done. Raises NetlinkError for the first rule that the
    kernel refused, ValueError where a wanted one is not of the claim.
    """
    # Once is enough, except where the kernel deleted another rule than it was asked to: it takes the first that has
    # what the request names, even if that has selectors besides. Then that one is put back.
    adds: tuple[Rule, ...] = ()
    deletes: tuple[Rule, ...] = ()
    for _ in range(_ATTEMPTS):
        changes = _apply(diff_claimed_rules(read_rules(connection), wanted, claim), append_rule, connection)
        adds, deletes = adds + changes.adds, deletes + changes.deletes
        if not changes.deletes:
            return RuleChanges(adds=adds, deletes=deletes)
    raise NetlinkError(f"rules would not settle: somebody else changes them, {deletes[-1]} among them")


def _apply(changes: RuleChanges, add: Callable[[Rule], Request], connection: Connection) -> RuleChanges:
    # A kernel without a family has no packets of it to look up.
    adds = [add(rule) for rule in changes.adds]
    errors = connection.submit(adds, tolerate={errno.EEXIST, errno.EAFNOSUPPORT})
    deletes = [delete_rule(rule) for rule in changes.deletes]
    errors += connection.submit(deletes, tolerate={errno.ENOENT})
    for error in errors:
        raise error
    return changes
