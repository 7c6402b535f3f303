# Tests: tests/powerloss/test_main.py
"""``python -m benchmarks.powerloss --points 200``: power losses of a real broker.

A broker works on a file system in user space that records each write, truncation, link, rename,
removal and sync. Clients of all formats write, lease and settle. The broker is killed, and the log
is rolled up and deleted. With ``--bucket`` the archive is in a bucket, on a server that does not
lose its power. Then, for many points of the recording, the command builds a directory as
a power loss at that point could have left it, and starts a broker on it. Every change that a client
saw acknowledged before that point has to be there.

Exit codes: 0 every promise kept, or this machine cannot mount (a message says why); 1 a promise
broken (the recording is kept, and ``--recording DIR --point N --model M --seed S`` repeats a
point); 2 the command could not run.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.process import BrokerFailed, BrokerProcess, interrupt_on_signals
from brokerd.archive.storage.local import sync_strictly
from brokerd.errors import BrokerdError

from . import kernel
from .bucket import ADDRESS, Bucket
from .check import check
from .facts import Facts, TimedLedger
from .filesystem import FileSystemFailed, RecordedDirectory
from .recording import Kind, Operation, Position, read_recording
from .replay import Model, Replay
from .workload import MIB, ROUND_BYTES, SETTINGS, Plan, Workload

_TELL_EVERY = 20
_ROLL_UP_EVERY = 25
_NAMING = (Kind.CREATE, Kind.MKDIR, Kind.LINK, Kind.RENAME, Kind.UNLINK, Kind.RESIZE)


class Loss(NamedTuple):
    """A power loss to try."""

    point: int
    """The number of operations before it."""
    model: Model


def choose_losses(operations: Sequence[Operation], count: int, seed: int) -> list[Loss]:
    """Choose power losses and return them in order.

    A third is anywhere, a third before the end of a sync, and a third after a change of names or
    sizes.
    """
    chance = random.Random(f"{seed}:losses")
    syncs = [at for at, one in enumerate(operations) if one.kind is Kind.SYNC]
    names = [at + 1 for at, one in enumerate(operations) if one.kind in _NAMING]
    places: list[Sequence[int]] = [range(len(operations) + 1), syncs, names]
    models = list(Model)
    return sorted(
        Loss(chance.choice(places[number % 3] or places[0]), models[number // 3 % 3])
        for number in range(count)
    )


def record(directory: Path, seed: int, plan: Plan, bucket: Bucket | None) -> None:
    """Make a recording and its facts in a new directory, with the archive in a bucket if given.

    :raises BrokerFailed: the broker does not come back.
    :raises FileSystemFailed: the file system cannot be mounted.
    """
    directory.mkdir()
    facts = Facts(seed, has_rollups=plan.has_rollups, in_bucket=bucket is not None)
    with RecordedDirectory(directory) as disk:
        position = Position(disk.recording)
        ledger = TimedLedger(facts, position)
        data_dir = disk.path / "data"
        scratch = directory / "scratch"
        scratch.mkdir()
        (data_dir / "run").mkdir(parents=True)
        (data_dir / "run" / "rollup").symlink_to(scratch)
        for made in (disk.path, data_dir):
            sync_strictly(made)
        if bucket is not None:
            bucket.position = position
        settings = settings_of(bucket)
        with BrokerProcess(data_dir, directory / "broker.log", settings) as broker:
            Workload(broker, ledger, plan, _say).run()
        if bucket is not None:
            bucket.position = None
            bucket.save(directory / "bucket")
    shutil.rmtree(directory / "backing")
    facts.save(directory / "facts")


def settings_of(bucket: Bucket | None) -> tuple[str, ...]:
    """Return the settings of the broker."""
    return SETTINGS if bucket is None else (*SETTINGS, f"archive.uri={ADDRESS}")


def try_losses(
    directory: Path, losses: Sequence[Loss], seed: int, bucket: Bucket | None
) -> Iterator[tuple[Loss, list[str]]]:
    """Try power losses of a recording in order; yield the broken promises of each."""
    facts = Facts.load(directory / "facts")
    replay = Replay()
    operations = read_recording(directory / "recording")
    for number, loss in enumerate(losses, 1):
        while replay.position < loss.point:
            replay.apply(next(operations))
        left = replay.lose_power(loss.model, random.Random(f"{seed}:{loss.point}:{loss.model}"))
        root = directory / f"point-{loss.point}-{loss.model}"
        shutil.rmtree(root, ignore_errors=True)
        replay.write(left, root)
        is_rolled_up = facts.has_rollups and number % _ROLL_UP_EVERY == 0
        if bucket is not None:
            bucket.fill(bucket.objects_at(loss.point))
        findings = _try_loss(root, facts, loss.point, is_rolled_up, bucket)
        if not findings:
            shutil.rmtree(root)
        yield loss, findings


def _try_loss(
    root: Path, facts: Facts, point: int, is_rolled_up: bool, bucket: Bucket | None
) -> list[str]:
    log = root.with_name(root.name + ".log")
    archive = root / "data" / "archive" if bucket is None else ADDRESS
    with BrokerProcess(root / "data", log, settings_of(bucket)) as broker:
        try:
            findings = check(broker, facts, point, archive, is_rolled_up)
        except Exception as error:  # Any error means that the broker did not serve.
            findings = [f"{type(error).__name__}: {error}"]
    if not findings:
        log.unlink()
    return findings


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


def _run(options: argparse.Namespace, seed: int, directory: Path, bucket: Bucket | None) -> int:
    """Make a recording if none is given, try power losses, print findings; return the exit code."""
    broken = 0
    if options.recording is None:
        archive = None if bucket is None else ADDRESS
        plan = Plan(
            options.rounds,
            round_bytes=int(options.round_mib * MIB),
            has_rollups=not options.no_rollups,
            rollup_kills=options.rollup_kills,
            archive=archive,
        )
        record(directory, seed, plan, bucket)
        findings = Facts.load(directory / "facts").findings
        broken += bool(findings)
        for finding in findings:
            print(f"BROKEN while recording: {finding}", flush=True)
    elif bucket is not None:
        bucket.load(directory / "bucket")
    if options.point is not None:
        losses = [Loss(options.point, model) for model in options.model or Model]
    else:
        operations = [one._replace(data=b"") for one in read_recording(directory / "recording")]
        losses = choose_losses(operations, options.points, seed)
        losses = [loss for loss in losses if loss.model in (options.model or Model)]
    began = time.monotonic()
    for number, (loss, findings) in enumerate(try_losses(directory, losses, seed, bucket), 1):
        broken += bool(findings)
        for finding in findings:
            print(f"BROKEN at point {loss.point}, {loss.model}: {finding}", flush=True)
        if findings:
            _say(
                f"again: python -m benchmarks.powerloss --recording {directory} --seed {seed} "
                f"--point {loss.point} --model {loss.model}"
            )
        if number % _TELL_EVERY == 0:
            _say(f"{number} of {len(losses)} power losses, {time.monotonic() - began:.0f} s")
    print(f"{len(losses)} power losses in {time.monotonic() - began:.0f} s")
    print(f"promises broken in {broken} cases" if broken else "every promise kept")
    return 1 if broken else 0


def _has_bucket(options: argparse.Namespace) -> bool:
    """Return whether the archive of the recording is in a bucket."""
    if options.recording is None:
        return bool(options.bucket)
    return Facts.load(options.recording / "facts").in_bucket


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.powerloss", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--points", type=int, default=200, help="default: 200")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--rounds", type=int, default=3, help="of the recording; default: 3")
    parser.add_argument(
        "--round-mib",
        type=float,
        default=ROUND_BYTES / MIB,
        help=f"records of a round, the other work in proportion; default: {ROUND_BYTES / MIB:g}",
    )
    parser.add_argument(
        "--rollup-kills",
        type=int,
        default=Plan.rollup_kills,
        help=f"in a round; default: {Plan.rollup_kills}",
    )
    parser.add_argument("--no-rollups", action="store_true", help="record without the archive")
    parser.add_argument("--bucket", action="store_true", help="record with an archive in a bucket")
    parser.add_argument("--recording", type=Path, help="of an earlier run, in place of a new one")
    parser.add_argument("--point", type=int, help="try this point only")
    parser.add_argument("--model", type=Model, action="append", help=", ".join(Model))
    options = parser.parse_args(arguments)
    if options.recording is None and (reason := kernel.missing()):
        print(f"powerloss: skipped: {reason}")
        return 0
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    interrupt_on_signals()
    parent = Path(tempfile.mkdtemp(prefix="brokerd-powerloss-"))
    directory = options.recording or parent / "run"
    print(f"powerloss: seed {seed}, data in {directory}", flush=True)
    code = 2
    try:
        with ExitStack() as stack:
            bucket = stack.enter_context(Bucket()) if _has_bucket(options) else None
            code = _run(options, seed, directory, bucket)
    except KeyboardInterrupt:
        print("powerloss: interrupted", file=sys.stderr)
        code = 130
    except (BrokerFailed, BrokerdError, FileSystemFailed, OSError) as error:
        print(f"powerloss: {error}\npowerloss: the data is kept in {directory}", file=sys.stderr)
    if code in (0, 130):
        shutil.rmtree(parent, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
