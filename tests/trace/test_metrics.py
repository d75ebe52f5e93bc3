"""`/metrics`: what a scraper reads agrees with what the runs were, and stays small whatever is sent."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from msgspec import Struct
from tests.server.hosting import hosted
from tests.server.process import Script, serving

from mainspring import Engine, tool
from mainspring.app.build import compose_engine
from mainspring.app.server import server
from mainspring.app.settings import Settings
from mainspring.core.errors import Refused, StoreError, Unavailable
from mainspring.core.items import Usage
from mainspring.features.traces.metrics import MOST_NAMES, OTHER, Counter, Histogram, Metrics, render_exposition
from mainspring.features.traces.trace_builder import build_trace, outline_trace
from mainspring.http.auth import Keys
from mainspring.ports import RunPage
from mainspring.providers.scripted import Call, Scripted, Turn, call, fail, say, turn
from mainspring.storage.memory_runs import MemoryStore

Labels = frozenset[tuple[str, str]]

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(,|$)')
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (-?[0-9.eE+-]+|\+Inf|NaN)")


class Family(Struct):
    kind: str
    samples: dict[tuple[str, Labels], float]


def parsed(text: str) -> dict[str, Family]:
    """The families of an exposition. Fails on everything that the format does not allow."""
    assert text.endswith("\n")
    families: dict[str, Family] = {}
    lines = iter(text[:-1].split("\n"))
    current = ""
    for line in lines:
        if line.startswith("# HELP "):
            current = line.split(" ", 3)[2]
            assert current not in families, f"{current} is told twice"
            kind = next(lines).split(" ")
            assert kind[:3] == ["#", "TYPE", current]
            assert kind[3] in ("counter", "gauge", "histogram")
            families[current] = Family(kind[3], {})
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample is not None, line
        name, labels = sample[1], _labels(sample[2] or "")
        suffixes = ("_bucket", "_sum", "_count") if families[current].kind == "histogram" else ("",)
        assert name in [current + suffix for suffix in suffixes], f"{name} stands among {current}"
        assert (name, labels) not in families[current].samples, f"{line} is told twice"
        families[current].samples[name, labels] = float(sample[3])
    for name, family in families.items():
        if family.kind == "histogram":
            _check_histogram(name, family)
    return families


def _labels(text: str) -> Labels:
    found, rest = [], text
    while rest:
        label = _LABEL.match(rest)
        assert label is not None, text
        found.append((label[1], label[2].replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")))
        rest = rest[label.end() :]
    assert len(dict(found)) == len(found), text
    return frozenset(found)


def _check_histogram(name: str, family: Family) -> None:
    """Buckets grow with their bounds, and the last holds everything."""
    series: dict[Labels, list[tuple[float, float]]] = {}
    for (sample, labels), value in family.samples.items():
        if sample == f"{name}_bucket":
            (bound,) = [float(bound) for label, bound in labels if label == "le"]
            series.setdefault(labels - {("le", _bound(labels))}, []).append((bound, value))
    for labels, buckets in series.items():
        assert buckets == sorted(buckets)
        assert [count for _, count in buckets] == sorted(count for _, count in buckets)
        assert buckets[-1][0] == float("inf")
        assert buckets[-1][1] == family.samples[f"{name}_count", labels]
        assert (f"{name}_sum", labels) in family.samples


def _bound(labels: Labels) -> str:
    return dict(labels)["le"]


def value(families: dict[str, Family], name: str, **labels: str) -> float:
    family = next(family for title, family in families.items() if name.startswith(title))
    return family.samples[name, frozenset(labels.items())]


@tool
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool
async def crash() -> str:
    """Fails."""
    raise RuntimeError("boom")


def scraped(engine: Engine) -> dict[str, Family]:
    return parsed(engine.metrics.text(live=engine.core.live, is_store_up=True))


async def test_metrics_trace_and_response_tell_the_same() -> None:
    usage = Usage(10, 4)
    model = Scripted(
        turn(calls=[call("add", a=1, b=2), call("crash"), call("nope")], usage=usage),
        turn(say="Three.", usage=usage),
        fail(Unavailable("down")),
        turn(calls=[call("add", a=1, b=2)], usage=usage),
    )
    async with Engine(model, tools=[add, crash]) as engine:
        first = await engine.run("go")
        failed = await engine.run("go")
        short = await engine.run("go", max_turns=1)
        traces = [await engine.trace(run.spec.id) for run in (first, failed, short)]
        told = scraped(engine)
    assert value(told, "mainspring_runs_total", preset="responses", status="completed", reason="final_answer") == 1
    assert value(told, "mainspring_runs_total", preset="responses", status="failed", reason="provider_error") == 1
    assert value(told, "mainspring_runs_total", preset="responses", status="incomplete", reason="max_turns") == 1
    assert value(told, "mainspring_run_duration_seconds_count", preset="responses") == 3
    turns = told["mainspring_turns_total"].samples
    assert sum(turns.values()) == sum(len(trace.turns) for trace in traces) == 4
    assert value(told, "mainspring_turns_total", model="scripted", status="failed") == 1
    used = [run.usage for run in (first, failed, short)]
    assert value(told, "mainspring_tokens_total", model="scripted", direction="input") == sum(one.input_tokens for one in used)
    assert value(told, "mainspring_tokens_total", model="scripted", direction="output") == sum(one.output_tokens for one in used)
    assert value(told, "mainspring_tool_calls_total", tool="add", outcome="success") == 2
    assert value(told, "mainspring_tool_calls_total", tool="crash", outcome="failure") == 1
    assert value(told, "mainspring_tool_calls_total", tool="_unknown", outcome="denied") == 1
    assert value(told, "mainspring_tool_duration_seconds_count", tool="add") == 2
    assert value(told, "mainspring_verdicts_total", policy="known_tool", verdict="deny") == 1
    assert value(told, "mainspring_verdicts_total", policy="gate", verdict="allow") == 3
    assert value(told, "mainspring_failures_total", code="TL02", category="F-EXE", severity="medium") == 1
    assert value(told, "mainspring_time_to_first_token_seconds_count", model="scripted") == 3
    seconds = value(told, "mainspring_run_duration_seconds_sum", preset="responses")
    assert seconds == pytest.approx(sum((trace.duration_ms or 0) / 1000 for trace in traces), abs=1e-6)
    assert value(told, "mainspring_live_runs") == 0


@pytest.mark.parametrize(
    ("script", "is_plain"),
    [
        ((say("Hello there."),), True),
        ((turn(think="Hm.", say="Hello."),), True),
        ((turn(refuse="No."),), True),
        ((say("Hello", usage=Usage(3, 4)),), True),
        ((fail("server_error"), fail("server_error")), False),
        ((call("look"), call("look"), say("Done.")), True),
        ((call("break"), say("Done.")), False),
        ((call("missing"), say("Done.")), False),
        ((say("cut", finish="length"),), False),
    ],
)
async def test_a_run_is_counted_alike_with_and_without_its_whole_trace(script: tuple[Turn | Call, ...], is_plain: bool) -> None:
    @tool
    def look() -> str:
        """Looks."""
        return "seen"

    @tool(name="break")
    def break_down() -> str:
        """Breaks."""
        raise ValueError("broken")

    async with Engine(Scripted(*script, repeat=True), tools=[look, break_down]) as engine:
        handle = await engine.core.start(engine.core.order("Go."))
        await handle.wait()
    whole, short = Metrics("scripted"), Metrics("scripted")
    outline = outline_trace(handle.log)
    assert (outline is not None) is is_plain
    whole.add(build_trace(handle.log))
    short.add(outline or build_trace(handle.log))
    assert short.text(live=0, is_store_up=True) == whole.text(live=0, is_store_up=True)
    assert short.text(live=0, is_store_up=True) == engine.metrics.text(live=0, is_store_up=True)


async def test_whoever_makes_up_names_makes_up_no_labels_without_end() -> None:
    async with Engine(Scripted(say("Hi."), repeat=True)) as engine:
        for number in range(MOST_NAMES + 20):
            await engine.run("go", model=f'mod"el\n\\{number}')
        told = scraped(engine)
    models = {dict(labels)["model"] for _, labels in told["mainspring_turns_total"].samples}
    assert len(models) == MOST_NAMES + 1
    assert value(told, "mainspring_turns_total", model=OTHER, status="completed") == 20
    assert value(told, "mainspring_turns_total", model='mod"el\n\\0', status="completed") == 1


async def test_models_that_never_answer_take_no_label_from_those_that_do() -> None:
    junk = [fail(Refused("no such model"))] * (MOST_NAMES + 5)
    async with Engine(Scripted(*junk, say("Hi."), say("Hi."), say("Hi."))) as engine:
        for number in range(len(junk)):
            await engine.run("go", model=f"junk-{number}")
        await engine.run("go")
        await engine.run("go", model="real")
        await engine.run("go", model="long" * 20)
        told = scraped(engine)
    assert value(told, "mainspring_turns_total", model="scripted", status="completed") == 1
    assert value(told, "mainspring_turns_total", model="real", status="completed") == 1
    assert value(told, "mainspring_turns_total", model=OTHER, status="failed") == len(junk)
    assert value(told, "mainspring_turns_total", model=OTHER, status="completed") == 1


async def test_the_configured_model_has_its_label_however_many_there_are() -> None:
    engines = {
        "scripted": Engine(Scripted(say("Hi."), repeat=True)),
        # As a server puts it together.
        "configured": compose_engine(Settings(), Scripted(say("Hi."), repeat=True), "configured", database=None),
    }
    for model, composed in engines.items():
        async with composed as engine:
            for number in range(MOST_NAMES):
                await engine.run("go", model=f"real-{number}")
            await engine.run("go")
            told = scraped(engine)
        assert value(told, "mainspring_turns_total", model=model, status="completed") == 1


def test_bounds_are_inclusive_and_labels_are_escaped() -> None:
    histogram, counter = Histogram("h", "Spread.", "who", bounds=(1.0, 2.5)), Counter("c", "Count.", "who")
    for seen in (0.5, 1.0, 2.5, 3.0):
        histogram.observe(seen, 'a"b')
    counter.add("x\\y\n", by=1.5)
    assert render_exposition([histogram, counter]).splitlines() == [
        "# HELP h Spread.",
        "# TYPE h histogram",
        'h_bucket{who="a\\"b",le="1"} 2',
        'h_bucket{who="a\\"b",le="2.5"} 3',
        'h_bucket{who="a\\"b",le="+Inf"} 4',
        'h_sum{who="a\\"b"} 7',
        'h_count{who="a\\"b"} 4',
        "# HELP c Count.",
        "# TYPE c counter",
        'c{who="x\\\\y\\n"} 1.5',
    ]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_a_real_server_is_scraped(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    script: Script = [{"when": "", "say": "Hello.", "usage": {"input_tokens": 7, "output_tokens": 2}}]
    with serving(tmp_path, script) as served:
        for _ in range(3):
            async with http.post(f"{served.url}/responses", json={"model": "m", "input": "hello"}) as answer:
                assert answer.status == 200
        async with http.get(served.url.removesuffix("/v1") + "/metrics") as answer:
            assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            told = parsed(await answer.text())
    assert value(told, "mainspring_tokens_total", model="m", direction="input") == 21
    assert value(told, "mainspring_store_up") == 1


async def test_where_keys_are_needed_a_scraper_needs_one_for_metrics(http: aiohttp.ClientSession) -> None:
    engine = Engine(Scripted(say("Hi."), repeat=True))
    keys = Keys(engine.store)
    async with hosted(server(engine, keys=keys)) as url:
        scrape = url.removesuffix("/v1") + "/metrics"
        async with http.get(scrape) as answer:
            assert answer.status == 200, "without keys, this machine may"
        for scope, status in (("metrics", 200), ("traces", 403), ("*", 200)):
            key = await keys.create(scopes=(scope,))
            async with http.get(scrape, headers={"authorization": f"Bearer {key}"}) as answer:
                assert answer.status == status
        for scope in ("metrics", "*"):
            key = await keys.create(tenant="acme", scopes=(scope,))
            async with http.get(scrape, headers={"authorization": f"Bearer {key}"}) as answer:
                told = await answer.json()
                assert (answer.status, told["error"]["code"]) == (403, "insufficient_scope"), "a tenant is not told of the others"
        async with http.get(scrape) as answer:
            assert answer.status == 401


class Broken(MemoryStore):
    is_broken = False

    async def list(self, **options: object) -> RunPage:
        if self.is_broken:
            raise StoreError("the disk is gone")
        return await super().list(**options)  # type: ignore[arg-type]


async def test_metrics_are_told_while_the_store_is_down(http: aiohttp.ClientSession) -> None:
    store = Broken()
    async with hosted(server(Engine(Scripted(), store=store))) as url:
        store.is_broken = True
        async with http.get(url.removesuffix("/v1") + "/metrics") as answer:
            assert value(parsed(await answer.text()), "mainspring_store_up") == 0
