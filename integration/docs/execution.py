"""Runs blocks of the pages as they stand, for the cluster tests: `runnable_blocks` says which, and under which names.

Nothing is put into their text. What differs from cluster to cluster are variables in them, `$NODE` and the like, which
come by the environment; the programs are those of `integration.admin_programs`, by PATH, and KUBECONFIG says of which
cluster.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from integration.docs.page import COMMANDS, MANIFESTS, ROOT, Block, Place, Run

_ENVIRONMENT = Path(sys.executable).parent

NodeShell = Callable[[Sequence[str]], str]
"""Runs a command on a node as root and returns what it prints; raises when it fails."""


class BlockError(Exception):
    """A block of a page did not do what the page promises; the message has what was said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """An admin's shell.

    `home` is where kubectl and helm keep what they remember. `programs` are folders that PATH begins with; it does not
    have the checkout's environment, which an admin has not. `variables` are what the blocks name with a dollar sign,
    and `seconds` is the bound of each block.
    """

    kubeconfig: Path
    home: Path
    programs: Sequence[Path] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 180.0

    def run(
        self,
        block: Block,
        *,
        node: NodeShell | None = None,
        variables: Mapping[str, str] | None = None,
        code: int = 0,
    ) -> str:
        """Commands by `sh -eu`, manifests by `kubectl apply`; returns what a terminal would show. Raises BlockError.

        A block for a node wants `node`, and gives its standard output only. `variables` come in addition, and win.
        Commands of an admin must end with `code`.
        """
        more = variables or {}
        if not isinstance(block.mark, Run):
            raise BlockError(f"{block} is not marked as one that tests execute")
        if block.language == MANIFESTS:
            return self.execute(["kubectl", "apply", "--filename=-"], what=str(block), stdin=block.text)
        if block.language != COMMANDS:
            raise BlockError(f"{block}: a block of {block.language or 'no language'} cannot be executed")
        if block.mark.place is Place.ADMIN:
            return self.execute(["sh", "-eu", "-c", block.text], what=str(block), variables=more, code=code)
        if node is None:
            raise BlockError(f"{block} is for a node, and none was given")
        settings = {**self.variables, **more}
        return node(["env", *(f"{name}={value}" for name, value in settings.items()), "sh", "-euc", block.text])

    def execute(
        self,
        command: Sequence[str],
        *,
        what: str,
        stdin: str = "",
        variables: Mapping[str, str] | None = None,
        code: int = 0,
    ) -> str:
        """Any command in the same surroundings, at the top of the checkout, which must end with `code`.

        Raises BlockError. What does not end in time is killed, with all that it has started.
        """
        with subprocess.Popen(
            command,
            env={**self.environment(), **(variables or {})},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                printed, _ = process.communicate(stdin, timeout=self.seconds)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                printed, _ = process.communicate()
                if isinstance(error, subprocess.TimeoutExpired):
                    said = f"{what} was not done within {self.seconds:.0f} s:\n{printed}"
                    raise BlockError(said.rstrip()) from None
                raise
        if process.returncode != code:
            raise BlockError(f"{what} ended with code {process.returncode}:\n{printed}".rstrip())
        return printed

    def environment(self) -> dict[str, str]:
        """What commands see."""
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        others = os.environ.get("PATH", os.defpath).split(os.pathsep)
        folders = [*map(str, self.programs), *(folder for folder in others if folder != str(_ENVIRONMENT))]
        return {
            **kept,
            **self.variables,
            "PATH": os.pathsep.join(folders),
            "HOME": str(self.home),
            "KUBECONFIG": str(self.kubeconfig),
        }
