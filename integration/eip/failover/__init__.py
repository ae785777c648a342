"""Gateway nodes and controllers are lost, with the leases that the product has by default: `nox -s timing`.

A machine that stands still for longer than such a lease loses nodes by itself, so nothing else runs beside these tests.
"""
