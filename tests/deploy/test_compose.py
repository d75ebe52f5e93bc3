"""compose.yaml: a whole deployment in which everything that is named exists, and our commands and settings are real."""

import re
from typing import Any

import pytest
from tests.deploy.shipped import DEPLOY, ROOT, check_command, check_settings, check_variables, read_yaml

[COMPOSE] = read_yaml(DEPLOY / "compose.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service.get("image") == "mainspring"}


@pytest.mark.parametrize("name", OURS)
def test_our_services_run_real_commands_with_real_settings(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    service = OURS[name]
    check_command(service["command"], capsys)
    check_variables(service["environment"])
    targets = {config["target"]: COMPOSE["configs"][config["source"]]["file"] for config in service["configs"]}
    assert service["command"][1:3] == ["--config", "/etc/mainspring/mainspring.toml"]
    check_settings(DEPLOY / targets["/etc/mainspring/mainspring.toml"], capsys)


@pytest.mark.parametrize("name", OURS)
def test_our_services_cannot_write_to_their_root_or_gain_rights(name: str) -> None:
    service = OURS[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert {"/tmp", "/data"} <= set(service["tmpfs"])
    assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_what_is_named_is_there() -> None:
    assert [SERVICES[name]["deploy"]["replicas"] for name in ("server", "worker")] == [2, 2]
    for service in SERVICES.values():
        for needed in service.get("depends_on", ()):
            assert needed in SERVICES
            conditions = service["depends_on"]
            if isinstance(conditions, dict) and conditions[needed]["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[needed] or SERVICES[needed]["image"] == "mainspring"
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert (DEPLOY / source).is_dir() if source.startswith(".") else source in COMPOSE["volumes"]
        for config in service.get("configs", ()):
            assert config["source"] in COMPOSE["configs"]
        for secret in service.get("secrets", ()):
            assert secret in COMPOSE["secrets"]
        assert service["image"] == "mainspring" or re.search(r":[\w.-]*\d", service["image"]), "an image without a version"
    for config in COMPOSE["configs"].values():
        assert "content" in config or (DEPLOY / config["file"]).is_file()


def test_the_servers_wait_for_the_tables_and_share_one_database() -> None:
    for name in ("server", "worker"):
        assert SERVICES[name]["depends_on"] == {"upgrade": {"condition": "service_completed_successfully"}}
    assert {service["environment"]["MAINSPRING_DATABASE"] for service in OURS.values()} == {
        SERVICES["server"]["environment"]["MAINSPRING_DATABASE"]
    }
    # Servers drain for `drain_seconds`, and have 20 s more.
    assert all(service["stop_grace_period"] == "60s" for service in OURS.values())


def test_prometheus_finds_every_server_and_worker_with_the_key() -> None:
    [config] = read_yaml(DEPLOY / "prometheus/prometheus.yml")
    [job] = config["scrape_configs"]
    [found] = job["dns_sd_configs"]
    assert found["names"] == ["server", "worker"]
    assert found["port"] == 8080
    worker = SERVICES["worker"]["command"]
    assert worker[worker.index("--health-port") + 1] == "8080"
    [secret] = SERVICES["prometheus"]["secrets"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
    assert COMPOSE["secrets"][secret] == {"environment": "MAINSPRING_API_KEY"}
    assert config["rule_files"] == ["/etc/prometheus/alerts.yml"]


def test_the_proxies_pass_events_on_as_they_come() -> None:
    caddy = (DEPLOY / "proxy/Caddyfile").read_text()
    assert "flush_interval -1" in caddy
    assert caddy.count("{") == caddy.count("}")
    nginx = (DEPLOY / "proxy/nginx.conf").read_text()
    for line in ("proxy_buffering off;", "proxy_read_timeout 1h;", "proxy_http_version 1.1;", "gzip off;"):
        assert line in nginx
    assert nginx.count("{") == nginx.count("}")
