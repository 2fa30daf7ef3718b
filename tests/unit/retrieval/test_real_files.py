"""Files of all kinds as people have them, made by the libraries that write them, and read as a person sees them."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple

import pytest
from pypdf import PdfReader, PdfWriter

from tandem.retrieval.loaders import Loaded, load_path
from tandem.system.file_kinds import file_kinds, kind_of
from tests.unit.retrieval import office_files as make
from tests.unit.retrieval.conftest import pdf_bytes


class File(NamedTuple):
    """A file, and what a person sees in it."""

    name: str
    data: Callable[[], bytes]
    texts: list[str]  # of its documents, in their order; a part of a text between "..."
    metadata: list[dict[str, Any]] | None = None  # of its documents, besides `source`
    problems: tuple[str, ...] = ()
    sources: list[str] | None = None  # of its documents, where not the file


def minutes(document: Any) -> None:
    document.sections[0].header.paragraphs[0].text = "Verein Nordlicht e. V."
    document.sections[0].footer.paragraphs[0].text = "Confidential"
    document.add_heading("Minutes", 0)
    document.add_heading("Money", 1)
    document.add_paragraph("The fee_2024 is 5 * 3 €, not [4].")
    table = document.add_table(3, 3)
    for y, row in enumerate(
        [("Hall", "Seats", "Rent"), ("North", "40", "120 €"), ("South\nwing", "", "90 €")]
    ):
        for x, text in enumerate(row):
            table.cell(y, x).text = text
    document.add_heading("To do", 2)
    for style, text in (("List Number", "Call Ida"), ("List Number", "Pay"), ("List Bullet", "Tea")):
        document.add_paragraph(text, style=style)


def letter(document: Any) -> None:
    paragraph = document.add_paragraph("The rent ")
    paragraph.add_run("doubles").bold = True
    paragraph.add_run(" in June.")
    document.add_comment(paragraph.runs, text="Ask the landlord", author="Ida", initials="IB")
    cells = document.add_table(2, 2)
    cells.cell(0, 0).merge(cells.cell(0, 1)).text = "Both halves"
    cells.cell(1, 0).text, cells.cell(1, 1).text = "left", "right"


def slides(presentation: Any) -> None:
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE
    from pptx.util import Inches

    first = presentation.slides.add_slide(presentation.slide_layouts[1])
    first.shapes.title.text = "Budget_2025"
    first.placeholders[1].text = "Rent * 12\nHeating"
    first.notes_slide.notes_text_frame.text = "Heating doubled."
    presentation.slides.add_slide(presentation.slide_layouts[6])
    third = presentation.slides.add_slide(presentation.slide_layouts[5])
    third.shapes.title.text = "Halls"
    table = third.shapes.add_table(2, 2, Inches(1), Inches(2), Inches(4), Inches(1)).table
    for place, text in enumerate(("Hall", "Seats", "North", "40")):
        table.cell(place // 2, place % 2).text = text
    data = CategoryChartData()
    data.categories = ["May", "June"]
    data.add_series("Guests", (30, 45))
    third.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, Inches(1), Inches(4), Inches(4), Inches(3), data)


def group(presentation: Any) -> None:
    from pptx.util import Inches

    slide = presentation.slides.add_slide(presentation.slide_layouts[6])
    for text, top in (("lower", 4), ("upper", 1)):
        slide.shapes.add_textbox(Inches(1), Inches(top), Inches(3), Inches(1)).text_frame.text = text
    shapes = slide.shapes.add_group_shape().shapes
    shapes.add_textbox(Inches(1), Inches(6), Inches(3), Inches(1)).text_frame.text = "in a group"


def mixed_mail() -> bytes:
    message = make.mail_bytes("Grüße … Saal", "The hall is *booked*.\n\n-- \nIda")
    message.add_alternative("<p>The hall is <b>booked</b>.</p>", subtype="html")
    message.add_attachment(b"Hall,Seats\nNorth,40\n", maintype="text", subtype="csv", filename="Säle.csv")
    message.add_attachment(b"\x89PNG", maintype="image", subtype="png", filename="logo.png")
    message.add_attachment(make.mail_bytes("Earlier", "Which hall?\n"))
    return bytes(message)


def html_mail() -> bytes:
    page = "<div style='display:none'>preview</div><p>Liebe Frau Berg,<table><tr><td>Miete</td><td>90 €</td></tr>"
    message = make.mail_bytes("Rechnung", "")
    message.set_content(page, subtype="html", charset="iso-8859-15")
    return bytes(message)


def flowed_mail() -> bytes:
    return (
        b"Subject: =?windows-1252?Q?F=FCr_Ida?=\r\nFrom: Ole <ole@example.org>\r\n"
        b"Content-Type: text/plain; charset=windows-1252; format=flowed\r\n\r\n"
        b"> When? \r\n> Where?\r\nOn Friday \r\nat ten. Tsch\xfcss\r\n"
    )


def mailbox() -> bytes:
    first = bytes(make.mail_bytes("One", "First.\n>From here on\n", To="a@example.org")).replace(
        b"\r\n", b"\n"
    )
    second = make.mail_bytes("Two", "Second.\n")
    second.add_attachment("Chairs: 30", filename="list.txt")
    return (
        b"From ida Mon May  6 10:30:00 2024\n"
        + first
        + b"\nFrom ole Mon May  6 10:30:00 2024\n"
        + bytes(second)
    )


def odt() -> bytes:
    from odf import table, text
    from odf.opendocument import OpenDocumentText

    document = OpenDocumentText()
    document.text.addElement(text.H(outlinelevel=1, text="Garden"))
    paragraph = text.P(text="Beans are sown in May")
    note = text.Note(noteclass="footnote", id="n1")
    note.addElement(text.NoteCitation(text="1"))
    body = text.NoteBody()
    body.addElement(text.P(text="not before the 15th"))
    note.addElement(body)
    paragraph.addElement(note)
    paragraph.addText(".")
    document.text.addElement(paragraph)
    items = text.List()
    for name in ("Spade", "Rake"):
        item = text.ListItem()
        item.addElement(text.P(text=name))
        items.addElement(item)
    document.text.addElement(items)
    rows = table.Table(name="T")
    for cells in (("Bed", "Plant"), ("1", "Beans")):
        row = table.TableRow()
        for value in cells:
            cell = table.TableCell()
            cell.addElement(text.P(text=value))
            row.addElement(cell)
        rows.addElement(row)
    document.text.addElement(rows)
    return make.saved(document.save)


def ods() -> bytes:
    from odf import table, text
    from odf.opendocument import OpenDocumentSpreadsheet

    document = OpenDocumentSpreadsheet()
    for name, rows in {"May": [("Item", "", "Price"), ("Tea", "", "3.50 €")], "Empty": []}.items():
        sheet = table.Table(name=name)
        for values in rows:
            row = table.TableRow()
            for value in values:
                cell = table.TableCell()
                if value:
                    cell.addElement(text.P(text=value))
                row.addElement(cell)
            row.addElement(table.TableCell(numbercolumnsrepeated=16000))
            sheet.addElement(row)
        document.spreadsheet.addElement(sheet)
    return make.saved(document.save)


def filled_pdf() -> bytes:
    """With a title, encrypted with an empty password, as many banks send it."""
    writer = PdfWriter(clone_from=PdfReader(BytesIO(pdf_bytes("Balance 42 EUR", "Page two"))))
    writer.add_metadata({"/Title": "Statement"})
    writer.encrypt("", "owner", algorithm="AES-256")
    return make.saved(writer.write)


def dos_zip() -> bytes:
    """Names in the code page of DOS, with backslashes, and ones that lead elsewhere."""
    data = make.zip_bytes({"Gr__e.txt": "Grüße".encode(), "a#b.txt": b"inner", "../../up.txt": b"up"})
    return data.replace(b"Gr__e", b"Gr\x81\xe1e").replace(b"a#b", b"a\\b")


DAY = datetime.date(2024, 5, 6)
BOOK = [
    ["Item", "Price", "Day", "Share", "Postcode", "Sold"],
    ["Tea", (3.5, "0.00"), DAY, (0.25, "0%"), (1234, "00000"), True],
    ["Salt", 0.1 + 0.2, datetime.datetime(2024, 5, 6, 10, 30), None, "0815", 1234567],
]
BOOK_TEXT = (
    "# Prices\nItem\tPrice\tDay\tShare\tPostcode\tSold\nTea\t3.50\t2024-05-06\t25%\t01234\tTRUE\n"
    "Salt\t0.3\t2024-05-06 10:30:00\t\t0815\t1234567"
)
HEAD = "".join(f"{name}: {value}\n" for name, value in make.HEAD.items()) + "\n"
TUESDAY = "Tue, 7 May 2024 09:00:00 +0200"
REPLIED = f"From: Ole <o@example.org>\r\nDate: {TUESDAY}\r\n\r\n"
GUESS = "old.txt was read as windows-1252, which is a guess, ..."
IDA = {name.lower(): value for name, value in make.HEAD.items()}

FILES = [
    File("plain.txt", lambda: "Zoë\u2019s list:\r\n1. tea\r2. milk".encode(), ["Zoë\u2019s list:\n1. tea\n2. milk"]),
    File("notepad.txt", lambda: "Größe: 30 €".encode("utf-16"), ["Größe: 30 €"]),
    File("old.txt", lambda: "Größe: 30 €\r\n".encode("cp1252"), ["Größe: 30 €\n"], problems=(GUESS,)),
    File(
        "note.md",
        lambda: (
            b"\xef\xbb\xbf---\ntags: [a, b]\nday: 2024-05-06\nroom: 012\nsource: x\ndone: true\nby:\n---\n"
            b"# Hall\n\n| A | B |\n|---|---|\n| 1 | 2 |"
        ),
        ["# Hall\n\n| A | B |\n|---|---|\n| 1 | 2 |"],
        [{"tags": ["a", "b"], "day": "2024-05-06", "room": "012", "given_source": "x", "done": True}],
    ),
    File("plain.md", lambda: b"## Tea\n\n- green\n- black\n", ["## Tea\n\n- green\n- black\n"], [{}]),
    File(
        "page.html",
        lambda: (
            b"<title>Halls</title><nav><ul><li>Home</ul></nav><h1>Halls &amp; rents</h1><table>"
            b"<caption>2024</caption><tr><th>Hall<th>Rent<tr><td><p>North<br>wing<td>120&nbsp;&euro;</table>"
            b"<pre>a  b\n c</pre><script>x</script>"
        ),
        ["- Home\n# Halls & rents\n2024\nHall\tRent\nNorth wing\t120 €\na  b\n c"],
        [{"title": "Halls"}],
    ),
    File(
        "russian.htm",
        lambda: "<meta charset=windows-1251><h2>Зал</h2><ol><li>Стол<li>Стул</ol>".encode("cp1251"),
        ["## Зал\n1. Стол\n2. Стул"],
    ),
    File("saved.xhtml", lambda: b"<html><body><p>One<br/>two</p><hr/><p/>three</body></html>", ["One\ntwo\nthree"]),
    File("two.pdf", lambda: pdf_bytes("First", "", "Third"), ["First", "Third"], [{"page": 1}, {"page": 3}]),
    File(
        "bank.pdf",
        filled_pdf,
        ["Balance 42 EUR", "Page two"],
        [{"page": 1, "title": "Statement"}, {"page": 2, "title": "Statement"}],
    ),
    File("gaps.pdf", lambda: pdf_bytes("", "Only"), ["Only"], [{"page": 2}]),
    File(
        "minutes.docx",
        lambda: make.docx_bytes(minutes),
        [
            "Verein Nordlicht e. V.\n# Minutes\n# Money\nThe fee_2024 is 5 * 3 €, not [4].\nHall\tSeats\tRent\n"
            "North\t40\t120 €\nSouth wing\t\t90 €\n## To do\n1. Call Ida\n2. Pay\n- Tea\nConfidential"
        ],
    ),
    File(
        "letter.docx",
        lambda: make.docx_bytes(letter),
        ["The rent doubles in June.[IB1]\nBoth halves\nleft\tright\nComment [IB1]\nAsk the landlord"],
    ),
    File("chinese.docx", lambda: make.docx_bytes(lambda each: each.add_paragraph("会議は")), ["会議は"]),
    File(
        "slides.pptx",
        lambda: make.pptx_bytes(slides),
        [
            "# Budget_2025\nRent * 12\nHeating\n\n### Notes:\nHeating doubled.",
            "# Halls\nHall\tSeats\nNorth\t40\n\n### Chart\n\nCategory\tGuests\nMay\t30.0\nJune\t45.0",
        ],
        [{"page": 1}, {"page": 3}],
    ),
    File("group.pptx", lambda: make.pptx_bytes(group), ["upper\nlower\nin a group"]),
    File("prices.xlsx", lambda: make.xlsx_bytes(Prices=BOOK), [BOOK_TEXT], [{"sheet": "Prices"}]),
    File(
        "sheets.xlsx",
        lambda: make.xlsx_bytes(May=[["a", 1]], Empty=[], June=[[None, "b"], [], ["c"]]),
        ["# May\na\t1", "# June\n\tb\nc"],
        [{"sheet": "May"}, {"sheet": "June"}],
    ),
    File(
        "sums.xlsx",
        lambda: make.xlsx_bytes(S=[[2, "=A1*2"]]),
        ["# S\n2\t=A1*2"],
        problems=("sums.xlsx: 1 formula has no value in the file and was read as it is; open it and save it once.",),
    ),
    File(
        "book.epub",
        lambda: make.epub_bytes(
            "On Tea", ["Ida Berg", "Ole"], ["<h1>Leaves</h1><p>Green.</p>", "<h1>Water</h1><p>90 °C</p>"]
        ),
        ["# Leaves\nGreen.", "# Water\n90 °C"],
        [{"title": "On Tea", "authors": ["Ida Berg", "Ole"], "chapter": n} for n in (1, 2)],
    ),
    File(
        "tables.epub",
        lambda: make.epub_bytes("T", [], ["<table><tr><td>a</td><td>b</td></tr></table><p hidden='hidden'>no</p>"]),
        ["a\tb"],
    ),
    File("german.csv", lambda: b"Saal;Miete\nNord;1,5\n", ["Saal\tMiete\nNord\t1,5"]),
    File("quoted.csv", lambda: b'"a, b","c\nd"\n\n1,2\n', ["a, b\tc d\n1\t2"]),
    File("excel.csv", lambda: b"sep=;\na;b\n", ["a\tb"]),
    File("tabs.tsv", lambda: "名前\t数\n茶\t3".encode("utf-16"), ["名前\t数\n茶\t3"]),
    File(
        "lines.jsonl",
        lambda: b'{"text": "one", "metadata": {"day": "2024-05-06"}}\n{"text": "two", "n": 2}\n',
        ["one", "two"],
        [{"line": 1, "day": "2024-05-06"}, {"line": 2, "n": 2}],
    ),
    File("windows.jsonl", lambda: b'\xef\xbb\xbf{"text": "caf\\u00e9"}\r\n\r\n', ["café"]),
    File(
        "mixed.eml",
        mixed_mail,
        [
            f"# Grüße … Saal\n{HEAD}The hall is *booked*.\n\n-- \nIda",
            "Hall\tSeats\nNorth\t40",
            f"# Earlier\n{HEAD}Which hall?",
        ],
        [{"subject": "Grüße … Saal", **IDA}, {}, {"subject": "Earlier", **IDA}],
        sources=["mixed.eml", "mixed.eml/Säle.csv", "mixed.eml/Earlier.eml"],
        problems=("1 file ending in .png in mixed.eml was left out: ...",),
    ),
    File("html.eml", html_mail, [f"# Rechnung\n{HEAD}Liebe Frau Berg,\nMiete\t90 €"]),
    File(
        "flowed.eml",
        flowed_mail,
        ["# Für Ida\nFrom: Ole <ole@example.org>\n\n> When? \n> Where?\nOn Friday at ten. Tschüss"],
        [{"subject": "Für Ida", "from": "Ole <ole@example.org>"}],
    ),
    File(
        "all.mbox",
        mailbox,
        ["...First.\nFrom here on", "...Second.", "Chairs: 30\n"],
        sources=["all.mbox", "all.mbox", "all.mbox/2/list.txt"],
    ),
    File(
        "outlook.msg",
        lambda: make.msg_bytes(
            {"0037": "Saal", "0C1A": "Ida", "5D01": "ida@example.org", "0E04": "Ole", "1000": "Grüße\r\nIda"},
            {"plan.txt": b"Chairs: 30", "long.txt": b"tea " * 2000},
        ),
        [
            "# Saal\nFrom: Ida <ida@example.org>\nTo: Ole\nDate: 2024-05-06 08:30:00 UTC\n\nGrüße\nIda",
            "Chairs: 30",
            "tea ...",
        ],
        sources=["outlook.msg", "outlook.msg/plan.txt", "outlook.msg/long.txt"],
    ),
    File(
        "html.msg",
        lambda: make.msg_bytes({"0037": "Re", "007D": REPLIED, "1013": "<p>Yes<p>No"}, {}),
        [f"# Re\nFrom: Ole <o@example.org>\nDate: {TUESDAY}\n\nYes\nNo"],
    ),
    File(
        "garden.odt",
        odt,
        ["# Garden\n\nBeans are sown in May [not before the 15th].\n\n- Spade\n- Rake\n\nBed\tPlant\n1\tBeans"],
    ),
    File("prices.ods", ods, ["# May\nItem\tPrice\nTea\t3.50 €"], [{"sheet": "May"}]),
    File(
        "nested.zip",
        lambda: make.zip_bytes(
            {
                "a/": b"",
                "a/note.txt": b"note",
                "a/.DS_Store": b"no",
                "__MACOSX/a/._note.txt": b"no",
                "b.zip": make.zip_bytes({"c/d.md": b"# deep"}),
                "m.eml": flowed_mail(),
            }
        ),
        ["note", "# deep", "# Für Ida..."],
        sources=["nested.zip/a/note.txt", "nested.zip/b.zip/c/d.md", "nested.zip/m.eml"],
    ),
    File(
        "dos.zip",
        dos_zip,
        ["Grüße", "inner", "up"],
        sources=["dos.zip/Grüße.txt", "dos.zip/a/b.txt", "dos.zip/up.txt"],
    ),
    File(
        "mac.zip",
        lambda: make.zip_bytes({"Ä#.txt": b"umlaut"}).replace("Ä#".encode(), "A\u0308".encode()),
        ["umlaut"],
        sources=["mac.zip/Ä.txt"],
    ),
    File(
        "report.zip",
        lambda: make.zip_bytes({"r.docx": make.docx_bytes(letter)}),
        ["The rent doubles..."],
        sources=["report.zip/r.docx"],
    ),
    File("macro.xlsm", lambda: make.xlsx_bytes(A=[["macros are not run"]]), ["# A\nmacros are not run"]),
]  # fmt: skip


def test_forty_files_of_every_kind() -> None:
    assert len(FILES) >= 40
    assert {kind_of(file.name) for file in FILES} == set(file_kinds())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """All of them, read as a folder."""
    folder = tmp_path_factory.mktemp("files")
    for file in FILES:
        (folder / file.name).write_bytes(file.data())
    return load_path(folder)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_is_read_as_a_person_sees_it(loaded: Loaded, file: File) -> None:
    documents = [
        document for document in loaded.documents if document.metadata["source"].split("/")[0] == file.name
    ]
    assert len(documents) == len(file.texts)
    for document, expected in zip(documents, file.texts, strict=True):
        assert _fits(document.page_content, expected), f"{document.page_content!r} is not {expected!r}"
    sources = [document.metadata["source"] for document in documents]
    assert sources == (file.sources or [file.name] * len(sources))
    if file.metadata is not None:
        metadata = [{**document.metadata} for document in documents]
        assert [each.pop("source") for each in metadata] == sources
        assert metadata == file.metadata
    problems = [problem for problem in loaded.problems if file.name in problem]
    assert len(problems) == len(file.problems)
    for problem, expected in zip(problems, file.problems, strict=True):
        assert _fits(problem, expected), f"{problem!r} is not {expected!r}"


def _fits(text: str, expected: str) -> bool:
    if expected.startswith("..."):
        return text.endswith(expected[3:])
    return text.startswith(expected[:-3]) if expected.endswith("...") else text == expected
