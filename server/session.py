"""What every way in works on: the project as configured now, its ledger, and who is asking."""

from __future__ import annotations

import getpass
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bitgate.gates.roles import Actor
from bitgate.gates.rows import Role
from bitgate.tools.config.project import Project

if TYPE_CHECKING:
    from bitgate.store.errors import StoreError
    from bitgate.store.store import Store


@dataclass
class Workplace:
    """`start` is where the project is looked for."""

    start: Path
    _project: Project | None = None
    _store: Store | None = None
    _opened: tuple[Path, tuple[int, int] | None] | None = None
    """The ledger as it was opened: its path, device and inode."""

    @property
    def project(self) -> Project:
        """The project as its files say now; a person may edit them while a server runs.

        Raises:
            ConfigError: there is no usable configuration.
        """
        self._project = self._project.refreshed() if self._project else Project.find(self.start)
        return self._project

    @property
    def store(self) -> Store:
        """The ledger, opened at first use: servers start fast. Runs that a dead server left are marked lost then.

        Raises:
            Damaged: its file was removed or replaced meanwhile. Runs would go into another ledger than is read here.
        """
        if self._store is None:
            from bitgate.store.store import Store
            from bitgate.tools.runs.control import mark_lost_runs

            project = self.project
            self._store = Store.open(project.ledger)
            mark_lost_runs(project)
            self._opened = project.ledger, _file_of(project.ledger)
        elif self._opened is not None and _file_of(self._opened[0]) != self._opened[1]:
            raise _replaced(self._opened[0])
        return self._store

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def _file_of(path: Path) -> tuple[int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino


def _replaced(path: Path) -> StoreError:
    from bitgate.store.errors import Damaged

    return Damaged(
        "ledger_replaced",
        f"{path}: the ledger was removed or replaced while it was in use; put the file back as it was, or end this "
        "server, run `bitgate verify`, and start it again",
    )


@dataclass(frozen=True)
class Session:
    """A workplace, and who works there: role and actor are written beside everything that is appended."""

    workplace: Workplace
    actor: str
    role: Role = "consistency"

    @property
    def project(self) -> Project:
        return self.workplace.project

    @property
    def store(self) -> Store:
        return self.workplace.store

    @property
    def who(self) -> Actor:
        """As the gates know who acts."""
        return Actor(self.role, self.actor)

    def acting_as(self, actor: str, role: Role) -> Session:
        return replace(self, actor=actor, role=role)


def user_name() -> str:
    """The name of the user whose process this is, for the actor beside what is written."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"
