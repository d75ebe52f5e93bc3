"""Tokens: whose tasks a request may touch."""

import os
import threading
from errno import EPERM
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.errors import InvalidRequest
from mainspring_tasks.server.identity import Unidentified, fix_user, issue_token, read_secret, verify_tokens

SECRET = "s" * 32


def user_of(given: str, *, secret: str = SECRET, at: float = 1000.0) -> str:
    return verify_tokens(secret, clock=lambda: at)({"authorization": f"Bearer {given}"})


@given(st.text(min_size=1, max_size=255).filter(lambda name: bool(name.strip()) and name.isprintable()))
def test_a_token_names_its_user(name: str) -> None:
    assert user_of(issue_token(SECRET, name)) == name


@given(st.data())
def test_a_token_that_was_changed_is_worth_nothing(data: st.DataObject) -> None:
    good = issue_token(SECRET, "alice", expires_at=2000)
    place = data.draw(st.integers(0, len(good) - 1))
    bad = good[:place] + data.draw(st.characters(codec="ascii").filter(lambda other: other != good[place])) + good[place + 1 :]
    with pytest.raises(Unidentified):
        user_of(bad)


def test_the_token_of_one_server_is_worth_nothing_at_another() -> None:
    with pytest.raises(Unidentified, match="not valid here"):
        user_of(issue_token("t" * 32, "alice"))


def test_a_token_is_good_until_it_expires() -> None:
    good = issue_token(SECRET, "alice", expires_at=2000)
    assert user_of(good, at=1999.9) == "alice"
    with pytest.raises(Unidentified, match="expired"):
        user_of(good, at=2000.0)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic YWxpY2U6eA==", f"Basic {issue_token(SECRET, 'alice')}"])
def test_a_request_without_a_token_is_told_what_to_send(header: str | None) -> None:
    with pytest.raises(Unidentified, match=r"Authorization: Bearer TOKEN.*mainspring tasks token USER"):
        verify_tokens(SECRET)({} if header is None else {"authorization": header})


def test_a_refusal_does_not_tell_what_was_sent() -> None:
    with pytest.raises(Unidentified) as caught:
        user_of("mst.secret-thing")
    assert "secret-thing" not in str(caught.value)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\0", "x" * 256, "\ud800"])
def test_a_name_that_is_none_gets_no_token(name: str) -> None:
    for make in (fix_user, lambda name: issue_token(SECRET, name)):
        with pytest.raises(InvalidRequest, match="1 to 255 printable characters"):
            make(name)


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "tasks.key"
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(read_secret(file, make=True))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_secret_is_made_where_files_have_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    file = tmp_path / "tasks.key"
    assert read_secret(file, make=True) == read_secret(file, make=True)
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_secret_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("1234\n")
    with pytest.raises(InvalidRequest, match=r"short holds a secret of 4 characters.*needs 32"):
        read_secret(tmp_path / "short")
    with pytest.raises(InvalidRequest, match="cannot be read from"):
        read_secret(tmp_path / "no" / "folder" / "key", make=True)
    with pytest.raises(InvalidRequest, match="there is no secret in"):
        read_secret(tmp_path / "typo")
    assert not (tmp_path / "typo").exists()
