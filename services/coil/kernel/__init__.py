"""The kernel's vocabulary: links, tunnels, addresses, neighbours, routes and rules as frozen values, and their
differences.

Place in the flow: `coil.podnet` states what is wanted in these words, `coil.netlink` reads and writes them.
Nothing here knows netlink, a namespace or a clock. Invariant: two values are equal exactly if the kernel
would hold one object for both, so that a set difference is a correct plan.
"""
