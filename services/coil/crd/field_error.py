"""What a validation finds: the field at fault and a sentence about it, in the API server's own notation."""

from collections.abc import Sequence
from dataclasses import dataclass


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
