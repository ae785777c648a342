"""The tables of iptables-legacy, which nf_tables knows nothing of, by its own programs: the FORWARD chains as they are
printed, and changes of a table in one step.

Asked only where the kernel has the table already: to look at a table that is not there would make it.
"""

import shlex
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from coil.kernel.family import Family
from coil.kernel.packet_filter import (
    AddressMatch,
    FilterMatch,
    FilterRule,
    FilterVerdict,
    ForwardHook,
    LinkMatch,
    Side,
    reach_chains,
)
from coil.nft.netfilter import NftError

_TABLE: Final = "filter"
_BASE: Final = "FORWARD"
_TABLES: Final = {
    # Of the calling thread's namespace; /proc/net would be that of the process's first thread.
    Family.IPV4: Path("/proc/thread-self/net/ip_tables_names"),
    Family.IPV6: Path("/proc/thread-self/net/ip6_tables_names"),
}
PROGRAMS: Final = {Family.IPV4: "iptables-legacy", Family.IPV6: "ip6tables-legacy"}
"""Each with two others, whose names end in "-save" and "-restore"."""
_SECONDS: Final = 10.0
_LOCK_SECONDS: Final = 5
"""How long a change waits for other programs that hold the lock."""
_VERDICTS: Final = {
    "ACCEPT": FilterVerdict.ACCEPT,
    "DROP": FilterVerdict.DROP,
    "REJECT": FilterVerdict.DROP,
    "RETURN": FilterVerdict.RETURN,
}
_LINKS: Final = {"-i": Side.FROM, "-o": Side.TO}
_NETWORKS: Final = {"-s": Side.FROM, "-d": Side.TO}
_REJECT_OPTION: Final = "--reject-with"


def read_legacy_hooks() -> Iterator[ForwardHook]:
    """Those of the calling thread's namespace, none where nobody uses iptables-legacy. Raises NftError."""
    for family in Family:
        if has_legacy_table(family, _TABLE):
            yield parse_forward(save_legacy(family, _TABLE), family)


def parse_forward(text: str, family: Family) -> ForwardHook:
    """What `iptables-legacy-save -t filter` has printed; see iptables-save(8) and iptables(8)."""
    lines: dict[str, list[str]] = {}
    policy: FilterVerdict | None = None
    for line in text.splitlines():
        if line.startswith(":"):
            name, word, *_ = line[1:].split()
            lines[name] = []
            policy = _VERDICTS.get(word) if name == _BASE else policy
        elif line.startswith("-A "):
            _, name, *rule = line.split(" ", 2)
            lines[name] += rule

    def rules_of(chain: str) -> tuple[FilterRule, ...]:
        rules = (_parse_rule(shlex.split(line), lines) for line in lines.get(chain, ()))
        return tuple(rule for rule in rules if rule is not None)

    chains = reach_chains(_BASE, rules_of)
    chains[_BASE] = replace(chains[_BASE], policy=policy)
    program = "iptables" if family is Family.IPV4 else "ip6tables"
    return ForwardHook(
        label=f"{program} (legacy) chain {_BASE}", families=frozenset({family}), base=_BASE, chains=chains
    )


def _parse_rule(words: list[str], chains: Iterable[str]) -> FilterRule | None:
    """None for a rule with a condition that is not known here, and for one that decides nothing."""
    matches: list[FilterMatch] = []
    verdict, target = FilterVerdict.CONTINUE, ""
    rest = iter(words)
    negated = False
    for word in rest:
        if word == "!":
            negated = True
            continue
        value = next(rest, "")
        if (side := _LINKS.get(word)) is not None:
            matches.append(LinkMatch(side, value.removesuffix("+"), is_prefix=value.endswith("+"), negated=negated))
        elif (side := _NETWORKS.get(word)) is not None:
            try:
                matches.append(AddressMatch(side, ip_network(value, strict=False), negated=negated))
            except ValueError:
                return None  # a mask with gaps
        elif word in {"-j", "-g"}:
            if value in chains:
                verdict, target = FilterVerdict.JUMP if word == "-j" else FilterVerdict.GOTO, value
            else:
                verdict = _VERDICTS.get(value, FilterVerdict.CONTINUE)
        elif (word, value) == ("-m", "comment") or word in {"--comment", _REJECT_OPTION}:
            continue
        elif verdict is FilterVerdict.CONTINUE:
            return None
        negated = False
    if verdict is FilterVerdict.CONTINUE:
        return None
    return FilterRule(matches=tuple(matches), verdict=verdict, target=target)


def has_legacy_table(family: Family, table: str) -> bool:
    """Whether somebody uses, or has used, that table in the calling thread's namespace."""
    try:
        return table in _TABLES[family].read_text().split()
    except OSError:
        return False  # a kernel without iptables


def save_legacy(family: Family, table: str) -> str:
    """What iptables-legacy-save prints of a table. Raises NftError."""
    return _run([f"{PROGRAMS[family]}-save", "-t", table], "")


def restore_legacy(family: Family, text: str) -> None:
    """Have iptables-legacy-restore make the changes, all or none. Raises NftError."""
    _run([f"{PROGRAMS[family]}-restore", "--noflush", "--wait", str(_LOCK_SECONDS)], text)


def _run(command: Sequence[str], given: str) -> str:
    doing = f"run {command[0]}"
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NftError(doing=doing, reason=str(error)) from error
    if done.returncode:
        raise NftError(doing=doing, reason=" ".join(done.stderr.split())[:200] or f"exit code {done.returncode}")
    return done.stdout
