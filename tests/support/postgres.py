"""A real PostgreSQL for tests: a cluster of its own in a temporary folder, reached by a socket, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg

from pinwarden.system.database import Database, DatabaseLimits
from pinwarden.system.postgresql import Postgres
from pinwarden.system.processes import find_child_pids
from tests.support.needs import missing

_NUMBERS = count(1)


def find_programs() -> Path:
    """Return the folder with PostgreSQL's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if found:
        return found[-1].parent
    on_path = shutil.which("postgres")
    if on_path is None:
        missing("postgres", "sudo apt-get install postgresql")
    return Path(on_path).resolve().parent


def _account() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {each.pw_name for each in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


class Cluster:
    """A PostgreSQL server that can be stopped and started."""

    def __init__(self, folder: Path, programs: Path, account: str | None) -> None:
        self.folder = folder
        self._programs = programs
        self._account = account

    def _run(self, *command: str) -> None:
        subprocess.run(
            [str(self._programs / command[0]), *command[1:]],
            user=self._account,
            cwd="/",
            check=True,
            timeout=240,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        )

    def make(self) -> None:
        data = str(self.folder / "data")
        self._run("initdb", "--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "-D", data)
        options = (
            f"listen_addresses = ''\nunix_socket_directories = '{self.folder}'\nfsync = off\nmax_connections = 200\n"
        )
        with (self.folder / "data" / "postgresql.conf").open("a") as settings:
            settings.write(options)

    def start(self) -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-l", str(self.folder / "log"), "-w", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Every process of the server stopped where it is: it takes connections and never says a word."""
        first = int((self.folder / "data" / "postmaster.pid").read_text().split("\n", 1)[0])
        numbers = [first, *find_child_pids(first)]
        for number in numbers:
            os.kill(number, signal.SIGSTOP)
        try:
            yield
        finally:
            for number in numbers:
                os.kill(number, signal.SIGCONT)

    def new_database(self) -> str:
        """The address of a database with nothing in it: a schema of its own, which is made in no time."""
        name = f"trial{next(_NUMBERS)}"
        address = f"postgresql://postgres@/postgres?host={self.folder}"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return f"{address}&options=-csearch_path%3D{name}"

    def other_encoding(self, encoding: str) -> str:
        """The address of a database that keeps texts in this encoding."""
        name = f"trial{next(_NUMBERS)}"
        made = f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        with psycopg.connect(f"postgresql://postgres@/postgres?host={self.folder}", autocommit=True) as connection:
            connection.execute(made.encode())
        return f"postgresql://postgres@/{name}?host={self.folder}"


@contextmanager
def postgres() -> Iterator[Cluster]:
    """A running cluster."""
    programs, account = find_programs(), _account()
    # A socket's path has to be short, so not below pytest's folder.
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp", ignore_cleanup_errors=True) as folder:
        if account is not None:
            shutil.chown(folder, account)
        Path(folder).chmod(0o711)  # the root of a user namespace may connect too
        cluster = Cluster(Path(folder), programs, account)
        cluster.make()
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()


@contextmanager
def hurried(database: Database, limits: DatabaseLimits) -> Iterator[None]:
    """Other limits until the block ends, for connections that are open and for new ones.

    While a server works, even a second may be too little for it on a busy machine.
    """
    assert isinstance(database, Postgres)
    before = database._limits
    try:
        _limit(database, limits)
        yield
    finally:
        _limit(database, before)


def _limit(database: Postgres, limits: DatabaseLimits) -> None:
    database._limits = limits
    for connection in database._connections:
        connection.response_seconds = limits.response_seconds
