"""Policy routing rules of others, as far as it can be told which packets they are for and what becomes of these.

A `coil.kernel.rule.Rule` is what Coil writes; the kernel knows more selectors and actions (linux/fib_rules.h).
"""

from dataclasses import dataclass
from enum import IntEnum

from coil.kernel.family import Family, IPNetwork
from coil.kernel.link import LinkName


class RuleAction(IntEnum):
    LOOKUP = 1
    GOTO = 2
    NOP = 3
    BLACKHOLE = 6
    UNREACHABLE = 7
    PROHIBIT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRule:
    """`inverted`: for packets that the selectors do not fit. `local`: among these is one that only packets of the
    node's own processes fit. `narrowed`: among them are some that are not told here, such as ports. `suppressed`:
    routes with prefixes of that length at most do not count; −1 for none.
    """

    family: Family
    priority: int
    action: RuleAction
    protocol: int = 0
    table: int = 0
    goto: int = 0
    source: IPNetwork | None = None
    destination: IPNetwork | None = None
    iif: LinkName | None = None
    mark: int | None = None
    inverted: bool = False
    local: bool = False
    narrowed: bool = False
    suppressed: int = -1

    @property
    def selects(self) -> bool:
        """False where the rule is for every packet."""
        named = (self.source, self.destination, self.iif, self.mark) != (None, None, None, None)
        return named or self.local or self.narrowed

    def __str__(self) -> str:
        words = [f"rule {self.priority}", *(["not"] if self.inverted else [])]
        words += [f"from {self.source or 'all'}", *([f"to {self.destination}"] if self.destination else [])]
        words += [f"iif {self.iif}"] if self.iif else []
        words += [f"fwmark {self.mark:#x}"] if self.mark is not None else []
        words += ["…"] if self.local or self.narrowed else []
        match self.action:
            case RuleAction.LOOKUP:
                words.append(f"lookup {self.table}")
            case RuleAction.GOTO:
                words.append(f"goto {self.goto}")
            case action:
                words.append(action.name.lower())
        return " ".join(words)
