"""What Neutron is to hold for a cluster, and what a node is told of it: names, addresses, plans. Pure."""
