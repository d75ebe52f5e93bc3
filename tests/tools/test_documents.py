"""The text of documents, read in a real sandbox: pages and lines are kept, and what cannot be read says why."""

import io
import os
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from mainspring.core.errors import SandboxError
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.documents import document_reader
from mainspring.tools.documents.document_reader import DocumentPage, DocumentReader, UnreadableFile

pytestmark = pytest.mark.slow

WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
DRAWING = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"


def make_archive(**parts: str) -> bytes:
    """An archive; `__` in a name is a slash, and a name without an ending ends in `.xml`."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name.replace("__", "/") + ("" if "." in name else ".xml"), text)
    return made.getvalue()


def make_pdf(*pages: str) -> bytes:
    """A PDF file with these lines on its pages."""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Count {len(pages)} /Kids [{' '.join([f'{4 + 2 * n} 0 R' for n in range(len(pages))])}] >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        drawn = "".join([f"({line}) Tj T* " for line in text.split("\n")])
        stream = f"BT /F1 12 Tf 14 TL 72 720 Td {drawn}ET".encode()
        resources = "/MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >>"
        page = f"<< /Type /Page /Parent 2 0 R {resources} /Contents {5 + 2 * number} 0 R >>"
        objects += [page.encode(), b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream)]
    made, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join([b"%010d 00000 n \n" % place for place in places])
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    return made + head + table + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, len(made))


def make_docx(body: str) -> bytes:
    return make_archive(word__document=f"<w:document {WORD}><w:body>{body}</w:body></w:document>")


def make_xlsx() -> bytes:
    cell = '<row r="{0}"><c r="A{0}" t="inlineStr"><is><t>{1}</t></is></c><c r="B{0}"><v>{2}</v></c></row>'
    rows = cell.format(1, "apples", 3) + cell.format(3, "pears", 4.5)
    sheet = f'<worksheet xmlns="{SHEET}"><sheetData>{rows}</sheetData></worksheet>'
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        book = (
            f'<workbook xmlns="{SHEET}" xmlns:r="{LINKS}"><sheets><sheet name="Fruit" sheetId="1" r:id="r1"/></sheets></workbook>'
        )
        archive.writestr("xl/workbook.xml", book)
        root = f'<Relationship Id="r1" Type="{LINKS}/officeDocument" Target="xl/workbook.xml"/>'
        archive.writestr("_rels/.rels", f'<Relationships xmlns="{PACKAGE}">{root}</Relationships>')
        link = f'<Relationship Id="r1" Type="{LINKS}/worksheet" Target="worksheets/sheet1.xml"/>'
        archive.writestr("xl/_rels/workbook.xml.rels", f'<Relationships xmlns="{PACKAGE}">{link}</Relationships>')
        archive.writestr("xl/worksheets/sheet1.xml", sheet)
    return made.getvalue()


def make_slide(*lines: str) -> str:
    told = "".join([f"<a:p><a:r><a:t>{line}</a:t></a:r></a:p>" for line in lines])
    return f"<slide {DRAWING}>{told}</slide>"


def make_links(**targets: str) -> str:
    told = "".join([f'<Relationship Id="{id}" Target="{target}"/>' for id, target in targets.items()])
    return f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{told}</Relationships>'


@pytest.fixture(scope="module")
async def reader() -> AsyncIterator[DocumentReader]:
    async with BuiltinTools() as builtins:
        yield DocumentReader(builtins.open_local)


PARAGRAPHS = (
    "<w:p><w:r><w:t>One</w:t><w:tab/><w:t>more</w:t></w:r></w:p><w:p><w:r><w:t>Two &amp; a half</w:t></w:r></w:p>"
    '<w:p><w:r><w:br w:type="page"/><w:t>Three</w:t></w:r></w:p>'
)
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
SLIDES = "http://schemas.openxmlformats.org/presentationml/2006/main"
SHOWN = "".join([f'<sldId r:id="{id}"/>' for id in ("rId7", "rId3", "rId9")])
PRESENTATION = make_archive(
    **{
        "ppt__presentation": f'<p xmlns="{SLIDES}" xmlns:r="{OFFICE}">{SHOWN}</p>',
        "ppt/_rels/presentation.xml.rels": make_links(
            rId3="slides/slide10.xml", rId7="/ppt/slides/slide2.xml", rId9="../gone.xml"
        ),
        "ppt__slides__slide10": make_slide("Last"),
        "ppt__slides__slide2": make_slide("First", "line"),
        "ppt__slides__slide1": make_slide("Not shown"),
        "ppt/slides/_rels/slide2.xml.rels": make_links(rId1="../notesSlides/notesSlide1.xml", rId2="../media/a.png"),
        "ppt__notesSlides__notesSlide1": make_slide("A note"),
        "ppt__notesSlides__notesSlide2": make_slide("A note of no slide"),
    }
)


@pytest.mark.parametrize(
    ("name", "data", "pages"),
    [
        ("a.pdf", make_pdf("First", "Second\nhas two"), [(1, "", "First"), (2, "", "Second\nhas two")]),
        ("a.docx", make_docx(PARAGRAPHS), [(1, "", "One\tmore\nTwo & a half"), (2, "", "Three")]),
        ("a.pptx", PRESENTATION, [(1, "", "First\nline\nA note"), (2, "", "Last")]),
        ("a.xlsx", make_xlsx(), [(1, "Fruit", "apples,3\n\npears,4.5\n")]),
        ("a.html", b"<html><title>News</title><p>Hello <b>there</b><script>no()</script>", [(None, "", "# News\n\nHello there")]),
        ("a.md", "# Grüße\r\nund mehr".encode(), [(None, "", "# Grüße\nund mehr")]),
        ("a.csv", "Müller;1".encode("cp1252"), [(None, "", "Müller;1")]),
        ("a.py", "print('é')".encode("utf-16"), [(None, "", "print('é')")]),
        ("a.html", '<meta charset="shift_jis"><p>日本'.encode("shift_jis"), [(None, "", "日本")]),
        ("a.txt", b"A PDF begins with %PDF-1.7.", [(None, "", "A PDF begins with %PDF-1.7.")]),
        ("log.txt", b"\x1b[31mred\x1b[0m", [(None, "", "\x1b[31mred\x1b[0m")]),
        ("README", b"no ending", [(None, "", "no ending")]),
        ("no ending", make_pdf("By its bytes"), [(1, "", "By its bytes")]),
        ("sent.pdf", b"X-Mail: 1\r\n\r\n" + make_pdf("After a head"), [(1, "", "After a head")]),
        ("--help.txt", b"no option", [(None, "", "no option")]),
        ("empty.txt", b"", [(None, "", "")]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_text_is_read_with_its_pages(
    reader: DocumentReader, name: str, data: bytes, pages: list[tuple[int | None, str, str]]
) -> None:
    assert list(await reader.read(name, data)) == [DocumentPage(*page) for page in pages]


BOMB = make_archive(word__document="<w:document " + " " * 60_000_000 + "/>")
ENTITIES = f'<!DOCTYPE x [<!ENTITY a "{"ha" * 1000}">]><w:document {WORD}><w:body>&a;</w:body></w:document>'
ENCRYPTED = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600) + "EncryptedPackage".encode("utf-16-le")


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("damaged.pdf", b"%PDF-1.4\n" + os.urandom(2000), "invalid_file"),
        ("damaged.docx", make_docx(PARAGRAPHS)[:-40], "invalid_file"),
        ("damaged.xlsx", b"PK\x03\x04" + os.urandom(2000), "invalid_file"),
        ("encrypted.xlsx", ENCRYPTED, "invalid_file"),
        ("bomb.docx", BOMB, "invalid_file"),
        ("entities.docx", make_archive(word__document=ENTITIES), "invalid_file"),
        ("text.pdf", b"I am no PDF", "invalid_file"),
        ("pdf.docx", make_pdf("x"), "invalid_file"),
        ("pdf.txt", make_pdf("x"), "invalid_file"),
        ("program.txt", b"\x7fELF" + bytes(1000), "unsupported_file"),
        ("picture.png", b"\x89PNG\r\n\x1a\n" + bytes(100), "unsupported_file"),
        ("sealed.txt", bytes([byte or 1 for byte in Random(1).randbytes(2000)]), "unsupported_file"),
        ("archive.zip", make_archive(a="x"), "unsupported_file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_be_read_says_why(reader: DocumentReader, name: str, data: bytes, code: str) -> None:
    with pytest.raises(UnreadableFile) as raised:
        await reader.read(name, data)
    assert (raised.value.code, bool(raised.value.message)) == (code, True)


async def test_an_encrypted_pdf_is_told_from_a_damaged_one(reader: DocumentReader) -> None:
    key = b"/ID [<00><00>] /Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O (%s) /U (%s) >>" % (b"o" * 32, b"u" * 32)
    locked = make_pdf("secret").replace(b"/Root 1 0 R", b"/Root 1 0 R " + key)
    with pytest.raises(UnreadableFile, match="encrypted"):
        await reader.read("locked.pdf", locked)


async def test_a_file_that_is_too_large_is_not_even_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse() -> object:
        raise AssertionError("no sandbox is needed")

    monkeypatch.setattr(document_reader, "FILE_BYTES", 10)
    with pytest.raises(UnreadableFile, match="has 11 bytes"):
        await DocumentReader(refuse).read("a.txt", b"x" * 11)  # type: ignore[arg-type]


async def test_a_reader_that_never_ends_or_takes_all_memory_is_ended(
    reader: DocumentReader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "extract_text.py"
    monkeypatch.setattr(document_reader, "_SOURCES", (script,))
    monkeypatch.setattr(document_reader, "SECONDS", 1.0)
    for code in ("while True: pass", "x = bytearray(3 << 30); print(len(x), set(x))", "import os; os.abort()", "print('[1,')"):
        script.write_text(code)
        with pytest.raises(UnreadableFile):
            await reader.read("a.txt", b"x")


async def test_the_reader_reaches_nothing_outside(
    reader: DocumentReader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "extract_text.py"
    monkeypatch.setattr(document_reader, "_SOURCES", (script,))
    secret = tmp_path / "secret"
    secret.write_text("hush")
    script.write_text(f"""
import json, socket
def attempt(work):
    try:
        return str(work())
    except OSError as error:
        return "refused"
found = attempt(lambda: open({str(secret)!r}).read()) + " " + attempt(lambda: socket.create_connection(("127.0.0.1", 22), 1))
print(json.dumps([None, "", found]))
print(json.dumps({{"code": None}}))
""")
    [page] = await reader.read("a.txt", b"x")
    assert page.text == "refused refused"


async def test_without_a_sandbox_nothing_is_read() -> None:
    async def refuse() -> object:
        raise SandboxError("no sandbox holds here")

    with pytest.raises(SandboxError):
        await DocumentReader(refuse).read("a.pdf", make_pdf("x"))  # type: ignore[arg-type]
