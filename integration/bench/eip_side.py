"""Two sides that are loaded with the same crowd, each in a namespace of its own: our tables, and iptables with ipset.

Ours is what an agent does: from the book, as its caches would have filled it, to the kernel. The peer's is what it
takes at least: texts that are ready, and two programs.
"""

import shutil
import subprocess
import time
from typing import Final, Protocol

from coil.eip.change_steps import split_changes
from coil.eip.eip_table import POD_TIMEOUTS, TABLE, TIMEOUTS, EipTableOptions, plan_eip_tables
from coil.kernel.nft_table import TableFamily
from coil.nft.element_sync import change_elements, load_elements, refresh_timeouts
from coil.nft.netfilter import NetfilterSocket
from coil.nft.table_sync import delete_table
from integration.bench.eip_crowd import Crowd, policy_ref
from integration.bench.eip_rule_text import changed_rules, changed_sets, full_rules, full_sets
from integration.netns.netns import Netns

PEER: Final = "iptables-restore + ipset"
_FUSE_MILLISECONDS: Final = 3_600_000
_SECONDS: Final = 300


class Side(Protocol):
    """One way to lead a crowd's packets, in `netns`. All methods block; times are in seconds."""

    def load(self) -> float:
        """All of it, where nothing is; the time it took."""
        ...

    def change(self, number: int, *, back: bool) -> float:
        """One of the node's own policies: another address, destination and pod; or `back`. The time it took."""
        ...

    def clear(self) -> None:
        """Nothing is there again. Idempotent."""
        ...


class OurSide:
    """`kernel_seconds`: what of the last time passed in the library and in the kernel."""

    def __init__(self, netns: Netns, crowd: Crowd) -> None:
        self._netns = netns
        self._crowd = crowd
        self._tables = plan_eip_tables(EipTableOptions())
        self._index = crowd.index()
        self._connection = NetfilterSocket()
        self.kernel_seconds = 0.0

    def load(self) -> float:
        self._index = self._crowd.index()
        return self._netns.call(self._load)

    def change(self, number: int, *, back: bool) -> float:
        return self._netns.call(lambda: self._change(number, changed=not back))

    def clear(self) -> None:
        self._connection.close()
        for family in (TableFamily.INET, TableFamily.ARP):
            self._netns.call(lambda family=family: delete_table(TABLE, family))  # type: ignore[misc]

    def _load(self) -> float:
        began = time.perf_counter()
        self._index.take_changes()
        elements = self._index.elements()
        computed = time.perf_counter()
        load_elements(self._tables, elements, split=split_changes, connection=self._connection)
        ended = time.perf_counter()
        self.kernel_seconds = ended - computed
        # As if every renewal were acknowledged.
        refresh_timeouts((*TIMEOUTS, *POD_TIMEOUTS), _FUSE_MILLISECONDS, self._connection)
        self._renew_decisions()
        return ended - began

    def _renew_decisions(self) -> None:
        """As an agent does when changes have rested."""
        self._index.settle()
        time.sleep(self._index.wait() or 0.0)
        change_elements(self._tables, self._index.renew(), self._connection)

    def _change(self, number: int, *, changed: bool) -> float:
        view = self._crowd.view(number, changed=changed)
        sources = self._crowd.sources(number, replaced=int(changed))
        began = time.perf_counter()
        self._index.set_policy(view)
        self._index.set_sources(policy_ref(number), sources)
        changes = self._index.take_changes()
        computed = time.perf_counter()
        change_elements(self._tables, changes, self._connection)
        ended = time.perf_counter()
        self.kernel_seconds = ended - computed
        return ended - began


class PeerSide:
    """Needs `ipset` and `iptables-restore`; whichever of iptables' two kernel interfaces the machine has chosen."""

    def __init__(self, netns: Netns, crowd: Crowd) -> None:
        self._netns = netns
        self._crowd = crowd
        self._sets, self._rules = full_sets(crowd), full_rules(crowd)

    def load(self) -> float:
        began = time.perf_counter()
        self._run("ipset", "restore", text=self._sets)
        self._run("iptables-restore", text=self._rules)
        return time.perf_counter() - began

    def change(self, number: int, *, back: bool) -> float:
        sets, rules = changed_sets(number, crowd=self._crowd, back=back), changed_rules(number, back=back)
        began = time.perf_counter()
        self._run("ipset", "restore", text=sets)
        self._run("iptables-restore", "--noflush", text=rules)
        return time.perf_counter() - began

    def clear(self) -> None:
        self._run("iptables-restore", text="".join(f"*{table}\nCOMMIT\n" for table in ("mangle", "filter", "nat")))
        for table in ("mangle", "nat"):
            self._run("iptables", "-t", table, "-X")
        self._run("ipset", "destroy")

    def _run(self, *command: str, text: str = "") -> None:
        done = subprocess.run(
            # Not `ip netns exec`, which mounts things first.
            ["nsenter", f"--net={self._netns.path}", "--", *command],
            input=text,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[:300]}")


def peer_obstacle() -> str:
    """Why the peer cannot be measured here; "" if it can."""
    missing = [program for program in ("ipset", "iptables-restore") if shutil.which(program) is None]
    return f"there is no {' and no '.join(missing)} here" if missing else ""
