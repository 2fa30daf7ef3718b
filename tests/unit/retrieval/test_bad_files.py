"""Files that are encrypted, damaged, empty, or made to do harm: one sentence each, and the rest is read."""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from tandem.retrieval.loaders import Loaded, load_path
from tests.unit.retrieval import office_files as make

DOCX = make.docx_bytes(lambda document: document.add_paragraph("hello"))
XLSX = make.xlsx_bytes(A=[["hello"]])
MSG = make.msg_bytes({"0037": "hello"}, {})
ZIP = make.zip_bytes({"a.txt": b"hello " * 99})


def pptx(presentation) -> None:
    box = presentation.slides.add_slide(presentation.slide_layouts[6]).shapes.add_textbox(0, 0, 99, 99)
    box.text_frame.text = "hello"


PPTX = make.pptx_bytes(pptx)
EPUB = make.epub_bytes("hello", [], ["<p>hello</p>"])
SOUND = {"docx": DOCX, "pptx": PPTX, "xlsx": XLSX, "epub": EPUB, "msg": MSG, "zip": ZIP}


def with_entity(data: bytes, member: str, declaration: str) -> bytes:
    """An archive whose member declares an XML entity e and holds it."""
    with zipfile.ZipFile(BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    text = members[member]
    head = text[: text.index(b"?>") + 2] if text.startswith(b"<?xml") else b""
    rest = text[len(head) :].replace(b"hello", b"hello&e;")
    assert b"&e;" in rest
    members[member] = head + f"<!DOCTYPE x [{declaration}]>".encode() + rest
    return make.zip_bytes(members)


LAUGHS = '<!ENTITY a "lol">' + "".join(
    f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in zip("abcdfghij", "bcdfghijk", strict=True)
)
LAUGHS += '<!ENTITY e "&k;">'
OUTSIDE = '<!ENTITY e SYSTEM "file:///etc/passwd">'
PLACES = {
    "docx": (DOCX, "word/document.xml"),
    "xlsx": (XLSX, "xl/worksheets/sheet1.xml"),
    "pptx": (PPTX, "ppt/slides/slide1.xml"),
    "epub": (EPUB, "EPUB/content.opf"),
}


def encrypted_zip() -> bytes:
    """With the flag of an encrypted member, as every reader looks at it first."""
    data = bytearray(make.zip_bytes({"a.txt": b"hello"}))
    data[data.find(b"PK\3\4") + 6] |= 1
    data[data.find(b"PK\1\2") + 8] |= 1
    return bytes(data)


def nested(times: int) -> bytes:
    data = make.zip_bytes({"a.txt": b"hello"})
    for _ in range(times):
        data = make.zip_bytes({"n.zip": data})
    return data


LARGE = "it unpacks to more than 100 MB; unpack it, and index what it holds"
LOCKED = "it is encrypted; save it without a password"
LOCKED_OFFICE = make.cfb_bytes({"EncryptedPackage": bytes(5000), "EncryptionInfo": b"x"})
LOCKED_MAIL = b"Subject: s\r\nContent-Type: multipart/encrypted; boundary=a\r\n\r\n--a--"
BOMB = make.zip_bytes({"0.txt": bytes(60_000_000)})
FILES: dict[str, tuple[bytes, str]] = {
    **{f"empty.{kind}": (b"", "") for kind in SOUND},
    **{f"text.{kind}": (b"hello, this is text" * 99, "") for kind in SOUND},
    **{f"cut.{kind}": (data[: len(data) // 2], "") for kind, data in SOUND.items()},
    **{f"tail.{kind}": (data[-len(data) // 2 :], "") for kind, data in SOUND.items()},
    **{f"locked.{kind}": (LOCKED_OFFICE, LOCKED) for kind in ("docx", "pptx", "xlsx")},
    "old.docx": (make.cfb_bytes({"WordDocument": bytes(99)}), "it is in a format older than docx; save it as docx"),
    "other.docx": (ZIP, "it is not a sound docx"),
    "other.odt": (ZIP, "it is not a sound OpenDocument"),
    "other.msg": (make.cfb_bytes({"x": b"y"}), "it is not a message of Outlook; save it again"),
    "locked.zip": (encrypted_zip(), LOCKED),
    "nothing.zip": (make.zip_bytes({}), "it holds no files; fill it or remove it"),
    "bomb.zip": (make.zip_bytes({"0.txt": bytes(120_000_000)}), LARGE),
    "bombs.zip": (make.zip_bytes({f"{n}.zip": BOMB for n in range(3)}), LARGE),
    "bomb.docx": (make.zip_bytes({"word/document.xml": bytes(120_000_000)}), LARGE),
    "many.zip": (make.zip_bytes({f"{n}.csv": b"" for n in range(20_001)}), "it holds more than 20,000 files; unpack"),
    "nul.csv": (b"a,b\0c", "it is not text"),
    "quote.csv": (b'"' + b"x" * 200_000, "it is not a sound csv"),
    "body.eml": (b"just text", "it is not an e-mail: it has neither subject nor sender nor date; save it again"),
    "locked.eml": (LOCKED_MAIL, "it is encrypted"),
    "bad.mbox": (b"hello", "it is not a mailbox: it does not begin with a line From; export it again"),
    **{f"laughs.{kind}": (with_entity(*PLACES[kind], LAUGHS), "") for kind in PLACES},
}  # fmt: skip


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("bad")
    for name, (data, _) in FILES.items():
        (folder / name).write_bytes(data)
    (folder / "good.txt").write_text("good")
    return load_path(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_one_sentence(loaded: Loaded, name: str) -> None:
    sentences = [problem for problem in loaded.problems if problem.startswith((f"{name} ", f"{name}/"))]
    assert len(sentences) == 1, sentences
    assert sentences[0].startswith(f"{name} was left out: it ")
    assert FILES[name][1] in sentences[0]
    assert "()" not in sentences[0]
    assert "Success" not in sentences[0]
    assert not any(document.metadata["source"].split("/")[0] == name for document in loaded.documents)


def test_no_entity_is_followed(tmp_path: Path) -> None:
    """Slides are read without them, and no other file that has one is read."""
    for kind, place in PLACES.items():
        (tmp_path / f"outside.{kind}").write_bytes(with_entity(*place, OUTSIDE))
    loaded = load_path(tmp_path)
    assert [document.page_content for document in loaded.documents] == ["hello"]
    assert [problem.partition(" was left out: it ")[0] for problem in loaded.problems] == [
        f"outside.{kind}" for kind in ("docx", "epub", "xlsx")
    ]


def test_what_is_too_deep_is_named_and_what_is_not_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(make.zip_bytes({"2.zip": nested(2), "3.zip": nested(3)}))
    loaded = load_path(tmp_path)
    assert [document.metadata["source"] for document in loaded.documents] == ["a.zip/2.zip/n.zip/n.zip/a.txt"]
    assert loaded.problems == [
        "a.zip/3.zip/n.zip/n.zip/n.zip/a.txt was left out: it lies in more than 4 files within each other; unpack them."
    ]


@pytest.mark.parametrize(
    "head",
    [
        b"From: <<<>>>,,;;\r\nDate: no\r\nSubject: =?bad?Q?=ff?=\r\n",
        b"Subject: x\r\nContent-Type: text/plain; charset=nonsense\r\n",
        b"Subject: x\r\nContent-Type: ;;;\r\nContent-Transfer-Encoding: nonsense\r\n",
        b"Subject: x\r\nContent-Type: multipart/mixed\r\n",
    ],
)
def test_odd_mails_are_read(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "a.eml").write_bytes(head + b"\r\nbody\r\n")
    loaded = load_path(tmp_path)
    assert "body" in loaded.documents[0].page_content
    assert not loaded.problems


def test_names_of_members_lead_nowhere(tmp_path: Path) -> None:
    names = ["../../etc/a.txt", "/b.txt", "C:\\x\\..\\c.txt", "d\x1b[31m.txt", "./e/./f.txt"]
    (tmp_path / "a.zip").write_bytes(make.zip_bytes({name: b"x" for name in names}))
    sources = [document.metadata["source"] for document in load_path(tmp_path).documents]
    assert sources == [
        f"a.zip/{name}" for name in ("etc/a.txt", "b.txt", "C:/x/c.txt", "d_[31m.txt", "e/f.txt")
    ]


def test_one_bad_member_costs_no_other(tmp_path: Path) -> None:
    data = make.zip_bytes({"a.txt": b"hello " * 99, "b.txt": b"good", "c.pdf": b"%PDF-", "d.txt": b""})
    place = data.find(b"a.txt") + 8
    (tmp_path / "a.zip").write_bytes(data[:place] + b"\xff\xff" + data[place + 2 :])
    loaded = load_path(tmp_path)
    assert [document.metadata["source"] for document in loaded.documents] == ["a.zip/b.txt"]
    named = [problem.partition(" was left out: it ")[0] for problem in loaded.problems]
    assert named == ["a.zip/a.txt", "a.zip/c.pdf", "a.zip/d.txt"]


def test_a_kind_whose_extra_is_missing_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder and in an archive; the rest is read."""
    monkeypatch.setattr(
        "tandem.system.file_kinds.find_spec", lambda name: None if name == "markitdown" else name
    )
    for name in ("a.docx", "b.docx", "c.pptx"):
        (tmp_path / name).write_bytes(SOUND[name[2:]])
    (tmp_path / "d.xlsx").write_bytes(XLSX)
    loaded = load_path(tmp_path)
    assert [document.metadata["source"] for document in loaded.documents] == ["d.xlsx"]
    first, second = loaded.problems
    assert first.startswith("2 files ending in .docx were left out: markitdown is not installed; run `")
    assert first.endswith("[office]'`.") or first.endswith("[office]`.")
    assert second.startswith("1 file ending in .pptx was left out: markitdown is not installed; run `")
