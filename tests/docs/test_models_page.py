"""The tables of docs/models.md say what the adapters work by."""

from scripts.models_page import PAGE, SHOWN, list_fields, list_habits, list_shipped, write_page

from mainspring.features.models.quirks import QUIRKS
from mainspring.providers.profiles import ModelProfile, load_shipped


def test_the_page_is_as_it_is_generated() -> None:
    page = PAGE.read_text()
    assert page == write_page(page), "write it anew with: python -m scripts.models_page"


def test_the_page_has_every_habit_field_and_entry() -> None:
    page = PAGE.read_text()
    assert [len(rows) - 2 for rows in (list_habits(), list_fields(), list_shipped())] == [
        len(QUIRKS),
        len(ModelProfile.__struct_fields__),
        len(load_shipped()),
    ]
    assert all(quirk.does in page for quirk in QUIRKS)
    assert all(f"| `{field}` |" in page for field in ModelProfile.__struct_fields__)
    assert all(entry.link in page for entry in load_shipped())
    assert SHOWN.keys() <= {*ModelProfile.__struct_fields__}
