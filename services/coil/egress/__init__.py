"""Egress NAT as plans: which gateways a pod has, and what follows from them at both ends of the tunnels.

Place in the flow: `gateway` reads annotations and Egresses, the plans say which links, rules, routes, sysctls and
nftables rules are to exist, and `coil.nat` makes them. The router pods themselves are rendered here, too, as the
documents that the API server stores. Pure: the same arguments give the same plan.
"""
