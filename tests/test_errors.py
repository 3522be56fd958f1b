"""Names of files and classes in messages."""

import pytest

from redi.errors import one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("one\ntwo\rthree", "one\\x0atwo\\x0dthree"),
        ("\x9b31m", "\\x9b31m"),  # the one-byte form of ESC [
        ("caf\udce9.jpg", "caf\\xe9.jpg"),  # a name in Latin-1
        ("\ud83d", "\\ud83d"),
        ("a\u202egpj.exe", "a\\u202egpj.exe"),
        ("café, 日本語, \U0001f600 and a\ttab", "café, 日本語, \U0001f600 and a\ttab"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped_and_the_rest_stays(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text).encode()
    assert printable(ValueError(text)) == shown


def test_an_error_that_cannot_write_its_message_has_its_name() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise KeyError("no message")

    assert one_line(Mute()) == "Mute"
