"""The pod network as a plan: what coild wants to exist for one pod, in the pod's namespace and in the host's.

Place in the flow: coild knows a pod's addresses, this package says which links, addresses, routes, neighbours
and sysctls follow from them, and `coil.netlink` makes them. Pure: the same arguments give the same plan, so a
plan can be made again for CHECK.
"""
