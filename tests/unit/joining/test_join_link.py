"""A join link survives a copy, and a damaged one is told apart from a revoked one, without quoting its token."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.errors import ConfigError
from tandem.joining.join_link import JoinLink, read_link

LINK = JoinLink("cloud.example", 7800, bytes(range(32)), b"sixteen secrets!")
TEXT = str(LINK)
TOKEN = TEXT.partition(".example")[2].partition(".")[2]
HOSTS = st.sampled_from(["cloud.example", "127.0.0.1", "::1", "localhost", "2001:db8::7"])


@given(HOSTS, st.integers(1, 65535), st.binary(min_size=32, max_size=32), st.binary(min_size=16, max_size=16))
def test_every_link_is_read_as_it_was_written(
    host: str, port: int, fingerprint: bytes, secret: bytes
) -> None:
    link = JoinLink(host, port, fingerprint, secret)
    assert JoinLink.parse(str(link)) == link
    assert JoinLink.parse(f"  {link}\n") == link


@pytest.mark.parametrize(
    "around", ["{}\r\n", "\ufeff{}\n", "<{}>", '"{}"', "\u201c{}\u201d", "\u200b{}", "{}."]
)
def test_a_link_is_read_as_it_arrives(around: str, tmp_path: Path) -> None:
    """From mail, a chat or an editor, as an argument and in a file."""
    link = JoinLink("cloud.example", 7800, bytes(range(32)), bytes(range(16)))
    assert read_link(around.format(link)) == link
    file = tmp_path / "link.txt"
    file.write_text(around.format(link), "utf-8")
    file.chmod(0o600)
    assert read_link(str(file)) == link


def test_the_secret_is_in_the_link_alone() -> None:
    assert TOKEN in TEXT
    assert "secret" not in repr(LINK)
    assert TOKEN not in repr(LINK)


@given(st.integers(0, len(TOKEN) - 1), st.sampled_from(string.ascii_letters + string.digits + "-_"))
def test_a_mistyped_character_is_noticed(position: int, character: str) -> None:
    """Two bytes of check: one in 65,536 would pass, none of these 1,536."""
    if TOKEN[position] == character:
        return
    mistyped = TEXT[: -len(TOKEN)] + TOKEN[:position] + character + TOKEN[position + 1 :]
    with pytest.raises(ConfigError, match=r"mistyped|damaged"):
        JoinLink.parse(mistyped)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "looks like"),
        ("cloud.example:7800", "looks like"),
        ("https://cloud.example:7800/#a.b", "looks like"),
        ("tandem://cloud.example/#a.b", "looks like"),
        ("tandem://cloud.example:no/#a.b", "looks like"),
        ("tandem://:7800/#a.b", "looks like"),
        ("tandem://cloud.example:70000/#a.b", "looks like"),
        ("tandem://me@cloud.example:7800/#a.b", "looks like"),
        ("tandem://cloud.example:7800/x/#a.b", "looks like"),
        ("tandem://[::1:7800/#a.b", "looks like"),
        ("tandem://cloud..example:7800/#a.b", "looks like"),
        (f"tandem://{'a' * 64}.example:7800/#a.b", "looks like"),
        ("tandem://cloud.example:7800/", "no fingerprint and token"),
        ("tandem://cloud.example:7800/#abc", "no fingerprint and token"),
        (TEXT[:-1], "damaged"),
        (TEXT + "A", "damaged"),
        (TEXT.replace("#", "#A"), "damaged"),
        (TEXT[:-2] + "é", "damaged"),
    ],
)
def test_what_is_no_link_gets_one_sentence_without_the_token(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        JoinLink.parse(text)
    said = str(raised.value)
    assert TOKEN[:-2] not in said
    assert said.count(". ") == 0
    assert len(said) < 260
