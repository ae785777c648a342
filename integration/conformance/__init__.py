"""Kubernetes' own network tests on clusters with Coil.

`images` makes the container images that the tests ask for, `coredns` what answers DNS queries in a cluster, `stage` is
a cluster that has both, with Coil from the chart. `suite` runs tests there, `report` reads what came of it, and
`python -m integration.conformance` does all of that for every combination of IP families.
"""
