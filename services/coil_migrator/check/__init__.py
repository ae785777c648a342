"""`coil-migrator check`: what changes for a cluster that Coil v2, the Go programs, runs now. It changes nothing.

    API server ─► cluster ─► programs, objects, nodes, egressgateway ─► finding ─► report ─► text or JSON

Everything behind `cluster` is pure: it judges what was read, and asks nobody.
"""
