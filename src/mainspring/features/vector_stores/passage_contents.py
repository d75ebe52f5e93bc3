"""What vector stores keep, as it is copied. Vectors are not: they are made again from the passages."""

from collections.abc import Mapping
from typing import Final

from mainspring.features.vector_stores.passage_rows import PASSAGES, SEARCH, SERVED_SEARCH
from mainspring.storage.location import Location
from mainspring.storage.postgres.run_tables import escape
from mainspring.storage.search.word_index import ServerWords
from mainspring.storage.transfer.content import ContentKind, Derived, Placed, TableForm, Value

_WORDS: Final = "to_tsvector('mainspring_passage_words', ({}::text[])[1]) || to_tsvector('simple', ({}::text[])[2])"


def _list_words(row: Mapping[str, Value]) -> list[str]:
    spoken = ServerWords(PASSAGES).describe((str(row["text"]),))["spoken"]
    return [escape(str(spoken)), escape(str(row["owner"]))]


SEARCH_CONTENT: Final = ContentKind(
    name="search",
    schema=SEARCH,
    served=SERVED_SEARCH,
    tables=(
        TableForm(name="stores"),
        TableForm(name="store_batches"),
        TableForm(name="store_files"),
        TableForm(name="removed_files"),
        TableForm(name="passages", derived={"words": Derived(_list_words, _WORDS)}),
    ),
    left={"passage_model": "vectors are made again", "passage_vectors": "they are made again"},
)


def place_search(_: object, database: Location) -> tuple[Placed, ...]:
    return (Placed(SEARCH_CONTENT, database),)
