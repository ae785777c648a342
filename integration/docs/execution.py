"""Runs blocks of the pages as they stand, for the cluster tests: `runnable_blocks` says which, and under which names.

Nothing is put into their text. What differs from cluster to cluster are variables in them, `$NODE` and the like, which
come by the environment; `kubectl` and `helm` are those of the tests, by PATH, and KUBECONFIG says of which cluster.
"""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from integration.docs.page import COMMANDS, MANIFESTS, ROOT, Block, Place, Run

NodeShell = Callable[[Sequence[str]], str]
"""Runs a command on a node as root and returns what it prints; raises when it fails."""


class BlockError(Exception):
    """A block of a page did not do what the page promises; the message has what was said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """`programs` are folders that PATH begins with; `variables` what the blocks name with a dollar sign."""

    kubeconfig: Path
    programs: Sequence[Path] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 180.0

    def run(self, block: Block, *, node: NodeShell | None = None) -> str:
        """Commands by `sh -eu`, manifests by `kubectl apply`; returns the standard output. Raises BlockError.

        A block for a node wants `node`.
        """
        if not isinstance(block.mark, Run):
            raise BlockError(f"{block} is not marked as one that tests execute")
        if block.language == MANIFESTS:
            return self._execute(["kubectl", "apply", "--filename=-"], block, stdin=block.text)
        if block.language != COMMANDS:
            raise BlockError(f"{block}: a block of {block.language or 'no language'} cannot be executed")
        if block.mark.place is Place.ADMIN:
            return self._execute(["sh", "-eu", "-c", block.text], block)
        if node is None:
            raise BlockError(f"{block} is for a node, and none was given")
        return node(["env", *(f"{name}={value}" for name, value in self.variables.items()), "sh", "-euc", block.text])

    def environment(self) -> dict[str, str]:
        """What commands see."""
        path = os.pathsep.join([*map(str, self.programs), os.environ.get("PATH", os.defpath)])
        return {**os.environ, **self.variables, "PATH": path, "KUBECONFIG": str(self.kubeconfig)}

    def _execute(self, command: Sequence[str], block: Block, *, stdin: str = "") -> str:
        try:
            done = subprocess.run(
                command,
                input=stdin,
                env=self.environment(),
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=self.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BlockError(f"{block} was not done within {self.seconds:.0f} s") from None
        if done.returncode != 0:
            raise BlockError(f"{block} ended with code {done.returncode}:\n{done.stdout}{done.stderr}".rstrip())
        return done.stdout
