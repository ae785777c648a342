"""`kubectl coil trace`: the way of a packet, from objects and dumps."""
