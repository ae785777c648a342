"""Which rules and chains of iptables are one program's, so that they can be told from everybody else's and removed.

A rule is claimed by a comment (`-m comment --comment …`) that the program gives each of its rules: the other matches of
a rule may be printed differently by each version of iptables. Of the chains that a table has by itself only the claimed
rules go; a claimed chain goes with all that is in it.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

BUILT_IN_CHAINS: Final[Mapping[str, tuple[str, ...]]] = {
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
}
"""Of the tables that are looked at, iptables(8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IptablesClaim:
    """`comment` matches one whole comment of each rule; `chains` are the program's own, by table. `grep` are the
    arguments of grep that find its lines in what iptables-save prints, for the administrator who has to do it by hand.
    """

    owner: str
    comment: re.Pattern[str]
    chains: Mapping[str, frozenset[str]]
    grep: str

    def owns(self, comment: str) -> bool:
        """Whether a rule with this comment is the program's."""
        return self.comment.fullmatch(comment) is not None


def plan_removal(saved: str, table: str, claim: IptablesClaim) -> str:
    """What `iptables-restore --noflush` has to be given so that what is claimed of a table goes, in one step; "" if
    nothing is. `saved` is what iptables-save of the same backend has printed of the table.

    A rule is named by all of its words, and not by its place, which others may change meanwhile.
    """
    chains = [line[1:].split(" ", 1)[0] for line in saved.splitlines() if line.startswith(":")]
    own = [chain for chain in chains if chain in claim.chains.get(table, ())]
    lines = [
        f"-D{line.removeprefix('-A')}"
        for line in saved.splitlines()
        if line.startswith("-A ") and _chain(line) in BUILT_IN_CHAINS[table] and _is_claimed(line, claim)
    ]
    # All are empty before the first one goes, as they may lead to each other.
    lines += [f"{command} {chain}" for command in ("-F", "-X") for chain in own]
    return "\n".join([f"*{table}", *lines, "COMMIT", ""]) if lines else ""


def _chain(line: str) -> str:
    return line.split(" ", 2)[1]


def _is_claimed(line: str, claim: IptablesClaim) -> bool:
    words = shlex.split(line)
    return any(word == "--comment" and claim.owns(comment) for word, comment in pairwise(words))
