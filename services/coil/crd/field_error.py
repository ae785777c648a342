"""What a validation finds: the field at fault and a sentence about it, in the API server's own notation."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_POSITION = re.compile(r"\[[0-9]+\]")


@dataclass(frozen=True, slots=True)
class FieldError:
    """`path` is as users write it (`spec.subnets[0].ipv4`); `message` starts in lower case."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def render_errors(errors: Sequence[FieldError]) -> str:
    """One line for a log, a condition or an admission answer."""
    return "; ".join(str(error) for error in errors)


def render_names(names: Sequence[str], *, shown: int = 5) -> str:
    """Objects in a sentence: the first `shown` of them, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def select_new(errors: Sequence[FieldError], before: Sequence[FieldError]) -> list[FieldError]:
    """What an update breaks anew. An entry of a list that was wrong before is no news at another position."""
    known = {(_POSITION.sub("[]", error.path), error.message) for error in before}
    return [error for error in errors if (_POSITION.sub("[]", error.path), error.message) not in known]
