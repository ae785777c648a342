"""Floating egress addresses: who has which, on which node, and what the nodes hold for it. Pure."""
