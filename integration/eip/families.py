"""Clusters of all IP families for tests of the main path: the usual one, and the others marked `slow`."""

import pytest

from integration.cluster.family import ClusterFamilies

USUAL = ClusterFamilies.IPV4_FIRST
_OTHERS = [families for families in ClusterFamilies if families is not USUAL]

in_all_families = pytest.mark.parametrize(
    "families",
    [
        pytest.param(USUAL, id=pytest.HIDDEN_PARAM),
        *(pytest.param(families, id=families.label, marks=pytest.mark.slow) for families in _OTHERS),
    ],
    indirect=True,
    scope="session",
)
"""A mark for tests that use the stage, which is made anew for each of them: pytest puts those of a kind together."""
