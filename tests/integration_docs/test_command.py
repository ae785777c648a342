"""A block's commands, word by word: what the shell would make of them, and what is refused as unread."""

import pytest

from integration.docs.command import Command, CommandError, parse_commands


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kubectl get pods -o wide\n", [("kubectl", "get", "pods", "-o", "wide")]),
        ("helm install coil \\\n  charts/coil\n", [("helm", "install", "coil", "charts/coil")]),
        ("a 'b c' \"d e\" f\\ g", [("a", "b c", "d e", "f g")]),
        ("a; b && c | d", [("a",), ("b",), ("c",), ("d",)]),
        ("a > file b\na < file", [("a", "b"), ("a",)]),
        ("# nothing\na # and a reason\n\n", [("a",)]),
        ("NODE=one\nA=1 B=2 run c=3", [("run", "c=3")]),
        ("a $NODE", [("a", "$NODE")]),
        ("a --set=b.c=d,e='f g'", [("a", "--set=b.c=d,e=f g")]),
        ("", []),
    ],
)
def test_words(text: str, words: list[tuple[str, ...]]) -> None:
    assert [command.words for command in parse_commands(text)] == words


def test_a_document_goes_to_the_command_before_it() -> None:
    text = "kubectl apply -f - <<'END'\nkind: A\nb: 'c\nEND\nls\n"
    assert parse_commands(text) == [
        Command(("kubectl", "apply", "-f", "-"), "kind: A\nb: 'c\n"),
        Command(("ls",)),
    ]


@pytest.mark.parametrize(
    "text", ["a $(b)", "a `b`", "(a)", "for a in b; do c; done", "if a; then b; fi", "a 'b", "a <<END\nb\n", "a >& b"]
)
def test_more_than_is_understood_is_refused(text: str) -> None:
    with pytest.raises(CommandError):
        parse_commands(text)


def test_flags_end_at_two_dashes() -> None:
    (command,) = parse_commands("kubectl exec --stdin pod --container=a -n b -- sh --login")
    assert command.program == "kubectl"
    assert command.flags() == ["--stdin", "--container"]


def test_values_of_an_option() -> None:
    (command,) = parse_commands("helm upgrade --set a=1 --set=b=2 --set-string c=3 --values d")
    assert list(command.option_values("--set", "--set-string")) == ["a=1", "b=2", "c=3"]
    assert list(command.option_values("--values")) == ["d"]
    assert list(command.option_values("--filename")) == []
