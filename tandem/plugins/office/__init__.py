"""Files that hold more than plain text: pages, office documents, mail and archives. Readers for `tandem index`."""

from __future__ import annotations

from tandem.system.file_kinds import FileKind

KINDS = (
    FileKind(
        (".html", ".htm", ".xhtml"),
        "tandem.plugins.office.html:read_html",
        "the file",
        "what a browser shows, cells apart by tabs",
        "title, from <title>",
    ),
    FileKind(
        (".pdf",),
        "tandem.plugins.office.pdf:read_pdf",
        "a page that has text",
        "the page, and what is filled into its form or ticked",
        "page, counted from 1; title, as the file says",
        has_headings=False,
    ),
    FileKind(
        (".docx",),
        "tandem.plugins.office.docx:read_docx",
        "the file",
        "headers, text, footers, notes, comments; cells apart by tabs",
        needs="markitdown",
    ),
    FileKind(
        (".pptx",),
        "tandem.plugins.office.documents:read_pptx",
        "a slide that has text",
        "title, text, tables, charts and notes",
        "page, the slide, counted from 1",
        needs="markitdown",
    ),
    FileKind(
        (".xlsx", ".xlsm"),
        "tandem.plugins.office.documents:read_xlsx",
        "a sheet that is shown",
        "a line per row, values as they are shown, cells apart by tabs; comments",
        "sheet, its name",
        needs="openpyxl",
    ),
    FileKind(
        (".odt", ".ods", ".odp"),
        "tandem.plugins.office.odf:read_odf",
        "the file, a sheet, or a slide",
        "as of docx, xlsx and pptx",
        "sheet; page",
    ),
    FileKind(
        (".epub",),
        "tandem.plugins.office.documents:read_epub",
        "a chapter",
        "as of html",
        "title, authors, of the book; chapter, counted from 1",
    ),
    FileKind(
        (".eml",),
        "tandem.plugins.office.containers:read_eml",
        "the message; each attachment by its own kind",
        "subject, from, to, date and the body, plain unless that is a stub",
        "subject, from, to, cc, date, as they are written",
    ),
    FileKind(
        (".mbox",),
        "tandem.plugins.office.containers:read_mbox",
        "a message, as of eml",
        "as of eml",
        "message, counted from 1; as of eml",
    ),
    FileKind(
        (".msg",),
        "tandem.plugins.office.containers:read_msg",
        "the message; attachments as of eml",
        "as of eml",
        "as of eml",
        needs="olefile",
    ),
    FileKind(
        (".zip",),
        "tandem.plugins.office.containers:read_zip",
        "as of each file in it",
        "as of each file in it",
        "as of each file in it",
    ),
)
"""The readers of this plugin: rows for the table of file kinds."""
