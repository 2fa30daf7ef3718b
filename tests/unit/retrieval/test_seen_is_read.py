"""What a person sees in a file is what is read: kinds of faults that readers of files have, each in several formats."""

from __future__ import annotations

import base64
import datetime
import json
import random
import struct
import zipfile
import zlib
from email.message import EmailMessage
from io import BytesIO
from typing import Any

import pytest

from tandem.plugins.office.html import parse_html
from tandem.plugins.office.marks import write_number
from tandem.retrieval.readers import read_file
from tests.unit.retrieval import office_files as make
from tests.unit.retrieval.conftest import pdf_of

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
NAMESPACES = (
    f'{W} xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
    ' xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    ' xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
    ' xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart"'
    ' xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing"'
    ' xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape"'
    ' xmlns:v="urn:schemas-microsoft-com:vml" xmlns:w14="http://schemas.microsoft.com/office/word/2010/wordml"'
)
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def read(name: str, data: bytes) -> tuple[str, list[str]]:
    problems: list[str] = []
    documents = list(read_file(BytesIO(data), name, name, problems))
    return "\n".join(document.page_content for document in documents), problems


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def paragraph(*runs: str, properties: str = "") -> str:
    inner = "".join(part if part.startswith("<") else run(part) for part in runs)
    return f"<w:p><w:pPr>{properties}</w:pPr>{inner}</w:p>"


def docx(body: str, relations: str = "", **parts: str) -> bytes:
    """A document of Word of this body; parts: names in it, with _ for a dot -> their contents."""
    package = "http://schemas.openxmlformats.org/package/2006"
    members = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types">'
        '<Default Extension="xml" ContentType="application/xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="rId1" '
        f'Type="{OFFICE}/officeDocument" Target="word/document.xml"/></Relationships>',
        "word/_rels/document.xml.rels": f'<Relationships xmlns="{package}/relationships">{relations}</Relationships>',
        "word/document.xml": f"<w:document {NAMESPACES}><w:body>{body}</w:body></w:document>",
    }
    members |= {f"word/{name.replace('_', '.')}": text for name, text in parts.items()}
    return make.zip_bytes({name: text.encode() for name, text in members.items()})


# ---- raised and lowered text ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("10<sup>6</sup> litres", "10^6 litres"),
        ("10<sup>-6</sup> m, x<sup>n+1</sup>, a<sup>2</sup>5", "10^-6 m, x^(n+1), a^(2)5"),
        ("15<sup>2</sup> crowns<p><sup>2</sup> for members", "15^2 crowns\n2 for members"),
        ("CO<sub>2</sub>, log<sub>2</sub>8", "CO_2, log_(2)8"),
        ("1<sup>st</sup> of May, Tern<sup>®</sup>, so<sup>[1]</sup>", "1st of May, Tern®, so[1]"),
        ("10<span style='font-size: 60%; vertical-align: super'>6</span>", "10^6"),
        ("<style>.up { vertical-align: super }</style>10<i class=up>6</i> 7<i>6</i>", "10^6 76"),
        ("<math><msup><mn>10</mn><mn>6</mn><mn>7</mn></msup></math>", "10^(6)7"),
        ("2<sup>3<sup>2</sup></sup>", "2^(3^2)"),
        ("x<sub>1</sub><sup>2</sup>, 10<sup>1</sup><sup>2</sup>", "x_1^2, 10^12"),
        ("<math><munderover><mo>∑</mo><mi>i</mi><mn>9</mn></munderover></math>", "∑_i^9"),
        ("<math><mfrac><mn>1</mn><mn>2</mn></mfrac></math>", "1/2"),
        ("<math><mfrac><mn>1</mn><mrow><mi>n</mi><mo>+</mo><mn>2</mn></mrow></mfrac></math>", "1/(n+2)"),
        ("<del>50</del><ins>60</ins> crowns<s></s>", "~~50~~60 crowns"),
        ("<ruby>漢字<rp>(</rp><rt>かんじ</rt><rp>)</rp></ruby>", "漢字(かんじ)"),
    ],
)
def test_raised_text_of_html(page: str, text: str) -> None:
    assert parse_html(page)[0] == text


def raised_slide(presentation: Any) -> None:
    slide = presentation.slides.add_slide(presentation.slide_layouts[6])
    first = slide.shapes.add_textbox(0, 0, 99, 99).text_frame.paragraphs[0]
    for text, baseline in (("10", "0"), ("6", "30000"), (" litres of CO", ""), ("2", "-25000")):
        part = first.add_run()
        part.text = text
        if baseline:
            part._r.get_or_add_rPr().set("baseline", baseline)


def raised_odt(position: str) -> bytes:
    from odf import style, text
    from odf.opendocument import OpenDocumentText

    document = OpenDocumentText()
    raised = style.Style(name="Up", family="text")
    raised.addElement(style.TextProperties(textposition=position))
    document.automaticstyles.addElement(raised)
    paragraph = text.P(text="10")
    paragraph.addElement(text.Span(stylename="Up", text="6"))
    paragraph.addText(" litres")
    document.text.addElement(paragraph)
    return make.saved(document.save)


UP = '<w:vertAlign w:val="superscript"/>'
EXPONENT = '<w:rStyle w:val="Exponent"/>'
EXPONENTS = f'<w:styles {W}><w:style w:styleId="Exponent"><w:rPr>{UP}</w:rPr></w:style></w:styles>'
DOWN = '<w:vertAlign w:val="subscript"/>'


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.docx", docx(paragraph("10", run("6", EXPONENT)), styles_xml=EXPONENTS), "10^6"),
        (
            "a.docx",
            docx(paragraph("10", run("6", UP), " litres of CO", run("2", DOWN))),
            "10^6 litres of CO_2",
        ),
        ("a.pptx", make.pptx_bytes(raised_slide), "10^6 litres of CO_2"),
        ("a.odt", raised_odt("super 58%"), "10^6 litres"),
        ("a.odt", raised_odt("-33% 58%"), "10_6 litres"),
        ("a.odt", raised_odt("0% 100%"), "106 litres"),
    ],
)
def test_raised_text_of_office_files(name: str, data: bytes, text: str) -> None:
    assert read(name, data) == (text, [])


@pytest.mark.parametrize(
    ("operations", "text"),
    [
        ("/F1 12 Tf 72 720 Td (10) Tj /F1 8 Tf 5 Ts (6) Tj /F1 12 Tf 0 Ts ( litres) Tj", "10^6 litres"),
        ("/F1 12 Tf 72 720 Td (10) Tj 5 Ts (6) Tj 0 Ts ( litres) Tj", "10^6 litres"),
        (
            "/F1 12 Tf 72 720 Td (10) Tj /F1 8 Tf 13 4.5 Td (6) Tj /F1 12 Tf 5 -4.5 Td ( litres) Tj",
            "10^6 litres",
        ),
        (
            "/F1 1 Tf 12 0 0 12 72 720 Tm (10) Tj 8 0 0 8 86 724 Tm (6) Tj 12 0 0 12 91 720 Tm [( lit) 9 (res)] TJ",
            "10^6 litres",
        ),
        ("/F1 12 Tf 72 720 Td (log) Tj /F1 8 Tf 17 -2.5 Td (2) Tj /F1 12 Tf 5 2.5 Td (8) Tj", "log_(2)8"),
        (
            "/F1 12 Tf 72 720 Td (Balance 42) Tj /F1 8 Tf 0 -12 Td (small print 7) Tj",
            "Balance 42\nsmall print 7",
        ),
        ("/F1 12 Tf 72 720 Td (Hall) Tj /F1 (x) Tf (bad operands) Tj", "Hallbad operands"),
        ("/F1 24 Tf 72 720 Td (Total 42) Tj /F1 10 Tf 110 0 Td (000 kg) Tj", "Total 42 000 kg"),
    ],
)
def test_raised_text_of_pdf(operations: str, text: str) -> None:
    assert read("a.pdf", pdf_of(f"BT {operations} ET"))[0] == text


def test_raised_text_of_forms_of_pdf() -> None:
    """On two pages; the form draws itself, too."""
    form = "<< /Type /XObject /Subtype /Form /BBox [0 0 612 792] /Length {} /Resources 4 0 R >>\nstream\n{}\nendstream"
    operations = "BT /F1 12 Tf 72 720 Td (10) Tj 5 Ts (6) Tj ET /X Do"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [6 0 R 6 0 R] /Count 2 >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        "<< /Font << /F1 3 0 R >> /XObject << /X 5 0 R >> >>",
        form.format(len(operations), operations),
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 7 0 R /Resources 4 0 R >>",
        "<< /Length 43 >>\nstream\nBT /F1 12 Tf 72 740 Td (Litres) Tj ET /X Do\nendstream",
    ]
    body = "".join(f"{number} 0 obj\n{text}\nendobj\n" for number, text in enumerate(objects, start=1))
    data = f"%PDF-1.4\n{body}trailer\n<< /Size 8 /Root 1 0 R >>\nstartxref\n0\n%%EOF\n".encode()
    assert read("a.pdf", data) == ("Litres\n10^6\nLitres\n10^6", [])


# ---- boxes of forms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("Photo? <input type=checkbox checked> Yes <input type=checkbox> No", "Photo? ☒ Yes ☐ No"),
        (
            "<label>boat<input type=radio></label><label>train<input type=RADIO checked></label>",
            "boat ☐ train ☒",
        ),
        ("<select><option>boat<option selected>train</select>", "☐ boat\n☒ train"),
        ("<select multiple><option>boat<option>train</select>", "☐ boat\n☐ train"),
        ("<div role=checkbox aria-checked=true>Yes</div><input type=checkbox>", "☒ Yes\n"),
    ],
)
def test_boxes_of_html(page: str, text: str) -> None:
    assert parse_html(page)[0] == text.rstrip("\n")


def box(is_ticked: bool) -> str:
    return (
        f'<w:sdt><w:sdtPr><w14:checkbox><w14:checked w14:val="{int(is_ticked)}"/></w14:checkbox></w:sdtPr>'
        f"<w:sdtContent>{run('?')}</w:sdtContent></w:sdt>"
    )


def form_field(data: str, instruction: str) -> str:
    return (
        f'<w:r><w:fldChar w:fldCharType="begin"><w:ffData>{data}</w:ffData></w:fldChar></w:r>'
        f"<w:r><w:instrText> {instruction} </w:instrText></w:r>"
        '<w:r><w:fldChar w:fldCharType="separate"/></w:r><w:r><w:fldChar w:fldCharType="end"/></w:r>'
    )


CHOSEN = '<w:result w:val="1"/>'
ENTRIES = '<w:listEntry w:val="boat"/><w:listEntry w:val="train"/>'


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (paragraph(box(True), "Yes ", box(False), "No"), "☒ Yes ☐ No"),
        (
            paragraph(
                form_field("<w:checkBox><w:checked/></w:checkBox>", "FORMCHECKBOX"),
                "Yes ",
                form_field('<w:checkBox><w:default w:val="0"/></w:checkBox>', "FORMCHECKBOX"),
                "No",
            ),
            "☒ Yes ☐ No",
        ),
        (paragraph("By ", form_field(f"<w:ddList>{CHOSEN}{ENTRIES}</w:ddList>", "FORMDROPDOWN")), "By train"),
        (paragraph("By ", form_field(f"<w:ddList>{ENTRIES}</w:ddList>", "FORMDROPDOWN")), "By boat"),
    ],
)  # fmt: skip
def test_boxes_of_docx(body: str, text: str) -> None:
    assert read("a.docx", docx(body))[0] == text


def test_boxes_of_pdf() -> None:
    """Also choices of which one is ticked; a button that is pressed is none."""
    head = "/Type /Annot /Subtype /Widget /FT /Btn /Rect [9 9 20 20]"
    looks = "/AP << /N << /card 3 0 R /Off 3 0 R >> >>"
    fields = [
        f"<< {head} /T (yes) /V /On /AS /On >>",
        f"<< {head} /T (no) /V /Off /AS /Off >>",
        f"<< {head} /T (paid) /Ff 32768 /AS /card {looks} >>",
        f"<< {head} /T (send) /Ff 65536 >>",
    ]
    data = pdf_of("BT /F1 12 Tf 72 720 Td (Photo?) Tj ET", fields=fields)
    assert read("a.pdf", data)[0] == "Photo?\n☒ yes\n☐ no\n☒ paid: card"


# ---- tables and lists ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ("<tr><td rowspan=2>Attic<td>Mon<tr><td>Tue<tr><td>Cellar<td>Fri", "Attic\tMon\n\tTue\nCellar\tFri"),
        ("<tr><td>Rope<td rowspan=2>40<td>7<tr><td>Sail<td>3", "Rope\t40\t7\nSail\t\t3"),
        ("<tr><td rowspan=2 colspan=2>a<td>b<tr><td>c", "a\t\tb\n\t\tc"),
        ("<tr><td rowspan=0>a<td>b<tr><td>c<tr><td>d", "a\tb\n\tc\n\td"),
        ("<tbody><tr><td rowspan=9>a<td>b<tbody><tr><td>c<td>d", "a\tb\nc\td"),
        ("<tr><td rowspan=2>a<td>b<tr><td>c<table><tr><td>d<td>e</table>", "a\tb\n\tc\nd\te"),
    ],
)  # fmt: skip
def test_cells_over_several_rows(rows: str, text: str) -> None:
    assert parse_html(f"<table>{rows}</table>")[0] == text
    message = EmailMessage()
    message["Subject"] = "Rooms"
    message.set_content(f"<table>{rows}</table>", subtype="html")
    assert read("a.eml", bytes(message))[0] == f"# Rooms\n\n{text}".replace("\n\n\t", "\n\n")


def merged_slide(presentation: Any) -> None:
    shapes = presentation.slides.add_slide(presentation.slide_layouts[6]).shapes
    table = shapes.add_table(2, 2, 0, 0, 99, 99).table
    table.cell(0, 0).merge(table.cell(1, 0))
    for y, x, text in ((0, 0, "Attic"), (0, 1, "Monday"), (1, 1, "Tuesday")):
        table.cell(y, x).text = text


def merged_document(document: Any) -> None:
    cells = document.add_table(2, 2)
    cells.cell(0, 0).merge(cells.cell(1, 0)).text = "Attic"
    cells.cell(0, 1).text, cells.cell(1, 1).text = "Monday", "Tuesday"


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.docx", make.docx_bytes(merged_document)), ("a.pptx", make.pptx_bytes(merged_slide))],
)
def test_merged_cells_of_office_files(name: str, data: bytes) -> None:
    assert read(name, data)[0] == "Attic\tMonday\n\tTuesday"


def test_a_row_of_docx_that_begins_behind_columns() -> None:
    cell = "<w:tc><w:tcPr/>{}</w:tc>".format
    first = "".join(cell(paragraph(text)) for text in ("Room", "Day"))
    later = '<w:trPr><w:gridBefore w:val="1"/></w:trPr>' + cell(paragraph("Tuesday"))
    assert (
        read("a.docx", docx(f"<w:tbl><w:tr>{first}</w:tr><w:tr>{later}</w:tr></w:tbl>"))[0]
        == "Room\tDay\n\tTuesday"
    )


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<ol><li>a<li value=7>b<li>c</ol>", "1. a\n7. b\n8. c"),
        ("<ol type=a start=3><li>x<li>y</ol><ol type=I><li>z</ol>", "c. x\nd. y\nI. z"),
        ("<ol reversed><li>x<li>y</ol><ol reversed start=9><li>z</ol>", "2. x\n1. y\n9. z"),
        ("<ol style='list-style-type: upper-roman'><li>x<ol><li>y</ol><li>z</ol>", "I. x\n1. y\nII. z"),
        (
            "<ol><li style='list-style-type:lower-alpha'>x</ol><ol style='list-style: none'><li>y</ol>",
            "a. x\ny",
        ),
        ("<ol start=-1><li>x<li>y<li>z</ol>", "-1. x\n0. y\n1. z"),
    ],
)
def test_numbers_of_items_of_html(page: str, text: str) -> None:
    assert parse_html(page)[0] == text


def test_numbers_in_letters() -> None:
    assert [write_number(n, "lowerLetter") for n in (1, 26, 27, 28, 0)] == ["a", "z", "aa", "bb", "0"]
    assert [write_number(n, "upper-alpha") for n in (1, 26, 27, 28, 703)] == ["A", "Z", "AA", "AB", "AAA"]
    assert [write_number(n, "upperRoman") for n in (4, 9, 1994)] == ["IV", "IX", "MCMXCIV"]
    assert [write_number(n, "decimalZero") for n in (7, 12)] == ["07", "12"]


def level(at: int, kind: str, text: str, start: int = 1, style: str = "") -> str:
    own = f'<w:pStyle w:val="{style}"/>' if style else ""
    return (
        f'<w:lvl w:ilvl="{at}"><w:start w:val="{start}"/><w:numFmt w:val="{kind}"/>{own}'
        f'<w:lvlText w:val="{text}"/></w:lvl>'
    )


def lists(*levels: str, more: str = "") -> str:
    kinds = "".join(
        f'<w:abstractNum w:abstractNumId="{n}">{own}</w:abstractNum>' for n, own in enumerate(levels)
    )
    own = "".join(
        f'<w:num w:numId="{n + 1}"><w:abstractNumId w:val="{n}"/></w:num>' for n in range(len(levels))
    )
    return f"<w:numbering {W}>{kinds}{own}{more}</w:numbering>"


def item(text: str, number: int = 1, at: int = 0) -> str:
    return paragraph(text, properties=f'<w:numPr><w:ilvl w:val="{at}"/><w:numId w:val="{number}"/></w:numPr>')


AGAIN = (
    '<w:num w:numId="9"><w:abstractNumId w:val="0"/><w:lvlOverride w:ilvl="0"><w:startOverride w:val="5"/>'
)
AGAIN += "</w:lvlOverride></w:num>"
OUTLINE = level(0, "decimal", "%1") + level(1, "decimal", "%1.%2", style="Heading2")
NUMBERED = '<w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr>'
HEADINGS = f'<w:styles {W}><w:style w:styleId="Heading2">{NUMBERED}</w:style></w:styles>'
HEADING = paragraph("Scope", properties='<w:pStyle w:val="Heading2"/>')


@pytest.mark.parametrize(
    ("body", "numbering", "text"),
    [
        (item("a") + paragraph("Wait.") + item("b"), lists(level(0, "decimal", "%1.")), "1. a\nWait.\n2. b"),
        (item("a") + item("b", 2), lists(level(0, "decimal", "%1."), level(0, "decimal", "%1.", 4)), "1. a\n4. b"),
        (item("a") + item("b", 9), lists(level(0, "decimal", "%1."), more=AGAIN), "1. a\n5. b"),
        (item("a") + item("b"), lists(level(0, "lowerLetter", "(%1)")), "(a) a\n(b) b"),
        (item("a") + item("b"), lists(level(0, "upperRoman", "Art. %1")), "Art. I a\nArt. II b"),
        (
            item("a") + item("b", at=1) + item("c", at=1) + item("d") + item("e", at=1),
            lists(level(0, "decimal", "%1.") + level(1, "lowerLetter", "%1.%2)")),
            "1. a\n1.a) b\n1.b) c\n2. d\n2.a) e",
        ),
        (item("a"), lists(level(0, "bullet", "\uf0b7")), "- a"),
        (item("a", 0) + item("b", 7), lists(level(0, "decimal", "%1.")), "a\nb"),
        (item("a") + HEADING + HEADING, lists(OUTLINE), "1 a\n## 1.1 Scope\n## 1.2 Scope"),
    ],
)  # fmt: skip
def test_numbers_of_items_of_docx(body: str, numbering: str, text: str) -> None:
    relation = f'<Relationship Id="rId3" Type="{OFFICE}/numbering" Target="numbering.xml"/>'
    assert read("a.docx", docx(body, relation, numbering_xml=numbering, styles_xml=HEADINGS))[0] == text


# ---- text of docx that mammoth does not know -----------------------------------------------------------------

BOX = f"<w:txbxContent>{paragraph('In a box.')}</w:txbxContent>"
SHAPE = f"<wps:wsp><wps:txbx>{BOX}</wps:txbx></wps:wsp>"


def drawn(shape: str) -> str:
    data = f"<a:graphic><a:graphicData>{shape}</a:graphicData></a:graphic>"
    return f"<w:drawing><wp:inline>{data}</wp:inline></w:drawing>"


DRAWING = drawn(SHAPE)
RUBY = f"<w:rubyPr/><w:rt>{run('みなと')}</w:rt><w:rubyBase>{run('港')}</w:rubyBase>"
OLD = f"<w:pict><v:shape><v:textbox>{BOX}</v:textbox></v:shape></w:pict>"


def alternative(old: str) -> str:
    return f'<w:r><mc:AlternateContent><mc:Choice Requires="wps">{DRAWING}</mc:Choice>{old}</mc:AlternateContent></w:r>'


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (paragraph("Contract ", f'<w:fldSimple w:instr="X">{run("KB-7731")}</w:fldSimple>', "."), "Contract KB-7731."),
        (paragraph(f"<w:bdo><w:dir>{run('KB')}<w:fldSimple>{run('-1')}</w:fldSimple></w:dir></w:bdo>"), "KB-1"),
        (paragraph(f"<w:r><w:ruby>{RUBY}</w:ruby></w:r>", "の鍵"), "港(みなと)の鍵"),
        (paragraph(f"<w:r>{DRAWING}</w:r>", "Fees."), "Fees.\nIn a box."),
        (paragraph(alternative(""), "Fees."), "Fees.\nIn a box."),
        (paragraph(alternative(f"<mc:Fallback>{OLD}</mc:Fallback>"), "Fees."), "Fees.\nIn a box."),
        (paragraph("gone", "<w:del><w:r><w:delText>no</w:delText></w:r></w:del>"), "gone"),
        (paragraph("a", "<w:r><w:cr/></w:r>", "b"), "a\nb"),
    ],
)  # fmt: skip
def test_elements_that_wrap_text_in_docx(body: str, text: str) -> None:
    assert read("a.docx", docx(body)) == (text, [])


def test_embedded_documents_of_docx() -> None:
    relations = "".join(
        f'<Relationship Id="{name}" Type="{OFFICE}/aFChunk" Target="{name}"/>'
        for name in ("a.html", "b.txt", "c.rtf")
    )
    body = "".join(f'<w:altChunk r:id="{name}"/>' for name in ("a.html", "b.txt", "c.rtf"))
    page = "<table><tr><td>Pump<td>March</table><p>Replaced."
    text, problems = read("a.docx", docx(body, relations, a_html=page, b_txt="as text", c_rtf="{\\rtf1 x}"))
    assert text == "Pump March\nReplaced.\nas text"
    assert problems == ["a.docx: 1 embedded document was left out; write what is to be read as text."]


def test_what_has_no_text_in_docx_is_named() -> None:
    chart = drawn('<c:chart r:id="x"/>')
    symbol = '<w:sym w:font="Runes" w:char="F041"/>'
    text, problems = read("a.docx", docx(paragraph("Sales.", f"<w:r>{chart}{chart}{symbol}</w:r>")))
    assert text == "Sales."
    assert problems == ["a.docx: 2 charts, 1 symbol were left out; write what is to be read as text."]


MATH = "http://schemas.openxmlformats.org/officeDocument/2006/math"


def part(name: str, *inner: str) -> str:
    return f'<m:{name} xmlns:m="{MATH}">{"".join(inner)}</m:{name}>'


@pytest.mark.parametrize(
    ("body", "text", "named"),
    [
        (run("gone", "<w:vanish/>") + run("!", '<w:vanish w:val="0"/>'), "x!", "1 hidden text was"),
        ('<w:r><w:br w:type="page"/></w:r>y', "x\ny", ""),
        (run("9", "<w:strike/>"), "x~~9~~", ""),
        (
            part("oMath", part("f", part("num", run("a").replace("w:", "m:")), part("den"))).replace(
                "<m:rPr></m:rPr>", ""
            ),
            "x$\\frac{a}{}$",
            "",
        ),
        (part("oMath", part("limLow", part("e"))), "x", "1 equation was"),
    ],
)
def test_what_word_shows_of_runs_and_equations(body: str, text: str, named: str) -> None:
    end = run("y") if body.endswith("y") else ""
    came, problems = read("a.docx", docx(paragraph("x", body.removesuffix("y"), *[end] * bool(end))))
    assert came == text
    assert [named in problem for problem in problems] == [True] * bool(named)


def test_what_powerpoint_shows_of_paragraphs() -> None:
    from lxml import etree

    main = "http://schemas.openxmlformats.org/drawingml/2006/main"

    def build(presentation: Any) -> None:
        slide = presentation.slides.add_slide(presentation.slide_layouts[6])
        frame = slide.shapes.add_textbox(0, 0, 9, 9).text_frame
        frame.text = "one\ntwo\n50"
        for item in frame.paragraphs[:2]:
            kind = etree.SubElement(item._p.get_or_add_pPr(), f"{{{main}}}buAutoNum")
            kind.set("type", "alphaLcParenR")
            kind.set("startAt", "3")
        frame.paragraphs[2].runs[0]._r.get_or_add_rPr().set("strike", "sngStrike")
        choice = slide.shapes.add_textbox(0, 9, 9, 9)
        choice.text_frame.text = "In a choice"
        space = "http://schemas.openxmlformats.org/markup-compatibility/2006"
        both = etree.SubElement(choice.element.getparent(), f"{{{space}}}AlternateContent")
        etree.SubElement(both, f"{{{space}}}Choice").append(choice.element)
        etree.SubElement(choice.element.txBody.p_lst[0], f"{{{MATH}}}oMath")

    text, problems = read("a.pptx", make.pptx_bytes(build))
    assert text == "c) one\nd) two\n~~50~~\nIn a choice"
    assert problems == ["a.pptx: 1 equation was left out; write what is to be read as text."]


def test_what_has_no_text_in_pptx_is_named() -> None:
    from lxml import etree

    def build(presentation: Any) -> None:
        slide = presentation.slides.add_slide(presentation.slide_layouts[6])
        slide.shapes.add_textbox(0, 0, 99, 99).text_frame.text = "Plan"
        frame = slide.shapes.add_table(1, 1, 0, 0, 9, 9).element
        frame.append(etree.Element("{http://schemas.openxmlformats.org/drawingml/2006/diagram}relIds"))

    text, problems = read("a.pptx", make.pptx_bytes(build))
    assert text == "Plan"
    assert problems == ["a.pptx: 1 diagram was left out; write what is to be read as text."]


def test_headers_of_docx_keep_columns_and_lines_apart() -> None:
    """A box is read once, a header that is in the file twice, too, and links to its own parts do no harm."""
    tab, link = "<w:r><w:tab/></w:r>", f'<w:hyperlink r:id="rId99">{run("Quay 4")}</w:hyperlink>'
    lines = paragraph("Harbour", tab, "Invoice 7", tab, "28 May") + paragraph(
        link, "<w:r><w:br/></w:r>", "5021 Vey"
    )
    boxed = paragraph(alternative(f"<mc:Fallback>{OLD}</mc:Fallback>"))
    header = f"<w:hdr {NAMESPACES}>{lines}{boxed}</w:hdr>"
    footer = f"<w:ftr {NAMESPACES}>{paragraph('Page 1')}</w:ftr>"
    data = docx(paragraph("Body."), header1_xml=header, header2_xml=header, footer1_xml=footer)
    assert read("a.docx", data)[0] == "Harbour Invoice 7 28 May\nQuay 4\n5021 Vey\nIn a box.\nBody.\nPage 1"


# ---- sheets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "code", "text"),
    [
        (42, '"INV-"0000', "INV-0042"),
        (7, '"Room "0', "Room 7"),
        (1240, '#,##0.00\\ "€"', "1,240.00 €"),
        (1240, "[$CHF] #,##0.00", "CHF 1,240.00"),
        (-5, "#,##0;[Red](#,##0)", "(5)"),
        (0, '"yes";"yes";"no"', "no"),
        (50, '[>=100]"high";"low"', "low"),
        (2.675, "0.00", "2.68"),
        (0.145, "0%", "15%"),
        (5012345, "000-00-0000", "005-01-2345"),
        (0.5, "# ?/?", "1/2"),
        (12345, "0.00E+00", "1.23E+04"),
        (datetime.timedelta(hours=30, minutes=15), "[h]:mm", "30:15"),
        (datetime.time(14, 5, 59), "h:mm AM/PM", "2:05 PM"),
        (datetime.datetime(2024, 5, 6, 23, 59, 40), "yyyy-mm-dd hh:mm", "2024-05-06 23:59"),
        (datetime.date(2024, 5, 6), "dd.mm.yyyy", "06.05.2024"),
        (datetime.date(2024, 5, 6), 'd\\. mmmm" of "yyyy', "6. May of 2024"),
        (datetime.date(2024, 5, 6), "mm-dd-yy", "2024-05-06"),
        (4917612345678, "General", "4917612345678"),
        (5, ";;;", "5"),
        (1e300, "0.00", "1e+300"),
        ("Berg", '"Mr "@', "Mr Berg"),
        (1240, "[$-409]#,##0.00", "1,240.00"),
        (1234567, '0.0,,"M"', "1.2M"),
        (datetime.time(14, 59), "h AM/PM", "2 PM"),
        (datetime.timedelta(hours=30, minutes=59), "[h]", "30"),
        (datetime.timedelta(hours=-1), "[h]:mm", "-1:00"),
        (datetime.date(2024, 5, 6), "mmm yy", "May 24"),
        ("one_x000D_two", "General", "one two"),
    ],
)
def test_values_of_sheets_are_read_as_they_are_shown(value: object, code: str, text: str) -> None:
    assert read("a.xlsx", make.xlsx_bytes(S=[["x", (value, code)]]))[0] == f"# S\nx\t{text}"


@pytest.mark.parametrize("far", ["C1048576", "XFD1048576"])
@pytest.mark.parametrize("value", [None, " ", "far"])
def test_only_cells_that_hold_something_are_read(far: str, value: str | None) -> None:
    import openpyxl
    from openpyxl.styles import Font

    book = openpyxl.Workbook()
    book.active.append(["Key", "Place"])
    book.active[far].font = Font(bold=True)
    book.active[far] = value
    text, problems = read("a.xlsx", make.saved(book.save))
    assert text == "# Sheet\nKey\tPlace" + ("\n\t\tfar" if value == "far" else "")
    assert not problems


@pytest.mark.parametrize("cells", ["C1:C1048576", "A1:XFD1048576"])
@pytest.mark.parametrize("is_link", [False, True])
def test_ranges_of_a_sheet_make_no_cells(cells: str, is_link: bool) -> None:
    """Each range took half a minute, or all memory."""
    import openpyxl

    book = openpyxl.Workbook()
    book.active.append(["Key", "Place", "Note"])
    book.active.append(["shed", "hook 4", "covered"])
    if is_link:
        book.active["A1"].hyperlink = "http://example.org"
        book.active["A1"].hyperlink.ref = cells
    else:
        book.active.merged_cells.add(cells)
    seen = "Key\tPlace\tNote\nshed\thook 4\tcovered"
    if not is_link:
        seen = "Key" if cells[0] == "A" else "Key\tPlace\tNote\nshed\thook 4"
    assert read("a.xlsx", make.saved(book.save)) == (f"# Sheet\n{seen}", [])


def test_raised_text_of_a_cell() -> None:
    import openpyxl
    from openpyxl.cell.rich_text import CellRichText, TextBlock
    from openpyxl.cell.text import InlineFont

    book = openpyxl.Workbook()
    raised = TextBlock(InlineFont(vertAlign="superscript"), "6")
    book.active["A1"] = CellRichText("10", raised, " litres")
    assert read("a.xlsx", make.saved(book.save))[0] == "# Sheet\n10^6 litres"


def test_text_boxes_of_sheets_are_read_and_charts_named() -> None:
    import openpyxl
    from openpyxl.chart import BarChart, Reference

    book = openpyxl.Workbook()
    book.active.append([1])
    chart = BarChart()
    chart.add_data(Reference(book.active, min_col=1, min_row=1))
    book.active.add_chart(chart)
    archive = zipfile.ZipFile(BytesIO(make.saved(book.save)))
    members = {name: archive.read(name) for name in archive.namelist()}
    box = b"<sp><txBody><p><r><t>Boxed words</t></r></p></txBody></sp>"
    drawing = members["xl/drawings/drawing1.xml"]
    members["xl/drawings/drawing1.xml"] = drawing.replace(b"<graphicFrame", box + b"<graphicFrame")
    problem = "a.xlsx: 1 chart was left out; write what is to be read as text."
    assert read("a.xlsx", make.zip_bytes(members)) == ("# Sheet\n1\nBoxed words", [problem])


# ---- OpenDocument --------------------------------------------------------------------------------------------

ODF = "urn:oasis:names:tc:opendocument:xmlns:"
PREFIXES = {"office": "office", "text": "text", "table": "table", "draw": "drawing", "style": "style"}
ODF_NAMES = " ".join(f'xmlns:{prefix}="{ODF}{name}:1.0"' for prefix, name in PREFIXES.items())
ODF_NAMES += ' xmlns:xlink="http://www.w3.org/1999/xlink"'


def odf(kind: str, body: str, styles: str = "", **objects: str) -> bytes:
    """A file of LibreOffice; objects: embedded in it."""
    parts = {
        "META-INF/manifest.xml": "<manifest/>",
        "content.xml": f"<office:body><office:{kind}>{body}</office:{kind}></office:body>",
        "styles.xml": f"<office:styles>{styles}</office:styles>",
    }
    parts |= {f"{name}/content.xml": text for name, text in objects.items()}
    members = {name: f"<office:document {ODF_NAMES}>{part}</office:document>" for name, part in parts.items()}
    return make.zip_bytes({name: part.encode() for name, part in members.items()})


def numbered(*items: str, style: str = "L") -> str:
    inner = "".join(f"<text:list-item>{item}</text:list-item>" for item in items)
    return f'<text:list text:style-name="{style}">{inner}</text:list>'


def frame(name: str) -> str:
    return f'<draw:frame><draw:object xlink:href="./{name}"/></draw:frame>'


LEVELS = (
    '<text:list-level-style-number text:level="1" style:num-format="1" style:num-suffix="." text:start-value="3"/>'
    '<text:list-level-style-number text:level="2" style:num-format="a" style:num-suffix=")"/>'
)
OUTLINE = (
    '<text:outline-level-style text:level="1" style:num-format="I"/>'
    '<text:outline-level-style text:level="2" style:num-format="1" text:display-levels="2"/>'
)
LISTS = (
    f'<text:list-style style:name="L">{LEVELS}</text:list-style>'
    f"<text:outline-style>{OUTLINE}</text:outline-style>"
    '<style:style style:name="H"><style:text-properties text:display="none"/></style:style>'
    '<style:style style:name="T"><style:table-properties table:display="false"/></style:style>'
)
SHEET = (
    '<table:table table:name="S"><table:shapes><draw:rect><text:p>Boxed</text:p></draw:rect></table:shapes>'
    '<table:table-row><table:table-cell table:number-columns-spanned="2"><text:p>Tue</text:p></table:table-cell>'
    "<table:covered-table-cell><text:p>covered</text:p></table:covered-table-cell>"
    "<table:table-cell><office:annotation><text:p>remark</text:p></office:annotation><text:p>9</text:p>"
    '</table:table-cell></table:table-row></table:table><table:table table:name="V" table:style-name="T">'
    "<table:table-row><table:table-cell><text:p>x</text:p></table:table-cell></table:table-row></table:table>"
)


@pytest.mark.parametrize(
    ("name", "data", "text", "named"),
    [
        (
            "a.odt",
            odf(
                "text",
                numbered("<text:p>x</text:p>", f"<text:p>y</text:p>{numbered('<text:p>z</text:p>')}"),
                LISTS,
            ),
            "3. x\n4. y\na) z",
            "",
        ),
        (
            "a.odt",
            odf("text", "<text:h>One</text:h>" + '<text:h text:outline-level="2">Two</text:h>' * 2, LISTS),
            "# I One\n\n## I.1 Two\n\n## I.2 Two",
            "",
        ),
        (
            "a.odt",
            odf(
                "text",
                f"<text:p>x {frame('A')}{frame('B')}</text:p>",
                A="<office:body><office:chart/></office:body>",
            ),
            "x ",
            "1 chart, 1 embedded object were left out",
        ),
        (
            "a.odt",
            odf("text", f"<text:p>x {frame('A')}</text:p>", A="<math><annotation>h^2</annotation></math>"),
            "x h^2",
            "",
        ),
        (
            "a.odt",
            odf("text", '<text:p>x<text:span text:style-name="H">y</text:span></text:p>', LISTS),
            "x",
            "1 hidden text was left out",
        ),
        (
            "a.odt",
            odf("text", "<text:p>co\u00adop<draw:rect><text:p>box</text:p></draw:rect></text:p>"),
            "coop\n\nbox",
            "",
        ),
        (
            "a.ods",
            odf("spreadsheet", SHEET, LISTS),
            "# S\nTue\t[remark] 9\nBoxed",
            "1 hidden sheet was left out (V)",
        ),
    ],
)
def test_what_files_of_libreoffice_show(name: str, data: bytes, text: str, named: str) -> None:
    came, problems = read(name, data)
    assert came == text
    assert [named in problem for problem in problems] == [True] * bool(named)


# ---- data, bytes and names -----------------------------------------------------------------------------------

DATA = base64.b64encode(random.Random(4).randbytes(3000)).decode()
LINES = "\n".join(DATA[at : at + 64] for at in range(0, len(DATA), 64))
URI = f"data:image/png;base64,{DATA}"
ARMOURED = f"-----BEGIN PGP MESSAGE-----\nVersion: 2\n\n{LINES}\n=abcd\n-----END PGP MESSAGE-----"
ENCODED = (
    "begin 644 a.bin\n" + "M86%A86%A86%A86%A86%A86%A86%A86%A86%A86%A86%A86%A86%A86%A86%A\n" * 9 + "`\nend"
)


@pytest.mark.parametrize(
    ("name", "written", "text"),
    [
        ("a.md", f"Key.\n![][image1]\n\n[image1]: <{URI}>\nEnd.", "Key.\n![][image1]\n\n\nEnd."),
        ("a.md", f"Key ![hut]({URI}) end.", "Key ![hut]() end."),
        ("a.md", f'Key <img src="{URI}"> end.', 'Key <img src=""> end.'),
        ("a.html", f"<p>Key {URI} end.</p>", "Key  end."),
        ("a.csv", f'Key,Place\nshed,"data:image/png;base64,{DATA * 50}"', "Key\tPlace\nshed"),
        ("a.jsonl", json.dumps({"text": f"Key {URI} end."}).replace("/", "\\/"), "Key  end."),
        ("a.txt", f"Key.\n{ARMOURED}\nEnd.", "Key.\n\nEnd."),
        ("a.eml", f"Subject: Key\n\n{ENCODED}\nEnd.", "# Key\n\n\nEnd."),
    ],
)  # fmt: skip
def test_files_that_are_written_into_a_text_are_left_out(name: str, written: str, text: str) -> None:
    assert read(name, written.encode()) == (
        text,
        [
            f"{name}: 1 file was left out, written into its text as data; keep pictures, keys and the like in files of "
            "their own."
        ],
    )


@pytest.mark.parametrize(
    "text",
    [
        "data:text/plain,hello is short",
        "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nThe key is 4.",
        "-----BEGIN NOTES-----\nTea\nMilk\n-----END NOTES-----",
        "begin 644 words\nwith a list\nend",
    ],
)
def test_what_only_looks_like_data_is_read(text: str) -> None:
    assert read("a.txt", text.encode()) == (text, [])


GERMAN = "Der Schlüssel für die Hütte hängt über der Tür.\n"


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (GERMAN.encode() * 9 + b"caf\xe9\n" + GERMAN.encode(), GERMAN * 9 + "caf\ufffd\n" + GERMAN),
        (GERMAN.encode() * 9 + "ü".encode()[:1], GERMAN * 9 + "\ufffd"),
        (GERMAN.encode() * 3000 + b"\xff", GERMAN * 3000 + "\ufffd"),
        ("灯台の鍵は石の下".encode() + b"\xff", "灯台の鍵は石の下\ufffd"),
    ],
)
def test_a_byte_that_is_not_utf8_changes_itself_alone(data: bytes, wanted: str) -> None:
    problem = "a.txt has 1 byte that is not UTF-8, read as \ufffd; save it as UTF-8."
    assert read("a.txt", data) == (wanted, [problem])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "windows-1251", "koi8-r"])
def test_chapters_of_books_in_other_encodings(encoding: str) -> None:
    words = "Ключ от маяка лежит под камнем."
    book = zipfile.ZipFile(BytesIO(make.epub_bytes("x", [], ["<p>x</p>"])))
    members = {name: book.read(name) for name in book.namelist()}
    page = f'<?xml version="1.0" encoding="{encoding}"?><html><body><p>{words}</p></body></html>'
    members["EPUB/c 0.xhtml"] = page.encode(encoding)
    assert read("a.epub", make.zip_bytes(members)) == (words, [])


def test_chapters_that_are_not_there_are_named() -> None:
    book = zipfile.ZipFile(BytesIO(make.epub_bytes("x", [], ["<p>x</p>", "<p>y</p>"])))
    members = {name: book.read(name) for name in book.namelist() if name != "EPUB/c 1.xhtml"}
    members["EPUB/content.opf"] = members["EPUB/content.opf"].replace(b"c 0.xhtml", b"c 0.xhtml#top")
    problem = "a.epub: 1 chapter that it lists is not in the file; index another copy."
    assert read("a.epub", make.zip_bytes(members)) == ("x", [problem])


class _Raw(zipfile.ZipInfo):
    """A member whose name is written as bytes."""

    raw: bytes

    def _encodeFilenameFlags(self) -> tuple[bytes, int]:
        return self.raw, self.flag_bits & ~0x800


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("会議室の鍵.txt", "cp932"),
        ("2024年度/予算表.txt", "cp932"),
        ("열쇠는 서랍에.txt", "cp949"),
        ("회의록.txt", "cp949"),
        ("資料①.txt", "cp932"),
        ("钥匙在抽屉里.txt", "gb2312"),
        ("鑰匙在抽屜裡.txt", "big5"),
        ("ключ от маяка.txt", "cp866"),
        ("Größe über für.txt", "cp437"),
        ("à la carte.txt", "cp437"),
    ],
)
@pytest.mark.parametrize("is_said", [False, True])
def test_names_in_archives_of_other_code_pages(name: str, page: str, is_said: bool) -> None:
    """is_said: by a field that holds the name in Unicode."""
    member = _Raw("x")
    member.raw = name.encode(page)
    if is_said:
        field = struct.pack("<BI", 1, zlib.crc32(member.raw)) + name.encode()
        member.extra = struct.pack("<HH", 0x7075, len(field)) + field
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(member, b"hook 4")
    problems: list[str] = []
    (document,) = read_file(file, "a.zip", "a.zip", problems)
    assert document.metadata["source"] == f"a.zip/{name}"
    guess = [f"a.zip: names of its files were read as {page}, which is a guess."]
    assert problems == ([] if is_said or page == "cp437" else guess)


# ---- mails ---------------------------------------------------------------------------------------------------


def test_a_paragraph_that_begins_with_from_is_part_of_its_message() -> None:
    first = "From ida@example.org Mon May  6 10:30:00 2024\nSubject: Way\n\nDear Ole,\n\n"
    first += "From the harbour take the path.\n\nFrom Monday, 6 May 2024 at 10:30 on it is closed.\n\n"
    first += "The key is blue.\n\n"
    second = "From - Tue, 7 May 2024 09:00:00 +0200\nSubject: Thanks\n\nSee you.\n"
    problems: list[str] = []
    documents = list(read_file(BytesIO((first + second).encode()), "a.mbox", "a.mbox", problems))
    assert [document.metadata["message"] for document in documents] == [1, 2]
    assert documents[0].page_content.endswith("The key is blue.")
    assert not problems


@pytest.mark.parametrize(("encoding", "num_problems"), [("utf-8", 0), ("latin-1", 1)])
def test_heads_of_mails_that_are_not_encoded(encoding: str, num_problems: int) -> None:
    mail = "From: Jürgen <j@example.org>\r\nSubject: Grüße aus Växjö\r\n\r\n".encode(encoding)
    text, problems = read("a.eml", mail + "Fähre".encode())
    assert text == "# Grüße aus Växjö\nFrom: Jürgen <j@example.org>\n\nFähre"
    assert len(problems) == num_problems


PAGE = "<p>Dear Ida,<table><tr><th>Cabin<th>Code<tr><td>Tern 4<td>K-8831</table><p>Bring linen."


@pytest.mark.parametrize(
    ("plain", "text"),
    [
        (
            "This message is in HTML. Please use another program.",
            "Dear Ida,\nCabin\tCode\nTern 4\tK-8831\nBring linen.",
        ),
        (" ", "Dear Ida,\nCabin\tCode\nTern 4\tK-8831\nBring linen."),
        (
            "Dear Ida, cabin Tern 4, code K-8831. Bring linen.",
            "Dear Ida, cabin Tern 4, code K-8831. Bring linen.",
        ),
        ("Words " + " ".join(f"w{n}" for n in range(40)), "Words " + " ".join(f"w{n}" for n in range(40))),
    ],
)
def test_a_plain_part_that_is_a_stub_gives_way(plain: str, text: str) -> None:
    message = EmailMessage()
    message["Subject"] = "Booking"
    message.set_content(plain)
    message.add_alternative(PAGE, subtype="html")
    assert read("a.eml", bytes(message))[0] == f"# Booking\n\n{text}"
    outlook = make.msg_bytes({"0037": "Booking", "1000": plain, "1013": PAGE}, {})
    assert read("a.msg", outlook)[0].partition("\n\n")[2] == text


@pytest.mark.parametrize("encoding", ["7bit", "base64", "quoted-printable"])
def test_a_forwarded_message_may_be_encoded(encoding: str) -> None:
    inner = b"Subject: Inner\n\nThe code is 8812."
    inner = {"base64": base64.b64encode(inner), "quoted-printable": inner.replace(b"8", b"=38")}.get(
        encoding, inner
    )
    head = f"\ufeffSubject: Outer\nContent-Type: message/rfc822\nContent-Transfer-Encoding: {encoding}\n\n"
    assert read("a.eml", head.encode() + inner) == ("# Outer\n# Inner\n\nThe code is 8812.", [])
