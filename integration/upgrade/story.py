"""The story that the tests look at: the former release, an upgrade to this one under everything that runs, and back."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from integration.helm.chart import CHART
from integration.helm.release import Release, import_image
from integration.image.build import IMAGE, build_image
from integration.nodes.coil_cluster import CoilCluster
from integration.patience import wait_until, wait_until_clean
from integration.upgrade.cooling_block import NEXT, CoolingBlock
from integration.upgrade.kernel_dump import Differences, compare
from integration.upgrade.revision import Revision
from integration.upgrade.scene import Scene, View
from integration.upgrade.witness import LEADER_PORTS, Witness, leads

FORMER_TAG = "former"
"""Two revisions of one version have images of one name."""
_SETTLED_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Change:
    """The programs were replaced by those of another release."""

    before: View
    after: View
    witness: Witness
    counts: tuple[dict[str, int], dict[str, int]]
    """Messages on each connection before and after."""
    cooling: CoolingBlock
    """Filled up since, by the programs that came."""
    seen: frozenset[str]
    """Who had a connection to the host outside, afterwards."""
    gaps: list[str]
    complaints: list[str]
    restarts: dict[str, int]
    """By component, how often the programs that came were started again."""

    @property
    def differences(self) -> Differences:
        """Of the kernels."""
        return compare(self.before.kernels, self.after.kernels)


@dataclass(slots=True)
class Story:
    """Each chapter is played once, by the first who asks for it."""

    scene: Scene
    release: Release
    """This checkout's, as an upgrade of the former one."""
    _played: dict[str, Change] = field(default_factory=dict)

    def chapter(self, name: str) -> Change:
        """`upgrade`, or `rollback`, which comes after it."""
        if "upgrade" not in self._played:
            self._played["upgrade"] = self._play(self._upgrade, is_settled=lambda found: not found.lost)
        if name not in self._played:
            undone = self._played["upgrade"].differences.reverse
            self._played[name] = self._play(self.release.rollback, is_settled=lambda found: found == undone)
        return self._played[name]

    def _upgrade(self) -> None:
        # In the order of docs/upgrade.md.
        self.release.apply_kinds()
        self.release.upgrade({})

    def _play(self, replace_programs: Callable[[], None], *, is_settled: Callable[[Differences], bool]) -> Change:
        scene, coil = self.scene, self.scene.coil
        cooling = CoolingBlock.prepare(coil)
        before, counts = self._look_when_still(), scene.counts()
        with Witness(coil) as witness:
            replace_programs()
            self.release.wait_rolled_out()
            for program, port in LEADER_PORTS.items():
                wait_until(
                    lambda port=port: any(leads(node, port) for node in coil.nodes),  # type: ignore[misc]
                    what=f"one {program} leads",
                )
        # Where they are after a rollout depends on its order; all else must not.
        scene.bring_eips(coil.nodes[0])
        after = self._look_again(before, is_settled)
        cooling.add(NEXT)
        components = ("coild", "ipam-controller", "egress-controller", "egress-agent-node")
        return Change(
            before=before,
            after=after,
            witness=witness,
            counts=(counts, scene.counts()),
            cooling=cooling,
            seen=frozenset(scene.seen_outside()),
            gaps=scene.find_gaps(),
            complaints=coil.programs.complaints(*components),
            restarts={component: coil.programs.restarts(component) for component in components},
        )

    def _look_when_still(self) -> View:
        """When no kernel changes any more, as those of new pods do for a moment."""
        views = [self.scene.look()]

        def changes() -> list[str]:
            views.append(self.scene.look())
            return compare(views[-2].kernels, views[-1].kernels).describe()

        wait_until_clean(changes, after="the last pod became ready")
        return views[-1]

    def _look_again(self, before: View, is_settled: Callable[[Differences], bool]) -> View:
        """When the kernels hold what they are to hold, or will not."""
        deadline = time.monotonic() + _SETTLED_SECONDS
        while True:
            after = self.scene.look()
            if is_settled(compare(before.kernels, after.kernels)) or time.monotonic() > deadline:
                return after


def install_former(coil: CoilCluster, revision: Revision, archive: Path, name: str) -> CoilCluster:
    """Install that revision's chart with its image, and have this checkout's image on the nodes as well."""
    former = f"{IMAGE.rsplit(':', 1)[0]}:{FORMER_TAG}"
    import_image(coil.cluster, archive)
    for node in coil.nodes:
        node.tag_image(name, former)
    import_image(coil.cluster, build_image())
    release = replace(coil.release, chart=revision.chart, values={**coil.release.values, "image.tag": FORMER_TAG})
    release.install()
    release.wait_rolled_out()
    coil.cluster.wait_ready()
    assert release.chart != CHART
    return replace(coil, release=release)
