# Tests: tests/simulator/test_crashpoints.py
"""Backups of a running log at each moment, and restores of them.

The workload is that of `simulator.crashpoints.log`. `Backups` keeps the disk and the required
contents of the log at some moments. A check makes a backup of an earlier moment, and on top of it
one of the present. It restores one of the two to an empty disk. The log must then have what it had
at that moment, and go on from there.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from brokerd.archive.contract.log_id import FILE_NAME, encode_log_id
from brokerd.archive.storage.local import LocalStore
from brokerd.backup.create import create_backup
from brokerd.backup.points import END
from brokerd.backup.repository import Repository
from brokerd.backup.restore import Identity, choose_backup, restore_files
from brokerd.wal.disk import write_atomically
from simulator.crashpoints.log import LogScript, check_log
from simulator.crashpoints.points import Point
from simulator.machine.bare import DATA_DIR, STATE_DIR
from simulator.machine.crash import CrashModel
from simulator.machine.disk import SimDisk
from simulator.machine.tree_disk import TreeDisk

BACKUPS = Path("/backups")
KEPT_EVERY = 40
"""The distance in points between the moments of earlier backups."""
LOG_ID = "b" * 32
NOW_US = 1


class Backups:
    """Checks backups of a run. It sees every point, so that a check does not depend on others."""

    def __init__(self, script: LogScript) -> None:
        self._script = script
        self._kept: list[LogScript] = [script.copy(script.disk.fork())]

    def note(self, number: int) -> None:
        """Keep the run as it is at a point, if it is one of those with an earlier backup."""
        if number % KEPT_EVERY == 0:
            self._kept.append(self._script.copy(self._script.disk.fork()))

    def check(self, point: Point, model: CrashModel) -> list[str]:
        """Return the faults of a restored log."""
        chance = point.chance(model)
        moments = [chance.choice(self._kept), self._script]
        try:
            repository = Repository(LocalStore(BACKUPS, TreeDisk(str(BACKUPS))))
            for moment in moments:
                back_up(moment.disk.fork(), repository)
            number = chance.randint(1, len(moments))
            disk = SimDisk()
            choice = choose_backup(repository, END, number)
            restore_files(disk, repository, DATA_DIR, choice, Identity(""))
            run = moments[number - 1].copy(disk)
            if chance.random() < 0.5:
                disk.crash(CrashModel.DROP)
            else:
                run.live_on(model, chance)
        except Exception:
            return [traceback.format_exc()]  # any error: a log of any moment has a backup
        return check_log(disk, point, model, run)


def back_up(disk: SimDisk, repository: Repository) -> None:
    """Make a backup of a log that has an id."""
    write_atomically(disk, STATE_DIR, FILE_NAME, [encode_log_id(LOG_ID)])
    create_backup(disk, DATA_DIR, repository, NOW_US)
