"""The kernel's network of this node, over netlink.

Place in the flow: `coil.podnet` and `coil.egress` plan in the words of `coil.kernel`; this package, and nothing else in
the house, speaks rtnetlink and enters namespaces. A module is a kind of object of the kernel: its codec, reading it,
and bringing it in line.

    asynchronous   host        pods' attachments: what coild calls
                   overlay     the EIP gateway: what its agent calls
                   conntrack   a node's connections: read, forgotten, and made to speak (`FlowTable`)
                   monitor     what the kernel tells of changes
                   removal     deletes links, many at once

    objects        link, address, neighbour, route, rule, tunnel, fou, vxlan, sysctl, namespace, kernel_module, ipset
    combinations   attachment (one pod's veth), peer_namespace (the two ends of a veth), eip_link
                   (floating addresses), announcement (on which links they are), readiness

    below          connection (one socket: batches and dumps), wire (headers, attributes, requests), worker (threads)

All but the first group is synchronous and runs in the threads of `worker`; `coil.nat` calls it directly.

**Why not pyroute2 here**: see DESIGN.md, "pyroute2 is the tests' oracle"; each kind of object was measured. In short,
every kind that coild's pod path needs has a codec here anyway, which is ten to sixty times as fast, and the agents' use
of the others does not pay for the import.

Invariant: the event loop's thread never changes its namespace and never waits for the kernel.
"""
