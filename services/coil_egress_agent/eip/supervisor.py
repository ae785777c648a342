"""The first process of a node's agent: restarts it when it dies. See `coil_egress_agent.supervisor`.

A new process finds tunnels, rules and sets in the kernel and repairs only differences; that it is back sooner than the
kubelet would have it matters to pods that come and go meanwhile. The lease seldom outlives a crash: its fence is
shorter than the start of a process, and the EIPs are on another node by then.
"""

import sys

from coil_egress_agent.supervisor import keep_running


def main() -> int:
    """Run the agent with this process's arguments and environment; its exit code."""
    return keep_running([sys.executable, "-m", "coil_egress_agent.eip", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
