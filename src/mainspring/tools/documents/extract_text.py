"""Reads the text of a file. Runs in the sandbox, on its own: imports the standard library, and where need be what reads PDF
files and spreadsheets.

What a file is, is told by its bytes; a name that says otherwise makes it unreadable. The pages are printed as JSON, each on a
line: number, label and text, and at last how it went. Pages of a text or a web page have no number.
"""

import codecs
import csv
import io
import json
import posixpath
import re
import sys
import zipfile
from collections.abc import Iterator
from xml.etree import ElementTree

MOST_CHARS = 24_000_000
# What an archive may unpack to, in all and compared with what it is.
MOST_UNPACKED = 256 << 20
MOST_RATIO = 200
DOCUMENTS = {"pdf": "pdf", "docx": "docx", "docm": "docx", "pptx": "pptx", "pptm": "pptx"}
SHEETS = ("xlsx", "xlsm", "xlsb", "xls", "ods")
# Of what is compressed or encrypted, a tenth is control characters.
MOST_CONTROLS = 0.02
UNREADABLE = ("png", "jpg", "jpeg", "gif", "webp", "zip", "gz", "exe", "mp3", "mp4", "wav", "doc", "ppt")

Page = tuple[int | None, str, str]
# Other bytes may come before it, on lines of their own; a text that speaks of it is none.
_PDF = re.compile(rb"(?:\A(?:\xef\xbb\xbf)?|[\r\n])[ \t]*%PDF-\d")
_CONTROLS = bytes(set(range(32)) - set(b"\b\t\n\f\r\x1a\x1b"))
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_SLIDE = "{http://schemas.openxmlformats.org/presentationml/2006/main}sldId"
_LINK = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


class Unreadable(Exception):
    """`code` is as clients know it: `unsupported_file` or `invalid_file`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read_pages(ending: str, path: str) -> Iterator[Page]:
    """The pages of a file whose name ends so. Raises `Unreadable`, and whatever a damaged file makes a library raise."""
    kind = find_kind(path)
    claimed = "sheet" if ending in SHEETS else DOCUMENTS.get(ending)
    if claimed is not None and kind != claimed:
        raise Unreadable("invalid_file", f"it is called .{ending}, and is none: {describe(kind)}")
    if kind == "binary" or (kind == "text" and ending in UNREADABLE):
        raise Unreadable("unsupported_file", "no text can be read from files of this kind")
    if claimed is None and kind != "text" and ending:
        raise Unreadable("invalid_file", f"it is called .{ending}, and is none: {describe(kind)}")
    if kind == "text":
        return read_text(path, is_page=ending in ("html", "htm", "xhtml"))
    return {"pdf": read_pdf, "docx": read_docx, "pptx": read_pptx, "sheet": read_sheets}[kind](path)


def describe(kind: str) -> str:
    return {"text": "it is text", "binary": "it is damaged, encrypted or something else"}.get(kind, f"it is a {kind}")


def find_kind(path: str) -> str:
    """What the bytes of a file are: `pdf`, `docx`, `pptx`, `sheet`, `text` or `binary`."""
    with open(path, "rb") as file:
        head = file.read(8192)
    if _PDF.search(head[:1024]):
        return "pdf"
    if head.startswith(b"PK\x03\x04"):
        return find_archive_kind(path)
    if head.startswith(b"\xd0\xcf\x11\xe0"):
        return "sheet" if holds_workbook(path) else "binary"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "text"
    controls = len(head) - len(head.translate(None, _CONTROLS))
    return "binary" if b"\0" in head or controls > MOST_CONTROLS * len(head) else "text"


def find_archive_kind(path: str) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            packed = sum([info.compress_size for info in archive.infolist()])
            unpacked = sum([info.file_size for info in archive.infolist()])
            if unpacked > MOST_UNPACKED or (unpacked > 1 << 20 and unpacked > MOST_RATIO * max(packed, 1)):
                raise Unreadable("invalid_file", f"it unpacks to {unpacked} bytes, which is too much for what it is")
            if any(info.flag_bits & 1 for info in archive.infolist()):
                raise Unreadable("invalid_file", "it is encrypted; send it without a password")
            kinds = {
                "word/document.xml": "docx",
                "ppt/presentation.xml": "pptx",
                "xl/workbook.xml": "sheet",
                "xl/workbook.bin": "sheet",
            }
            if found := [kind for part, kind in kinds.items() if part in names]:
                return found[0]
            is_sheet = "mimetype" in names and b"opendocument.spreadsheet" in archive.open("mimetype").read(100)
            return "sheet" if is_sheet else "binary"
    except zipfile.BadZipFile:
        raise Unreadable("invalid_file", "the archive that it is cannot be read; it is damaged") from None


def holds_workbook(path: str) -> bool:
    """Whether an old office file is a workbook. An encrypted one is none."""
    with open(path, "rb") as file:
        names = file.read()
    if "EncryptedPackage".encode("utf-16-le") in names:
        raise Unreadable("invalid_file", "it is encrypted; send it without a password")
    return any(name.encode("utf-16-le") in names for name in ("Workbook", "Book"))


def read_pdf(path: str) -> Iterator[Page]:
    try:
        import pypdfium2  # type: ignore[import-untyped]
    except ImportError:
        raise Unreadable("unsupported_file", "PDF files need another package: pip install 'mainspring[documents]'") from None
    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        why = "it is encrypted; send it without a password" if "password" in str(error).lower() else "it is damaged"
        raise Unreadable("invalid_file", f"the PDF file cannot be read: {why}") from None
    for number in range(len(document)):
        page = document[number]
        text = page.get_textpage()
        yield number + 1, "", text.get_text_bounded().replace("\r\n", "\n").replace("\ufffe", "-")
        text.close()
        page.close()


def read_sheets(path: str) -> Iterator[Page]:
    try:
        import python_calamine
    except ImportError:
        raise Unreadable("unsupported_file", "spreadsheets need another package: pip install 'mainspring[documents]'") from None
    try:
        book = python_calamine.CalamineWorkbook.from_path(path)
    except python_calamine.CalamineError as error:
        why = "it is encrypted; send it without a password" if "password" in str(error).lower() else "it is damaged"
        raise Unreadable("invalid_file", f"the spreadsheet cannot be read: {why}") from None
    for number, name in enumerate(book.sheet_names, start=1):
        lines = io.StringIO()
        for row in book.get_sheet_by_name(name).to_python(skip_empty_area=False):
            cells = [
                "" if cell == "" else str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)
                for cell in row
            ]
            csv.writer(lines, lineterminator="\n").writerow(cells) if any(cells) else lines.write("\n")
        yield number, name, lines.getvalue()


def open_part(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    data = archive.open(name).read(MOST_UNPACKED)
    if b"<!DOCTYPE" in data[:4096] or b"<!ENTITY" in data:
        raise Unreadable("invalid_file", "it declares entities, which no office file does")
    return ElementTree.fromstring(data)


def read_docx(path: str) -> Iterator[Page]:
    """The paragraphs of a document. Its pages are as the program that wrote it has laid them out, if it says so."""
    with zipfile.ZipFile(path) as archive:
        root = open_part(archive, "word/document.xml")
    number, lines, line = 1, list[str](), list[str]()

    def end_page() -> Page:
        lines.extend(["".join(line)] if line else [])
        page = number, "", "\n".join(lines)
        line.clear()
        lines.clear()
        return page

    for node in root.iter():
        if node.tag in (f"{_WORD}p", f"{_WORD}tr") and line:
            lines.append("".join(line))
            line.clear()
        elif node.tag == f"{_WORD}t":
            line.append(node.text or "")
        elif node.tag == f"{_WORD}tab":
            line.append("\t")
        elif node.tag == f"{_WORD}lastRenderedPageBreak" or (node.tag == f"{_WORD}br" and node.get(f"{_WORD}type") == "page"):
            if line or lines:
                yield end_page()
                number += 1
        elif node.tag == f"{_WORD}br":
            line.append("\n")
    if line or lines:
        yield end_page()


def read_pptx(path: str) -> Iterator[Page]:
    """The slides of a presentation as they are shown, each with its notes. The names of the parts tell neither."""
    with zipfile.ZipFile(path) as archive:
        links = read_links(archive, "ppt/presentation.xml")
        listed = [links.get(node.get(_LINK, "")) for node in open_part(archive, "ppt/presentation.xml").iter(_SLIDE)]
        slides = dict.fromkeys([name for name in listed if name is not None])
        for number, slide in enumerate(slides, start=1):
            notes = [name for name in read_links(archive, slide).values() if name.startswith("ppt/notesSlides/")]
            lines = [read_paragraph(node) for part in (slide, *notes) for node in open_part(archive, part).iter(f"{_DRAWING}p")]
            yield number, "", "\n".join([line for line in lines if line.strip()])


def read_links(archive: zipfile.ZipFile, part: str) -> dict[str, str]:
    """The parts that this one names, by the names that it has for them."""
    folder, name = posixpath.split(part)
    links, known = f"{folder}/_rels/{name}.rels", set(archive.namelist())
    found = list(open_part(archive, links)) if links in known else []
    targets = {node.get("Id", ""): posixpath.normpath(posixpath.join("/", folder, node.get("Target", "")))[1:] for node in found}
    return {id: target for id, target in targets.items() if target in known}


def read_paragraph(node: ElementTree.Element) -> str:
    return "".join(
        ["\n" if part.tag == f"{_DRAWING}br" else part.text or "" for part in node.iter() if part.tag != f"{_DRAWING}p"]
    )


def read_text(path: str, *, is_page: bool) -> Iterator[Page]:
    with open(path, "rb") as file:
        data = file.read()
    text = decode_text(data)
    if is_page or text[:1000].lstrip().lower().startswith(("<!doctype html", "<html")):
        from readable import answer  # type: ignore[import-not-found]

        found = answer(text, "")
        yield None, "", f"# {found['title']}\n\n{found['text']}" if found["title"] else found["text"]
    else:
        yield None, "", text.replace("\r\n", "\n").replace("\r", "\n")


def decode_text(data: bytes) -> str:
    """The text in the encoding that it begins with or says, else UTF-8, else that of Windows."""
    for mark, encoding in ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    said = re.search(rb"""(?:charset=["']?|encoding=["'])([A-Za-z0-9_-]{3,20})""", data[:2048])
    for encoding in ("utf-8", *([said[1].decode()] if said else [])):
        try:
            if codecs.lookup(encoding).name not in ("idna", "punycode", "unicode_escape", "raw_unicode_escape"):
                return data.decode(encoding)
        except (LookupError, ValueError):
            continue
    return data.decode("cp1252", "replace")


def main(ending: str, path: str) -> None:
    left = MOST_CHARS
    try:
        for number, label, text in read_pages(ending, path):
            left -= len(text)
            if left < 0:
                raise Unreadable("invalid_file", f"it has more than {MOST_CHARS} characters; send it in parts")
            if number is None or text.strip():  # of a million blank pages none is told
                print(json.dumps([number, label, text.encode("utf-8", "replace").decode()]))
        print(json.dumps({"code": None}))
    except Unreadable as error:
        print(json.dumps({"code": error.code, "message": str(error)}))
    except MemoryError:
        raise
    except Exception as error:  # Libraries raise what they like at what hostile files make them read.
        print(json.dumps({"code": "invalid_file", "message": f"it cannot be read: {type(error).__name__}"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
