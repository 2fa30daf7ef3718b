"""Readers of what holds other files: zip archives, and e-mails with their attachments.

A message is a document, with its subject as a heading.
"""

from __future__ import annotations

import email
import mimetypes
import re
import struct
from base64 import b64decode
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.message import MIMEPart
from email.policy import default
from functools import partial
from io import BytesIO
from itertools import chain, pairwise
from quopri import decodestring
from typing import TYPE_CHECKING, BinaryIO, NamedTuple
from zipfile import ZipFile, ZipInfo
from zlib import crc32

from tandem.plugins.office.html import parse_html
from tandem.retrieval.documents import Document, with_metadata
from tandem.retrieval.readers import ENCRYPTED, Part, Unreadable, decode, listed, parsing, safe_name, unzipped

if TYPE_CHECKING:
    from olefile import OleFileIO

FIELDS = ("subject", "from", "to", "cc", "date")
"""Fields of a message's head that become metadata, and begin its text."""
_LOCKED = ("multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime")
_ENCODED: dict[str, Callable[[bytes], bytes]] = {"base64": b64decode, "quoted-printable": decodestring}
"""Encodings of transfer."""
_QUOTED_FROM = re.compile(rb">+From ")
_FROM = re.compile(
    rb"From \S+(?: at \S+)? +(?=.*\d\d:\d\d)(?=.*\b[12]\d{3}\b)(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b.{,60}$"
)
"""The line before a message in a mailbox: its sender, or a dash, and a date."""
_FIELD = re.compile(rb"[!-9;-~]+:|>?From ")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_ZIP_ENCRYPTED, _ZIP_UTF8_NAME = 0x1, 0x800
_UNICODE_NAME = 0x7075
_DOS = "cp437"
_ODD = re.compile(r"[^\0-\x7fÀ-ÖØ-öø-ÿ]")
"""What few names in that have: it has signs of mathematics and of frames, where others have letters."""
_HAN = "[\u2460-\u2473\u3000-\u3029\u3041-\u30ff\u3200-\u33ff\u4e00-\u9fff\uff01-\uff5e]"
_CODE_PAGES = (
    ("cp866", "[\u0400-\u045f\u2116]", "[A-Za-z]"),
    ("cp932", _HAN, r"[\0]"),
    ("cp949", "[\uac00-\ud7a3]", r"[\0]"),
    ("gb2312", _HAN, r"[\0]"),
    ("big5", _HAN, r"[\0]"),
    ("gbk", _HAN, r"[\0]"),
)
"""Code pages of Windows elsewhere: their letters, and what is never beside these in a word."""
_KOREAN = frozenset(
    "이다에는을가의하고도로지서사한기리나은자대어를해인시수정부과아일그보장제전상원구스라만여주적들있것중소동"
)
_KOREAN |= frozenset("계약록회내표년월료진안최종열본신생성영용조연방문공간개업학교관비무산행명법국세마물미")
_CHINESE = frozenset(
    "的一是不了在人有我他这中大来上国个到说们为子和你地出时年得要下以生会自过家学对可里后小心多天能好都日发成事"
)
_CHINESE |= frozenset(
    "文件议记录报告合同预算计划表资料说明月最终作业总结通知名单工程项目公司管理方案电话地址图片照新旧数据稿版"
)
"""What most words of a language have: to tell two code pages whose letters are the same bytes."""
STUB_WORDS = 2
"""A plain text of so many times the words of the other is no stub."""
MAX_NAMED = 3
"""Encrypted members of an archive that a sentence names."""


def read_eml(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document | Part]:
    """A message as it crossed the net: one document, then its attachments."""
    yield from _read_message(file.read(), source, problems)


def read_mbox(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document | Part]:
    """A mailbox: a document a message, `message` counted from 1; its attachments are in a folder of that number."""
    number = 0
    for number, data in enumerate(_messages(file), start=1):
        try:
            for item in _read_message(data, f"{source}/{number}", problems):
                if isinstance(item, Document):
                    item.metadata.update(source=source, message=number)
                    yield item
                else:
                    yield item._replace(name=f"{number}/{item.name}")
        except Unreadable as error:
            problems.append(f"{source} message {number} was left out: {error}.")
    if number == 0:
        raise Unreadable("it is not a mailbox: it does not begin with a line From; export it again")


def _messages(file: BinaryIO) -> Iterator[bytes]:
    """The messages of a mailbox; a line From with a date, behind an empty one and before a field, is between two."""
    lines: list[bytes] | None = None
    is_behind_empty = True
    for line, following in pairwise(chain(file, (b"",))):
        is_first = lines is None and line.startswith(b"From ")
        if is_behind_empty and (is_first or (_FROM.match(line.strip()) and _FIELD.match(following))):
            if lines is not None:
                yield b"".join(lines)
            lines = []
        elif lines is not None:
            lines.append(line[1:] if _QUOTED_FROM.match(line) else line)
        is_behind_empty = not line.strip()
    if lines is not None:
        yield b"".join(lines)


def _read_message(data: bytes, source: str, problems: list[str]) -> Iterator[Document | Part]:
    with parsing("e-mail", "save it again"):
        message = email.message_from_bytes(
            _with_utf8_head(data.removeprefix(BOM_UTF8), source, problems), policy=default
        )
        fields = {name: _header(message, name) for name in FIELDS}
        if not any(fields.values()):
            raise Unreadable("it is not an e-mail: it has neither subject nor sender nor date; save it again")
        if message.get_content_type() in _LOCKED and "signed-data" not in _header(message, "content-type"):
            raise Unreadable(ENCRYPTED)
        contents = list(_contents(message, source, problems))
    yield _document(fields, "\n\n".join(item for item in contents if isinstance(item, str)), source)
    yield from (item for item in contents if isinstance(item, Part))


def _with_utf8_head(data: bytes, source: str, problems: list[str]) -> bytes:
    """A message whose head is in UTF-8, as the parser expects of what is not encoded."""
    end = _HEAD_END.search(data)
    head = data[: end.start()] if end else data
    if _is_utf8(head):
        return data
    with suppress(Unreadable):
        return decode(head, source, problems).encode() + data[len(head) :]
    return data


def _document(fields: dict[str, str], body: str, source: str) -> Document:
    subject = [f"# {fields['subject']}"] if fields["subject"] else []
    head = [f"{name.capitalize()}: {fields[name]}" for name in FIELDS[1:] if fields[name]]
    text = "\n".join([*subject, *head]) + f"\n\n{body.strip()}"
    return with_metadata(
        text.strip(), {name: value for name, value in fields.items() if value}, source=source
    )


def _header(message: MIMEPart, name: str) -> str:
    """A field of a message's head, decoded, in one line, a date as it is written; "" for none."""
    values = [value for key, value in message.raw_items() if key.lower() == name]
    if name != "date":
        with suppress(Exception):  # the standard library's parser of fields fails on some
            values = message.get_all(name, [])
    return ", ".join(" ".join(str(value).split()) for value in values)


def _contents(part: MIMEPart, source: str, problems: list[str]) -> Iterator[str | Part]:
    """The texts that a reader sees of a message, or of a part of one, and the files in it, in their order."""
    kind, name = part.get_content_type(), part.get_filename()
    if part.is_multipart() and kind != "message/rfc822":
        children = [list(_contents(child, source, problems)) for child in part.iter_parts()]
        texts = [[item for item in child if isinstance(item, str) and item.strip()] for child in children]
        if kind == "multipart/alternative":  # the first is the plain one
            given = [*filter(None, texts), []]
            is_stub = _is_stub("\n".join(given[0]), "\n".join(given[-2])) if len(given) > 2 else False
            texts = [given[-2] if is_stub else given[0]]
        yield from (text for child in texts for text in child)
        yield from (item for child in children for item in child if isinstance(item, Part))
    elif kind == "message/rfc822":
        inner = part.get_content()
        data = inner.as_bytes()
        if (
            encoding := str(part.get("content-transfer-encoding", "")).lower()
        ) in _ENCODED:  # against the standard
            with suppress(ValueError):
                data = _ENCODED[encoding](data)
            inner = email.message_from_bytes(data, policy=default)
        title = name or (_header(inner, "subject") or "message").replace("/", "_")
        yield _file(f"{title.removesuffix('.eml')}.eml", data)
    elif _is_body(part) or part.get_content_maintype() == "multipart":  # that one without its boundary
        yield _text(part, source, problems)
    else:
        ending = mimetypes.guess_extension(kind) or ""
        yield _file(name or f"attachment{ending}", _bytes(part))


def _is_stub(plain: str, rich: str) -> bool:
    """Whether the plain text of a message, as "Please look at it in a browser", says little of what the other says."""
    own, words = (set(re.findall(r"\w+", text.lower())) for text in (plain, rich))
    return 2 * len(own & words) < len(words) and len(own) < STUB_WORDS * len(words)


def _is_body(part: MIMEPart) -> bool:
    is_text = part.get_content_type() in ("text/plain", "text/html")
    return is_text and part.get_content_disposition() != "attachment" and not part.get_filename()


def _file(name: str, data: bytes) -> Part:
    return Part(safe_name(name).rpartition("/")[2] or "attachment", len(data), lambda: BytesIO(data))


def _bytes(part: MIMEPart) -> bytes:
    data = part.get_payload(decode=True) or part.get_payload()
    return data if isinstance(data, bytes) else str(data).encode("utf-8", "surrogateescape")


def _text(part: MIMEPart, source: str, problems: list[str]) -> str:
    text = decode(_bytes(part), source, problems, str(part.get_content_charset() or ""))
    if part.get_content_subtype() == "html":
        return parse_html(text)[0]
    if str(part.get_param("format", "")).lower() == "flowed":  # a space at its end: the line goes on
        text = re.sub(r"(?<!\n--) \n(?![>\n])", " ", text)
    return text.strip("\n")


# ---- Outlook -------------------------------------------------------------------------------------------------


class _Properties(NamedTuple):
    """Of a message or attachment in Outlook's format ([MS-OXMSG]): streams whose names are property numbers."""

    container: OleFileIO
    folder: tuple[str, ...]

    def data(self, number: str, kind: str = "0102") -> bytes:
        """Of a property; empty if there is none."""
        path = [*self.folder, f"__substg1.0_{number}{kind}"]
        if not self.container.exists(path) or self.container.get_type(path) != 2:
            return b""
        data: bytes = self.container.openstream(path).read()
        return data

    def text(self, number: str, source: str, problems: list[str]) -> str:
        """Of a property that is a text."""
        if wide := self.data(number, "001F"):
            return wide.decode("utf-16-le", "replace").rstrip("\0")
        page = self.fixed("3FFD", "0003")
        narrow = self.data(number, "001E").rstrip(b"\0")
        return decode(narrow, source, problems, f"cp{int.from_bytes(page[:4], 'little')}" if page else "")

    def fixed(self, number: str, kind: str) -> bytes:
        """The 8 bytes of a property that has no stream of its own; empty if there is none."""
        path = [*self.folder, "__properties_version1.0"]
        table: bytes = self.container.openstream(path).read() if self.container.exists(path) else b""
        tag = int(number + kind, 16).to_bytes(4, "little")
        for start in range(
            len(table) % 16, len(table) - 15, 16
        ):  # the head of the table is no multiple of 16, or two
            if table[start : start + 4] == tag:
                return table[start + 8 : start + 16]
        return b""


def read_msg(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Document | Part]:
    """A message as Outlook saves it: one document, then its attachments; messages within it are read with it."""
    import olefile

    with parsing("msg", "save it again"):
        container = olefile.OleFileIO(file)
        if not container.exists("__properties_version1.0"):
            raise Unreadable("it is not a message of Outlook; save it again")
        yield from _outlook(_Properties(container, ()), source, problems)


def _outlook(message: _Properties, source: str, problems: list[str]) -> Iterator[Document | Part]:
    def text(number: str) -> str:
        return message.text(number, source, problems)

    head = email.message_from_string(text("007D"), policy=default)
    sender = text("5D01") or text("0C1F")
    own = {
        "subject": text("0037"),
        "from": " ".join(filter(None, [text("0C1A"), f"<{sender}>" if "@" in sender else ""])),
        "to": text("0E04"),
        "cc": text("0E03"),
        "date": _date(message.fixed("0039", "0040") or message.fixed("0E06", "0040")),
    }
    fields = {name: (_header(head, name) or " ".join(own[name].split())) for name in FIELDS}
    body = text("1000")
    html = parse_html(text("1013") or decode(message.data("1013"), source, problems))[0]
    if not body.strip() or _is_stub(body, html):
        body = html
    if not body.strip() and message.data("1009"):
        problems.append(f"{source}: its body was left out, since it is kept as RTF alone; save it as eml.")
    yield _document(fields, body.replace("\r\n", "\n"), source)
    depth = len(message.folder)
    folders = {tuple(path[: depth + 1]) for path in message.container.listdir() if len(path) > depth + 1}
    for folder in sorted(folders):
        if folder[:depth] != message.folder or not folder[-1].startswith("__attach_version1.0_"):
            continue
        attached = _Properties(message.container, folder)
        inner = _Properties(message.container, (*folder, "__substg1.0_3701000D"))
        if message.container.exists([*inner.folder, "__properties_version1.0"]):
            title = safe_name(inner.text("0037", source, problems).replace("/", "_")) or "message"
            yield from _outlook(inner, f"{source}/{title}.msg", problems)
        else:
            names = (attached.text(number, source, problems) for number in ("3707", "3704", "3001"))
            yield _file(next(filter(None, names), "attachment"), attached.data("3701"))


def _date(filetime: bytes) -> str:
    """100 ns since 1601, as Windows counts."""
    with suppress(OverflowError):
        if filetime:
            since = timedelta(microseconds=int.from_bytes(filetime, "little") // 10)
            return f"{datetime(1601, 1, 1, tzinfo=UTC) + since:%Y-%m-%d %H:%M:%S} UTC"
    return ""


# ---- archives ------------------------------------------------------------------------------------------------


def read_zip(file: BinaryIO, source: str, problems: list[str]) -> Iterator[Part]:
    """A zip archive: its members, without hidden ones."""
    locked: list[str] = []
    num_members = 0
    with unzipped(file, "zip") as archive:
        page, is_guess = _code_page(archive.infolist())
        if is_guess:
            problems.append(f"{source}: names of its files were read as {page}, which is a guess.")
        for member in archive.infolist():
            name = _member_name(member, page)
            if member.is_dir() or not name or any(part[0] == "." for part in name.split("/")):
                continue
            if name.startswith("__MACOSX/"):  # resources of a Mac's files
                continue
            num_members += 1
            if member.flag_bits & _ZIP_ENCRYPTED:
                locked.append(name)
            else:
                yield Part(name, member.file_size, partial(_unpack, archive, member))
    if num_members == len(locked):
        raise Unreadable(ENCRYPTED if locked else "it holds no files; fill it or remove it")
    if locked:
        were = "member was" if len(locked) == 1 else "members were"
        problems.append(
            f"{source}: {len(locked)} encrypted {were} left out ({listed(locked, MAX_NAMED)}); pack what they hold "
            "without a password."
        )


def _member_name(member: ZipInfo, page: str) -> str:
    """The name of a member: as a field or a flag says, or UTF-8 where it is, else in a code page."""
    raw = _raw_name(member)
    if raw is None or (said := _unicode_name(member, raw)):
        return safe_name(member.filename if raw is None else said)
    return safe_name(raw.decode() if _is_utf8(raw) else raw.decode(page, "replace"))


def _unicode_name(member: ZipInfo, raw: bytes) -> str:
    """The name that a field besides gives a member, "" for none."""
    extra = member.extra
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        data, extra = extra[4 : 4 + length], extra[4 + length :]
        if kind == _UNICODE_NAME and data[:5] == struct.pack("<BI", 1, crc32(raw)):
            return data[5:].decode("utf-8", "replace")
    return ""


def _raw_name(member: ZipInfo) -> bytes | None:
    """The name of a member as it is in the archive; None if it is said to be UTF-8."""
    return None if member.flag_bits & _ZIP_UTF8_NAME else member.orig_filename.encode(_DOS, "replace")


def _code_page(members: Iterable[ZipInfo]) -> tuple[str, bool]:
    """The code page of names in an archive, by what it makes of them: words of one script, and nothing else; and
    whether another may be right."""
    names = [raw for member in members if (raw := _raw_name(member)) and not _unicode_name(member, raw)]
    others = b"/".join(name for name in names if not _is_utf8(name))
    for page, letter, beside in _CODE_PAGES if others else ():
        with suppress(UnicodeDecodeError):
            text = others.decode(page)
            words = re.findall(rf"(?<!{beside}){letter}{{2,}}(?!{beside})", text)
            num_letters = len(re.sub(r"[\0-\x7f]", "", text))
            is_whole = num_letters == len(re.findall(letter, text)) and 2 * len("".join(words)) > num_letters
            if is_whole and (page != "cp949" or _is_korean(others)):
                return page, True
    return _DOS, bool(_ODD.search(others.decode(_DOS)))


def _is_korean(names: bytes) -> bool:
    num_korean, num_chinese = (
        sum(letter in common for letter in names.decode(page, "replace"))
        for page, common in (("cp949", _KOREAN), ("gbk", _CHINESE))
    )
    return num_korean > num_chinese


def _is_utf8(data: bytes) -> bool:
    with suppress(UnicodeDecodeError):
        return data.decode() is not None
    return False


def _unpack(archive: ZipFile, member: ZipInfo) -> BytesIO:
    with parsing("member of a zip archive", "pack it again"):
        return BytesIO(archive.read(member))
