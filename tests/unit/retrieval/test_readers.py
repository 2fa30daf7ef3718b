"""What `test_real_files` does not show of each format: odd and broken files. Sentences are pinned."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest
from pypdf import PdfReader, PdfWriter

from tandem.retrieval.documents import Document
from tandem.retrieval.readers import Unreadable, read_file
from tandem.system.file_kinds import as_text, file_kinds
from tests.unit.retrieval.conftest import pdf_bytes


def read(path: Path, data: bytes | str) -> tuple[list[Document], list[str]]:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    problems: list[str] = []
    with path.open("rb") as file:
        return list(read_file(file, path.name, path.name, problems)), problems


def refusal(path: Path, data: bytes | str) -> str:
    with pytest.raises(Unreadable) as caught:
        read(path, data)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "encoding", "name"),
    [
        ("Grüße … déjà vu, „30 €“", "cp1252", "windows-1252"),
        ("Ole skrev: blåbær og rødgrød med fløde.", "cp1252", "windows-1252"),
        ("Собрание состоится в пятницу в десять часов утра в большом зале.", "cp1251", "cp1251"),
        ("会議は金曜日の午前十時に始まります。", "cp932", "cp932"),
        ("Łódź jest duża. Wszyscy ludzie rodzą się wolni i równi.", "cp1250", "cp1250"),
        ("What is agreed on: 30 chairs", "utf-16-le", "utf-16-le"),
    ],
)
def test_text_in_another_encoding_is_guessed_and_said(
    tmp_path: Path, text: str, encoding: str, name: str
) -> None:
    (document,), problems = read(tmp_path / "a.txt", text.encode(encoding))
    assert document.page_content == text
    assert problems == [
        f"a.txt was read as {name}, which is a guess, since it is not UTF-8; save it as UTF-8 if letters are wrong."
    ]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_byte_order_mark_says_the_encoding(tmp_path: Path, encoding: str) -> None:
    for name, data in {"a.txt": "Öl 你好", "b.html": "<p>Öl 你好", "c.csv": "Öl,你好"}.items():
        (document,), problems = read(tmp_path / name, data.encode(encoding))
        assert document.page_content.replace("\t", " ") == "Öl 你好"
        assert not problems


@pytest.mark.parametrize(("name", "data"), [("a.txt", " \n"), ("a.html", "<html><body><p> </p></body>")])
def test_no_text(tmp_path: Path, name: str, data: str) -> None:
    assert refusal(tmp_path / name, data) == "it holds no text; fill it or remove it"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<table><tr><th>Hall<th>Seats<tr><td>North<td>40</table>", "Hall\tSeats\nNorth\t40"),
        ("<table><caption>Halls</caption><tr><td>North</table>", "Halls\nNorth"),
        ("<table><tr><td><p>Hall</p><td><div>Seats</div><tr><td><p>a<br>b</p><td>2</table>", "Hall\tSeats\na b\t2"),
        ("<table><tr><td></td><td>x</td></tr><tr><td colspan=2>y</td><td>z</td></tr></table>", "\tx\ny\t\tz"),
        ("<table><tr><td><h2>News</h2><p>a</p><p>b</p></table>", "## News\na\nb"),
        ("<ol start=3><li>c<ul><li>d</ul><li>e</ol><menu><li>f</menu>", "3. c\n- d\n4. e\n- f"),
        ("<h1>A<br>B</h1><h2></h2>x<h6>y</h6>", "# A B\nx\n###### y"),
        ("<select><option>Tea<option>Milk</select><p>more", "☒ Tea\n☐ Milk\nmore"),
        ("<details><summary>Why?</summary>Because.</details>", "Why?\nBecause."),
        ("a<button>Save</button><button>Stop</button>", "a Save Stop"),
        ("Name <input value='Ida'><input type=password value='key'><input type=hidden value='no'>", "Name Ida"),
        ("<pre>for x in y:\n    go(x)\t# on</pre><p>a   b", "for x in y:\n    go(x)\t# on\na b"),
        ("Donau&shy;dampf", "Donaudampf"),
        ("<p hidden>no</p><p hidden='until-found'>no</p>yes", "yes"),
        ("<p style='color: red; DISPLAY:none'>no</p><p style='opacity:.0'>no</p><p style='opacity:0.5'>yes", "yes"),
        ("<b style='visibility:hidden'>no</b><i style='font-size:0px'>no</i><i style='font-size:0.9em'>yes", "yes"),
        ("<p hidden>no<p>yes<ul><li hidden>no<li>yes</ul>", "yes\n- yes"),
        ("<table><tr><td hidden>no<td>yes<tr hidden><td>no<tr><td>yes</table>", "yes\nyes"),
        ("<ul><li hidden>no<ul><li>no</ul>no<li>yes</ul>", "- yes"),
        ("<dialog>no</dialog><dialog open>yes</dialog>", "yes"),
        ("<style>/* a */ .x, #y > i { display : none }</style><p class=x>no<p id=y><i>no</i>yes", "yes"),
        ("<style>@media print { p { display: none } } p:nope( { display: none }</style><p>yes", "yes"),
        ("<iframe>no</iframe><video>no</video><svg><text>no</text></svg><ruby>a<rp>(</rp></ruby>", "a"),
    ],
)  # fmt: skip
def test_html_is_read_as_a_browser_shows_it(tmp_path: Path, page: str, text: str) -> None:
    (document,), _ = read(tmp_path / "a.html", page)
    assert document.page_content == text


def test_encrypted_pdf(tmp_path: Path) -> None:
    writer = PdfWriter(clone_from=PdfReader(BytesIO(pdf_bytes("Hidden words"))))
    writer.encrypt(user_password="secret", owner_password="owner", algorithm="RC4-128")
    writer.write(tmp_path / "locked.pdf")
    data = (tmp_path / "locked.pdf").read_bytes()
    assert refusal(tmp_path / "a.pdf", data) == "it is encrypted; save it without a password"


@pytest.mark.parametrize("data", [b"", b"not a pdf", b"%PDF-1.4\n%%EOF\n"])
def test_damaged_pdf(tmp_path: Path, data: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    sentence = refusal(tmp_path / "a.pdf", data)
    assert sentence.startswith("it is not a sound pdf (")
    assert sentence.endswith("); print it to pdf again")
    assert capfd.readouterr().err == ""


def test_truncated_pdf_never_escapes_as_another_error(tmp_path: Path) -> None:
    whole = pdf_bytes("First page", "Second page")
    for length in range(0, len(whole), 37):
        with suppress(Unreadable):
            read(tmp_path / "a.pdf", whole[:length])


def test_jsonl(tmp_path: Path) -> None:
    """Fields besides the text are metadata."""
    lines = [
        {"text": "One.", "year": 2024, "tags": ["a"], "who": {"name": "Mira"}, "metadata": {"lang": "en"}},
        {"text": "two\u2028three", "year": 1999, "metadata": {"year": 2000}, "none": None, "who": [{}]},
        {"text": "x", "metadata": None},
    ]
    text = "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    documents, problems = read(tmp_path / "a.jsonl", text)
    assert [(document.page_content, document.metadata) for document in documents] == [
        ("One.", {"year": 2024, "tags": ["a"], "lang": "en", "source": "a.jsonl", "line": 1}),
        ("two\u2028three", {"year": 2000, "source": "a.jsonl", "line": 3}),
        ("x", {"source": "a.jsonl", "line": 5}),
    ]
    assert problems == [
        "a.jsonl: the field who was ignored: its value is no text, number, truth value, date or list of these; "
        "flatten what should be metadata."
    ]


def test_jsonl_names_each_bad_line(tmp_path: Path) -> None:
    lines = [
        '{"text": "good"}',
        '{"text": ',
        '{"txt": "a"}',
        '["a"]',
        '{"text": "a", "metadata": [1]}',
        '{"text": ""}',
    ]
    documents, problems = read(tmp_path / "a.jsonl", "\n".join(lines))
    assert [d.page_content for d in documents] == ["good"]
    no_text = 'was left out: it has no "text" with a non-empty string; add one.'
    assert problems == [
        "a.jsonl line 2 was left out: it is not valid JSON (Expecting value: line 1 column 10 (char 9)); "
        "repair it.",
        f"a.jsonl line 3 {no_text}",
        f"a.jsonl line 4 {no_text}",
        'a.jsonl line 5 was left out: its "metadata" is list, not an object; write {...}.',
        f"a.jsonl line 6 {no_text}",
    ]


def test_deeply_nested_html_takes_linear_time(tmp_path: Path) -> None:
    """Processor time, so that other work on the machine counts little."""

    def seconds(depth: int) -> float:
        page = "<div>" * depth + "deep" + "</div>" * depth
        started_s = time.process_time()
        assert read(tmp_path / "a.html", page)[0][0].page_content == "deep"
        return time.process_time() - started_s

    few, many = (min(seconds(depth) for _ in range(2)) for depth in (4_000, 16_000))
    assert many < 10 * few, "4 times as deep: 4 times as long if linear, 16 times if quadratic"


@pytest.mark.parametrize(
    ("matter", "flaw"),
    [
        ("a: [1\n", r".*expected ',' or '\]'.* in line 3"),
        ("a: b: c\n", r"mapping values are not allowed in this context in line 2"),
    ],
)
def test_front_matter_that_is_not_yaml(tmp_path: Path, matter: str, flaw: str) -> None:
    text = f"---\n{matter}---\nText."
    documents, problems = read(tmp_path / "a.md", text)
    assert documents[0].page_content == text
    (problem,) = problems
    sentence = rf"a\.md: its front matter was read as text: it is not valid YAML \({flaw}\); repair it\."
    assert re.fullmatch(sentence, problem)


def test_the_table_of_kinds_names_every_ending_that_is_read() -> None:
    listed = [ending for kind in file_kinds() for ending in kind.endings]
    assert len(listed) == len(set(listed)), "each ending has one reader"
    shown = as_text()
    assert all(ending in shown for ending in listed)
    assert all(kind.metadata.split(",")[0] in shown for kind in file_kinds())
