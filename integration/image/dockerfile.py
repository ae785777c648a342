"""A Dockerfile as stages and their steps: the part of the language that the project's own file is written in. Pure.

Known are ARG, FROM, RUN, COPY, ENV, LABEL and USER. Anything else is an error and never passed over: what is built
without Docker is what Docker would build.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from string import Template
from types import MappingProxyType

SCRATCH = "scratch"
"""The base that holds nothing."""


class DockerfileError(Exception):
    """The file says something that is not known here; the message has the line's number."""


@dataclass(frozen=True, slots=True)
class Run:
    """A shell script and the variables that it sees."""

    script: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Copy:
    """Files of the checkout, or of the stage `stage`, to a folder, or to `target` itself where it has no final `/`."""

    sources: tuple[str, ...]
    target: str
    stage: str | None = None


@dataclass(slots=True)
class Stage:
    """One FROM and what follows it. `base` is an image, or the name of a stage before it."""

    name: str
    base: str
    steps: list[Run | Copy] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    user: str = ""


def parse_dockerfile(text: str, arguments: Mapping[str, str] = MappingProxyType({})) -> list[Stage]:
    """The stages in their order; the last one is the image. `arguments` take the place of what ARG says.

    Raises DockerfileError, also for an argument that no ARG names.
    """
    stages: list[Stage] = []
    given: dict[str, str] = {}  # by ARG before the first FROM
    local: dict[str, str] = {}  # by ARG in the stage
    unknown = set(arguments)
    for number, instruction, rest in _instructions(text):
        try:
            if instruction == "FROM":
                stages.append(_stage(rest, given, unnamed=str(len(stages))))
                local = {}
            elif instruction == "ARG":
                pairs = _pairs(rest, given)
                unknown -= pairs.keys()
                (local if stages else given).update({name: arguments.get(name, value) for name, value in pairs.items()})
            elif not stages:
                raise ValueError("comes before FROM")
            else:
                _read_step(stages[-1], instruction, rest, local)
        except (ValueError, KeyError) as error:
            raise DockerfileError(f"line {number}: {instruction} {rest[:60]}: {error}") from error
    if not stages:
        raise DockerfileError("there is no FROM")
    if unknown:
        raise DockerfileError(f"there is no ARG {', '.join(sorted(unknown))}")
    return stages


def _read_step(stage: Stage, instruction: str, rest: str, local: Mapping[str, str]) -> None:
    known = {**local, **stage.environment}
    match instruction:
        case "RUN":
            if rest.startswith(("[", "--", "<<")):
                raise ValueError("only RUN with a plain shell command is known")
            stage.steps.append(Run(rest, known))
        case "COPY":
            stage.steps.append(_copy(Template(rest).substitute(known)))
        case "ENV":
            stage.environment |= _pairs(rest, known)
        case "LABEL":
            stage.labels |= _pairs(rest, known)
        case "USER":
            stage.user = Template(rest).substitute(known)
        case _:
            raise ValueError("not known")


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """(number of its first line, instruction, the rest as one line). Comments go, those between lines as well."""
    begun, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or not line.strip():
            continue
        begun = begun if parts else number
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield (begun, *_split("".join(parts)))
            parts = []
    if parts:
        raise DockerfileError(f"line {begun}: goes on after the end of the file")


def _split(line: str) -> tuple[str, str]:
    instruction, _, rest = line.strip().partition(" ")
    return instruction.upper(), rest.strip()


def _stage(rest: str, given: Mapping[str, str], *, unnamed: str) -> Stage:
    match Template(rest).substitute(given).split():
        case [base]:
            return Stage(unnamed, base)
        case [base, word, name] if word.upper() == "AS":
            return Stage(name, base)
    raise ValueError("is not FROM base AS name")


def _copy(rest: str) -> Copy:
    *options, last = re.split(r"(?<=\S)\s+(?!--)", rest, maxsplit=1) if rest.startswith("--") else (rest,)
    words = last.split()
    stages = [option.removeprefix("--from=") for option in options if option.startswith("--from=")]
    if len(stages) != len(options) or len(words) < 2:
        raise ValueError("is not COPY [--from=stage] source… target")
    return Copy(tuple(words[:-1]), words[-1], stages[0] if stages else None)


def _pairs(rest: str, known: Mapping[str, str]) -> dict[str, str]:
    """`A=1 B="two words"`; a value may use what was known before."""
    pairs = (word.partition("=") for word in shlex.split(rest))
    found = {name: Template(value).substitute(known) for name, equals, value in pairs if equals}
    if not found or len(found) != len(shlex.split(rest)):
        raise ValueError("is not name=value…")
    return found
