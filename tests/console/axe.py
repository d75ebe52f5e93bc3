"""What axe finds on a page. It needs a script of its own, so the page's context must have been opened with `bypass_csp`."""

import pytest
from playwright.sync_api import Page
from tests.kit.processes import ROOT

AXE = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"


def require_axe() -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed; scripts/setup dev installs it")


def find_flaws(page: Page, screen: str) -> list[str]:
    """What is serious or worse."""
    page.evaluate(AXE.read_text())
    return [
        f"{screen}: {each['id']} {[node['html'] for node in each['nodes']][:3]}"
        for each in page.evaluate("axe.run()")["violations"]
        if each["impact"] in ("serious", "critical")
    ]
