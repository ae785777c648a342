"""What kubectl is told to complete."""

import pytest

from kubectl_coil.completion import complete

COMMANDS = ["connectivity", "ipam", "status", "sysdump", "trace", "version"]


@pytest.mark.parametrize(
    ("words", "values", "directive"),
    [
        ([], COMMANDS, 4),
        (["s"], ["status", "sysdump"], 4),
        (["ipam", ""], ["check", "show"], 4),
        (["status", "--w"], ["--wait"], 4),
        (["trace", "--protocol", "s"], ["sctp"], 4),
        (["trace", "--protocol=s"], ["--protocol=sctp"], 4),
        (["status", "--output="], ["--output=json", "--output=table", "--output=yaml"], 4),
        (["status", "--kubeconfig", ""], [], 0),
        (["status", "--kubeconfig="], [], 0),
        (["connectivity", "--output", "j"], ["json", "junit"], 4),
        (["sysdump", "--file", ""], [], 0),
        (["nonsense", ""], COMMANDS, 4),
    ],
)
def test_completions(words: list[str], values: list[str], directive: int) -> None:
    *lines, last = complete(words)
    assert last == f":{directive}"
    found = sorted(line.partition("\t")[0] for line in lines)
    assert found == values


def test_commands_have_descriptions() -> None:
    first, _ = complete(["st"])
    assert first.startswith("status\tShow whether Coil is fine")
