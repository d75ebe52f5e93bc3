"""What the console shows beside runs: conversations, usage, budgets, the audit, policies, tools, servers, workers, settings."""

import json
from pathlib import Path

import aiohttp
import pytest
from tests.server.process import serving
from tests.server.test_approvals import Client, house

pytestmark = pytest.mark.usefixtures("each_database")

ADMIN = ("/audit", "/audit/verify", "/policy", "/workers", "/system", "/settings", "/keys")


async def test_conversations_are_listed_with_titles_searched_renamed_and_deleted(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        acme, zeta = await at.key("acme"), await at.key("zeta")
        said = [{"type": "message", "role": "user", "content": text} for text in ("Holidays  in\nRome", "Taxes")]
        made = [(await acme.post("/conversations", items=[item]))[1]["id"] for item in said]

        async def listed(client: Client, query: str = "") -> list[tuple[str, str]]:
            return [(told["id"], told["title"]) for told in (await client.get(f"/conversations{query}"))[1]["data"]]

        assert await listed(acme) == [(made[1], "Taxes"), (made[0], "Holidays in Rome")]
        assert await listed(zeta) == []
        assert await listed(acme, "?q=rome") == [(made[0], "Holidays in Rome")]
        assert await listed(acme, f"?limit=1&after={made[1]}") == [(made[0], "Holidays in Rome")]
        await acme.post(f"/conversations/{made[1]}", metadata={"title": "Money"})
        assert await listed(acme, "?q=mon") == [(made[1], "Money")]
        assert (await zeta.get(f"/conversations?after={made[0]}"))[0] == 404
        assert (await zeta.post(f"/conversations/{made[0]}", metadata={}))[0] == 404


async def test_usage_is_summed_by_day_model_key_and_tenant(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        acme, operator = await at.key("acme"), await at.key()
        await acme.asked("sda")
        await acme.asked("sdb")
        await operator.asked("sdc")
        _, told = await operator.get("/usage?by=tenant")
        assert [(line["group"], line["runs"], line["failed"]) for line in told["data"]] == [("", 1, 0), ("acme", 2, 0)]
        assert told["total"]["runs"] == 3
        assert told["total"]["input_tokens"] == sum(line["input_tokens"] for line in told["data"])
        _, own = await acme.get("/usage?by=model")
        assert [(line["group"], line["runs"]) for line in own["data"]] == [("obedient", 2)]
        _, keys = await operator.get("/usage?by=key&tenant=acme")
        assert [line["group"][:4] for line in keys["data"]] == ["key:"]
        _, days = await operator.get("/usage")
        assert (days["by"], len(days["data"][0]["group"])) == ("day", len("2026-01-31"))
        assert (await operator.get("/usage?to=1000"))[1]["data"] == []
        status, refused = await operator.get("/usage?by=shoe")
        assert (status, refused["error"]["param"]) == (400, "by")
        assert (await acme.get("/usage?tenant=zeta"))[0] == 403


async def test_the_audit_is_listed_by_what_is_wanted_and_verified(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        acme, operator = await at.key("acme"), await at.key()
        [approval] = await acme.asked("sda")
        await operator.asked("sdb")
        _, page = await operator.get("/audit")
        assert {record["entry"].get("tenant", "") for record in page["data"]} == {"acme", ""}
        _, judged = await operator.get("/audit?what=judged&tenant=acme")
        [record] = judged["data"]
        assert (record["entry"]["run"], record["entry"]["policy"]) == (approval["response_id"], "asks_first")
        assert "asks_first" in record["said"]
        _, own = await acme.get("/audit")
        assert {record["entry"]["tenant"] for record in own["data"]} == {"acme"}
        _, first = await operator.get("/audit?limit=1")
        assert first["has_more"] is True
        _, rest = await operator.get(f"/audit?after={first['last_id']}")
        assert [*first["data"], *rest["data"]] == page["data"]
        status, told = await operator.get("/audit/verify")
        assert (status, told["is_whole"], told["records"]) == (200, True, len(page["data"]))
        assert (await operator.get(f"/audit/verify?head={told['heads'][0]}"))[1]["is_whole"] is True
        assert (await operator.get(f"/audit/verify?head={'0' * 63}1"))[1]["is_whole"] is False
        assert (await operator.get("/audit/verify?head=x"))[0] == 400
        assert (await acme.get("/audit/verify"))[0] == 403, "it is about all tenants"


async def test_a_call_is_explained_and_a_run_replayed(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        acme, zeta = await at.key("acme"), await at.key("zeta")
        [approval] = await acme.asked("sda")
        run_id = approval["response_id"]
        _, log = await acme.get(f"/runs/{run_id}/events")
        [call_id] = [event["call_id"] for event in log["data"] if event["type"] == "call_judged"]
        status, told = await acme.get(f"/runs/{run_id}/explain/{call_id}")
        assert (status, told["tool"], told["digest"]) == (200, "wipe", approval["digest"])
        assert [(entry["entry"]["outcome"], entry["entry"]["policy"]) for entry in told["entries"]] == [("ask", "asks_first")]
        assert (await acme.get(f"/runs/{run_id}/explain/call_none"))[0] == 404
        status, told = await acme.get(f"/runs/{run_id}/replay")
        assert (status, told["same"], told["reason"]) == (200, True, "approval_needed")
        for path in (f"/runs/{run_id}/explain/{call_id}", f"/runs/{run_id}/replay"):
            assert (await zeta.get(path))[0] == 404


async def test_policies_are_shown_in_order_and_say_what_they_would_decide(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        key = await at.key()
        _, told = await key.get("/policy")
        names = [policy["name"] for policy in told["policies"]]
        assert "asks_first" in names
        assert all(policy["description"] for policy in told["policies"] if policy["name"] == "known_tool")
        status, tried = await key.post("/policy/try", tool="wipe", arguments={"disk": "sda"})
        assert (status, tried["verdict"], tried["policy"]) == (200, "ask", "asks_first")
        _, tried = await key.post("/policy/try", tool="wipe", arguments={"disk": 5})
        assert (tried["verdict"], tried["policy"]) == ("deny", "valid_arguments")
        status, refused = await key.post("/policy/try", tool="unheard_of")
        assert status == 400
        status, refused = await key.post("/policy/try", tools="wipe")
        assert (status, refused["error"]["param"]) == (400, "tools")
        assert at.done == [], "nothing was performed"


async def test_keys_are_made_shown_once_and_revoked_by_those_who_may(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        operator, acme = await at.key(), await at.key("acme", "admin", "models")
        status, made = await operator.post("/keys", name="reader", tenant="zeta", scopes=["traces"], seconds=3600)
        assert (status, made["tenant"], made["scopes"], made["key"][:3]) == (200, "zeta", ["traces"], "ms_")
        assert made["expires_at"] == pytest.approx(made["created_at"] + 3600)
        reader = at.client(made["key"])
        assert (await reader.get("/runs"))[0] == 200
        _, page = await operator.get("/keys")
        newest = page["data"][0]
        assert (newest["id"], newest["key"]) == (made["id"], None)
        assert made["key"] not in json.dumps(page)
        assert [key["tenant"] for key in (await acme.get("/keys"))[1]["data"]] == ["acme"]
        assert (await delete(acme, f"/keys/{made['id']}")) == 404
        for body in ({"tenant": "zeta"}, {"scopes": ["responses"]}, {"scopes": ["*"]}):
            status, refused = await acme.post("/keys", **{"scopes": ["models"], **body})
            assert (status, refused["error"]["param"]) == (403, next(iter(body)))
        assert (await acme.post("/keys", scopes=["models"]))[1]["tenant"] == "acme"
        status, refused = await operator.post("/keys", scopes=["odd"])
        assert (status, refused["error"]["param"]) == (400, "scopes")
        brief = at.client((await operator.post("/keys", seconds=600))[1]["key"])
        _, heir = await brief.post("/keys")
        assert 0 < heir["expires_at"] - heir["created_at"] <= 600, "no key outlives the one that made it"
        status, refused = await brief.post("/keys", seconds=601)
        assert (status, refused["error"]["param"], refused["error"]["code"]) == (400, "seconds", "invalid_value")
        assert (await brief.post("/keys", seconds=60))[0] == 200
        assert (await delete(operator, f"/keys/{made['id']}")) == 200
        assert (await reader.get("/runs"))[0] == 401


async def test_tools_workers_and_the_system_are_shown(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        key, acme = await at.key(), await at.key("acme")
        await key.asked("sda")
        _, tools = await acme.get("/tools")
        assert [(tool["name"], tool["parameters"]["type"]) for tool in tools["data"]] == [("wipe", "object")]
        assert (await acme.get("/mcp_servers"))[1]["data"] == []
        _, workers = await key.get("/workers")
        assert [worker["is_self"] for worker in workers["data"]] == [True]
        assert (workers["unfinished"], workers["claimable"]) == (0, 0)
        _, system = await key.get("/system")
        assert (system["model"], system["database"]) == ("obedient", at.engine.database_kind)
        for path in ("/workers", "/system", "/settings"):
            assert (await acme.get(path))[0] == 403, path


async def test_what_operators_see_needs_the_scope_admin(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        key = await at.key("", "responses", "traces", "budgets")
        for path in ADMIN:
            status, told = await key.get(path)
            assert (status, told["error"]["code"]) == (403, "insufficient_scope"), path


async def test_the_settings_in_force_say_where_they_are_from_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text('drain_seconds = 3.0\n[mcp.clock]\ncommand = "no-such-program-at-all"\n')
    with serving(
        tmp_path, [{"say": "Hello."}], env={"MAINSPRING_API_KEY": "a secret of ours", "MAINSPRING_APPROVAL_SECONDS": "60"}
    ) as served:
        async with aiohttp.ClientSession() as session:
            client = Client(session, served.url, "a secret of ours")
            status, told = await client.get("/settings")
            _, page = await client.get("/mcp_servers")
        assert status == 200, told
        found = {setting["name"]: (setting["source"], setting["value"]) for setting in told["data"]}
        assert found["drain_seconds"] == ("file", 3.0)
        assert found["approval_seconds"] == ("environment", 60.0)
        assert found["api_key"] == ("environment", "(hidden)")
        assert found["port"] == ("command line", 0)
        assert found["error_event"] == ("default", True)
        assert "a secret of ours" not in json.dumps(told)
        [server] = page["data"]
        assert (server["label"], server["tools"]) == ("clock", [])
        assert server["state"] in ("down", "starting")


async def delete(client: Client, path: str) -> int:
    async with client._session.delete(client._url + path, headers=client._headers) as answer:
        return answer.status
