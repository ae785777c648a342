import io

from coil_migrator.progress import Progress


def test_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    progress = Progress(stream, columns=None)
    progress.begin(10)
    progress.step("one")
    progress.say("a word")
    progress.step("two")
    progress.end()
    assert stream.getvalue() == " 1/10 one\na word\n 2/10 two\n"


def screen(text: str) -> list[str]:
    """What a terminal would show: `\\r` and erase-to-the-end are all it has to know."""
    lines = [""]
    for piece in text.replace("\r\x1b[K", "\r").split("\n"):
        lines[-1] += piece
        lines.append("")
    return [line.rpartition("\r")[2] for line in lines[:-1]]


def test_a_bar_on_a_terminal_below_the_lines() -> None:
    stream = io.StringIO()
    progress = Progress(stream, columns=lambda: 80)
    progress.begin(2)
    progress.step("one")
    progress.say("a word")
    progress.step("two")
    assert screen(stream.getvalue()) == ["a word", "[##########----------] 2/2 two"]
    progress.end()
    progress.end()
    assert screen(stream.getvalue()) == ["a word", ""]
    progress.say("the end")
    assert screen(stream.getvalue()) == ["a word", "the end", ""]


def test_a_bar_is_never_wider_than_the_terminal() -> None:
    stream = io.StringIO()
    progress = Progress(stream, columns=lambda: 30)
    progress.begin(1)
    progress.step("x" * 100)
    assert len(screen(stream.getvalue())[-1]) == 29
