"""`/docs`: the API reference is a page of our own that loads nothing from elsewhere, and draws the document that is served."""

import re
from pathlib import Path

import aiohttp
from tests.server.test_keys import house

from mainspring.core.items import Json


async def test_the_reference_is_served_with_a_strict_policy_and_only_its_own_files(tmp_path: Path) -> None:
    async with house(tmp_path) as at, aiohttp.ClientSession() as session:
        await at.keys.create()  # the page itself needs none
        root = at.base_url.removesuffix("/v1")
        async with session.get(f"{root}/docs") as answer:
            page, policy = await answer.text(), answer.headers["content-security-policy"]
        assert (answer.status, answer.content_type) == (200, "text/html")
        assert "default-src 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy
        named = re.findall(r'(?:src|href)="([^"]+)"', page)
        assert sorted(named) == ["./", "docs/files/reference.css", "docs/files/reference.js", "openapi.json"], (
            "relative, so that a prefix may be before"
        )
        assert not re.search(r"<script[^>]*>[^<]", page)
        assert "style=" not in page
        for name in ("docs/files/reference.css", "docs/files/reference.js"):
            async with session.get(f"{root}/{name}") as answer:
                text = await answer.text()
            assert (answer.status, answer.headers["x-content-type-options"]) == (200, "nosniff")
            assert "http" not in text.replace("http.", "")
            assert "innerHTML" not in text
        for name, status in (("reference.html", 404), ("none.js", 404), ("..%2Froutes.py", 401)):
            async with session.get(f"{root}/docs/files/{name}") as answer:
                assert answer.status == status, name
        async with session.get(f"{root}/openapi.json") as answer:
            assert answer.status == 401, "what it draws needs a key, as ever"


async def test_what_the_page_reads_of_the_document_is_there(tmp_path: Path) -> None:
    async with house(tmp_path) as at, aiohttp.ClientSession() as session:
        async with session.get(f"{at.base_url.removesuffix('/v1')}/openapi.json") as answer:
            told: Json = await answer.json()
        for path, methods in told["paths"].items():
            for operation in methods.values():
                assert operation["summary"], path
                assert operation["description"].startswith("Needs "), path
                assert "content" in operation["responses"]["200"], path
                assert all("schema" in parameter for parameter in operation["parameters"]), path
        events = told["paths"]["/v1/runs/{run_id}/events"]["get"]
        assert events["description"] == "Needs a key with the scope `responses` or `traces`."
