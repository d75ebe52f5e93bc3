"""The documentation as a site: every page in the order of the index, and no link that leads nowhere."""

import shutil
from pathlib import Path

from scripts.docs_site import ROOT, build_site, find_target, read_sections


def test_every_page_is_on_the_site_in_the_order_of_what_one_wants_to_do(tmp_path: Path) -> None:
    assert build_site(tmp_path) == []
    sections = read_sections()
    assert [section.name for section in sections][1:6] == ["Start", "Do", "Operate", "Look up", "Understand"]
    pages = [entry for section in sections for entry in section.entries]
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} < {entry.source for entry in pages}
    first, second = (find_target(entry.source) for entry in pages[:2])
    html = (tmp_path / first).read_text()
    assert html.index('href="server.html"') < html.index('href="tools.html"') < html.index('href="settings.html"')
    assert html.count(f'<a href="{second}">→ ') == 1
    assert (tmp_path / "files" / "docs" / "demo.svg").is_file()


def test_links_that_lead_nowhere_and_a_page_that_none_leads_to_are_told(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for place in ROOT.iterdir():
        if place.name != "docs":
            (tmp_path / place.name).symlink_to(place)
    with (tmp_path / "docs" / "tools.md").open("a") as file:
        file.write("\n[x](nowhere.md), [y](models.md#no-such), [z](#nor-this)\n")
    (tmp_path / "docs" / "forgotten.md").write_text("# Forgotten\n")
    assert build_site(tmp_path / "site", tmp_path) == [
        "docs/forgotten.md: no section of docs/README.md names it",
        "docs/tools.md: `nowhere.md` leads nowhere",
        "docs/tools.md: `models.md#no-such`: there is no such heading",
        "docs/tools.md: `#nor-this`: there is no such heading",
    ]
