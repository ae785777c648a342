"""A part of the demo on a stage of its own, which is built before it is the part's turn and taken down in the end."""

import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Protocol, TypeVar

from integration.demo.narration import DemoError, logs_if_it_fails
from integration.demo.part import wait_for_turn
from integration.service import ServiceError

_FAILURES = (AssertionError, OSError, ServiceError, subprocess.SubprocessError)


class Stage(Protocol):
    """What a scene is shown on."""

    def logs(self) -> Iterable[tuple[str, str]]:
        """Name and log of each of its programs."""
        ...


S = TypeVar("S", bound=Stage)


def show_on_stage(
    name: str, *, build: Callable[[ExitStack], S], scene: Callable[[S], None], failure: type[Exception]
) -> None:
    """Build the stage, wait for the part's turn, and show the scene; `name` begins the sentence about the result.

    Raises DemoError for what did not hold: in place of the usual errors of a stage, and of this stage's own `failure`.
    Other errors speak for themselves.
    """
    try:
        with ExitStack() as stack:
            stage = build(stack)
            wait_for_turn()
            began = time.monotonic()
            with logs_if_it_fails(stage.logs):
                scene(stage)
    except (*_FAILURES, failure) as error:
        raise DemoError(f"{name} did not hold: {str(error) or repr(error)}") from error
    print(f"{name} held, in {time.monotonic() - began:.0f} s.")
