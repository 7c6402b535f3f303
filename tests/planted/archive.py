# Tests: tests/simulator/test_planted.py
"""Bugs of the rollup and the archive: ``brokerd/archive``."""

from __future__ import annotations

from .bug import Bug, bug

BUGS: tuple[Bug, ...] = (
    # -- topics and segments --------------------------------------------------------------------
    bug(
        "another-archive-accepted",
        "an archive without the deleted segments is accepted in place of the one that has them",
        "archive/contract/pairing.py",
        ("    if table.archive_id != pin.archive_id:", "    if not table.archive_id:"),
        tests="archive/test_pairing.py broker/test_archive_pin.py",
    ),
    bug(
        "older-log-accepted",
        "a log that is older than its archive is rolled up",
        "archive/contract/pairing.py",
        ("    if table.lsn > end_lsn:", "    if end_lsn < 0:"),
        tests="archive/test_pairing.py",
    ),
    # -- the rollup: tests/archive finds these ---------------------------------------------------
    bug(
        "compact-beside-unreadable",
        "a tombstone goes while a file that may hold its key cannot be opened",
        "archive/maintain/clean.py",
        ("self._old_us())\n            - self._blocked,", "self._old_us()),"),
        tests="archive/test_clean.py::test_a_deleted_key_does_not_return_with_a_file",
    ),
    bug(
        "unsynced-bucket-directory",
        "a file is committed whose directory has an entry that was never synced",
        "archive/storage/local.py",
        ("        while directory != self._root:\n", "        while directory == self._root:\n"),
        tests="archive/test_writer.py",
    ),
    bug(
        "unsynced-file-of-records",
        "a file of the archive is committed before its bytes are synced",
        "archive/storage/local.py",
        ("        with self._named():\n            self._file.sync()\n", ""),
        tests="archive/test_writer.py archive/test_store.py",
    ),
    bug(
        "unsynced-commit",
        "a commit of the archive gets its name before its bytes are synced",
        "archive/storage/local.py",
        (
            "                self._write(temporary, data, True)\n",
            "                self._write(temporary, data, False)\n",
        ),
        tests="archive/test_store.py archive/test_log_files.py",
    ),
    bug(
        "maintain-after-a-conflict",
        "a job that another one overtook goes on with its own bounds",
        "archive/job.py",
        (
            "        except TableConflict:\n            raise\n        except BrokerdError",
            "        except BrokerdError",
        ),
        tests="archive/test_job.py::test_a_job_of_a_copy_stops_when_another_one_is_faster",
    ),
    bug(
        "paired-once",
        "log and archive are not compared again before records are removed",
        "archive/job.py",
        (
            "            check_pairing(job.data_dir, job.root, run.bounds, run.tables)\n"
            "            report.steps.append(step(run))",
            "            report.steps.append(step(run))",
        ),
        tests="archive/test_job.py::test_a_job_of_a_copy_stops_when_the_archive_goes_ahead",
    ),
    bug(
        "error-of-a-moment-is-final",
        "a task is not tried again after an error of a disk or a server",
        "archive/cluster/attempts.py",
        ("and _attempts_left() > 0:", "and _attempts_left() > 3:"),
        tests="archive/test_runner.py",
    ),
    bug(
        "commit-over-another",
        "a commit takes the version that another process has just committed",
        "archive/delta/table.py",
        (
            'if self._store.put_if_absent(f"{COMMITS}/{commit_name(newest.version + 1)}", data):\n',
            'if not self._store.put(f"{COMMITS}/{commit_name(newest.version + 1)}", data):\n',
        ),
        tests="archive/test_table.py",
    ),
    bug(
        "lot-committed-twice",
        "a lot is added although another process has added it",
        "archive/delta/table.py",
        ("            if was != now:\n", "            if was > now:\n"),
        tests="archive/test_table.py archive/test_job.py",
    ),
    bug(
        "replace-what-is-gone",
        "a file is rewritten that another process has removed: its records are there twice",
        "archive/delta/table.py",
        ("        if path not in live:\n", "        if path in added:\n"),
        tests="archive/test_table.py",
    ),
    bug(
        "unproved-checkpoint",
        "a checkpoint that is incomplete or damaged is read",
        "archive/delta/log_reader.py",
        (
            "    return checkpoint if found == encode_sum(version, checkpoint) else None",
            "    return checkpoint if found else None",
        ),
        tests="archive/test_checkpoints.py archive/test_log_files.py",
    ),
    bug(
        "unsynced-checkpoint",
        "commits are deleted for a checkpoint that is not synced",
        "archive/delta/checkpoints.py",
        (
            "    for made in (path, _HINT):\n        store.sync_file(made)\n"
            "    store.sync_directory(COMMITS)\n",
            "",
        ),
        tests="archive/test_checkpoints.py",
    ),
    bug(
        "commit-not-verified",
        "a damaged commit counts",
        "archive/delta/log_files.py",
        (
            '(signature and signature != xxh3_64_hexdigest(data.partition(b"\\n")[2]))',
            "(signature and not data)",
        ),
        tests="archive/test_log_files.py",
    ),
    bug(
        "vacuum-for-the-newest",
        "vacuum deletes files that a reader of an older version needs",
        "archive/delta/vacuum.py",
        (
            "    kept = {*live, *_removed_since(store, log, cutoff_ms)}",
            "    kept = set(live)",
        ),
        tests="archive/test_vacuum.py",
    ),
    bug(
        "log-cut-by-the-newest",
        "commits are deleted for a checkpoint that is younger than the versions to keep",
        "archive/delta/checkpoints.py",
        (
            "        if made_ms < cutoff_ms and read_checkpoint",
            "        if made_ms and read_checkpoint",
        ),
        tests="archive/test_vacuum.py archive/test_checkpoints.py",
    ),
    bug(
        "conflict-with-a-lock",
        "two jobs of different data directories work on one archive at a time",
        "archive/job.py",
        ("        with archive_lock(job.root):\n", "        if archive_lock(job.root):\n"),
        tests="archive/test_job.py::test_a_copy_and_its_original_do_not_use_the_archive_at_once",
    ),
)
