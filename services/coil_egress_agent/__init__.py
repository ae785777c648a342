"""coil-egress-agent: the program in a router pod."""
