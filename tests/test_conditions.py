"""Each condition, provoked: health, metric, status, page and log show it, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from twisted.logger import LogEvent, LogLevel

from brokerd.archive.contract.view import ForeignArchive
from brokerd.codecs.mamamia import Acquire, Produce, Produced
from brokerd.server.sections import Archive, Broker, Config, Wal
from brokerd.server.tls import Credentials, TlsFiles
from brokerd.server.watch import certificate_conditions
from simulator.machine.bare import WAL_DIR
from simulator.machine.disk import SimDisk
from tests.broker.fakearchive import FakeArchive
from tests.certificates import DAY, Authority
from tests.watched import NODE, Watched, began, ended, logged

MIB = 1 << 20
CONFIG = Config(
    wal=Wal(segment_bytes=MIB, free_bytes=0),
    archive=Archive(keep_wal_bytes=0),
    broker=Broker(tail_cache_bytes=0, read_cache_bytes=0),
)


class Provoked(NamedTuple):
    """A broker in a condition, and the way out of it."""

    watched: Watched
    end: Callable[[], None] | None
    """None: only a restart ends it."""


def disk_full(directory: Path) -> Provoked:
    """Clients write until one of them is refused."""
    disk = SimDisk(capacity=4 * MIB)
    watched = Watched(directory, CONFIG, disk)
    client = watched.connect()
    for _ in range(60):
        client.send(Produce("t", bytes(100_000)))
        watched.run()
    refused = [answer for answer in client.answers() if "disk" in str(answer)]
    assert refused, "no client was refused"
    watched.pass_time(6)

    def end() -> None:
        disk.capacity = 64 * MIB
        watched.pass_time(12)
        client.send(Produce("t", b"x"))
        watched.run()
        assert isinstance(client.answers()[-1], Produced)

    return Provoked(watched, end)


def disk_nearly_full(directory: Path) -> Provoked:
    """Another program takes the space."""
    disk = SimDisk(capacity=4 * MIB)
    watched = Watched(directory, CONFIG, disk)
    watched.pass_time(6)

    def end() -> None:
        disk.capacity = 64 * MIB
        watched.pass_time(6)

    return Provoked(watched, end)


def disk_stalled(directory: Path) -> Provoked:
    """A sync does not return."""
    watched = Watched(directory, CONFIG)
    client = watched.connect()
    client.send(Produce("t", b"x"))
    watched.turn()
    for _ in range(44):
        watched.clock.advance(0.25)
    assert client.answers() == []

    def end() -> None:
        watched.pass_time(1)
        assert client.answers()

    return Provoked(watched, end)


def loop_stalled(directory: Path) -> Provoked:
    """Work of the event loop takes five seconds."""
    watched = Watched(directory, CONFIG)
    watched.clock.advance(5)
    watched.pass_time(1)
    return Provoked(watched, lambda: watched.pass_time(61))


def log_damaged(directory: Path) -> Provoked:
    """A byte of the journal rots, and a client reads it."""
    watched = Watched(directory, CONFIG)
    client = watched.connect()
    client.send(Produce("t", b"x" * 1000))
    watched.run()
    (name,) = [path for path in watched.disk.paths(WAL_DIR) if path.endswith(".wal")]
    at = watched.disk.read(name).index(b"x" * 1000)
    watched.disk.flip(name, at, 1)
    client.send(Acquire("t", "g", "c"))
    watched.pass_time(1)
    return Provoked(watched, None)


def archived(directory: Path) -> tuple[Watched, FakeArchive]:
    """Return a broker whose oldest record is only in the archive."""
    archive = FakeArchive()
    watched = Watched(directory, CONFIG, open_archive=archive.open)
    client = watched.connect()
    for number in range(12):
        client.send(Produce("t", bytes([number]) * 300_000))
        watched.run()
    watched.wal.seal()
    watched.run()
    archive.roll_up(watched)  # type: ignore[arg-type]  # it has the log and the disk
    for _ in range(4):
        watched.broker.snapshotter.wanted = True
        client.send(Produce("t", b"x"))
        watched.pass_time(61, step=5)
    (topic,) = watched.broker._state.by_id.values()
    assert topic.partitions[0].archived_end > 0, "nothing was deleted"
    return watched, archive


def archive_unreadable(directory: Path) -> Provoked:
    """The files of an archive that opens well cannot be read."""
    watched, archive = archived(directory)
    archive.read_failure = OSError(13, "Permission denied")
    client = watched.connect()
    client.send(Acquire("t", "g", "c"))
    watched.pass_time(2)
    assert watched.broker.archive_admin.status()["usable"] is False

    def end() -> None:
        archive.read_failure = None
        client.send(Acquire("t", "g", "c"))
        watched.pass_time(62)
        assert watched.broker.archive_admin.status()["usable"] is True

    return Provoked(watched, end)


def archive_unusable(directory: Path) -> Provoked:
    """The archive of another log is there before this log has one."""
    archive = FakeArchive()
    archive.failure = ForeignArchive("it is the archive of another log")
    watched = Watched(directory, CONFIG, open_archive=archive.open)
    watched.pass_time(6)

    def end() -> None:
        archive.failure = None
        watched.pass_time(12)

    return Provoked(watched, end)


def archive_behind(directory: Path) -> Provoked:
    """The rollup does not run for a day."""
    watched, archive = archived(directory)
    client = watched.connect()
    client.send(Produce("t", b"x"))
    watched.run()
    watched.wal.seal()
    watched.pass_time(90_000, step=5_000)
    watched.pass_time(62)

    def end() -> None:
        archive.roll_up(watched)  # type: ignore[arg-type]  # it has the log and the disk
        watched.pass_time(12)

    return Provoked(watched, end)


def clock_ahead(directory: Path) -> Provoked:
    """The wall clock is a day ahead, and set right."""
    watched = Watched(directory, CONFIG)
    watched.host.wall_ahead_seconds = 86_400
    watched.pass_time(2)

    def end() -> None:
        watched.host.wall_ahead_seconds = 0
        watched.broker.clock_admin.set_to_wall()
        watched.pass_time(2)

    return Provoked(watched, end)


class Endpoint(NamedTuple):
    credentials: Credentials


def certificate_expires(directory: Path) -> Provoked:
    """The certificate has ten days left, and is renewed."""
    watched = Watched(directory, CONFIG)
    authority = Authority(directory)
    issued = authority.issue("broker", valid=(-DAY, 10 * DAY))
    files = TlsFiles(str(issued.certificate), str(issued.key))
    credentials = Credentials(files, time.time)
    watched.health.conditions.add(certificate_conditions([Endpoint(credentials)]))
    watched.pass_time(2)

    def end() -> None:
        renewed = authority.issue("broker", valid=(-DAY, 90 * DAY), file="renewed")
        issued.certificate.write_bytes(renewed.certificate.read_bytes())
        issued.key.write_bytes(renewed.key.read_bytes())
        credentials.refresh()
        watched.pass_time(2)

    return Provoked(watched, end)


def tls_files_unusable(directory: Path) -> Provoked:
    """A renewal wrote half of a file."""
    watched = Watched(directory, CONFIG)
    issued = Authority(directory).issue("broker")
    content = issued.certificate.read_bytes()
    credentials = Credentials(TlsFiles(str(issued.certificate), str(issued.key)), lambda: 0.0)
    watched.health.conditions.add(certificate_conditions([Endpoint(credentials)]))
    issued.certificate.write_bytes(content[:100])
    credentials.refresh()
    watched.pass_time(2)

    def end() -> None:
        issued.certificate.write_bytes(content)
        credentials.refresh()
        watched.pass_time(2)

    return Provoked(watched, end)


ALL: dict[str, Callable[[Path], Provoked]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        disk_full,
        disk_nearly_full,
        disk_stalled,
        loop_stalled,
        log_damaged,
        archive_unreadable,
        archive_unusable,
        archive_behind,
        clock_ahead,
        certificate_expires,
        tls_files_unusable,
    )
}


@pytest.mark.parametrize("name", ALL)
def test_a_condition_is_seen_everywhere_until_it_ends(name: str, tmp_path: Path) -> None:
    """Health, metrics, status and log agree; a stalled disk alone takes the broker out."""
    events: list[LogEvent]
    with logged() as events:
        watched, end = ALL[name](tmp_path)
        seen = watched.seen()
        assert name in seen.health
        assert seen.health == seen.metrics == seen.status
        assert seen.ready == (503 if name == "disk-stalled" else 200)
        assert began(events).count(name) == 1
        assert name not in ended(events)
        (level,) = [one["log_level"] for one in events if one.get("condition") == name]
        assert level == (LogLevel.error if seen.ready == 503 else LogLevel.warn)
        if end is None:
            return
        end()
        seen = watched.seen()
        assert name not in (*seen.health, *seen.metrics, *seen.status)
        assert seen.ready == 200
        assert ended(events).count(name) == 1


@pytest.mark.skipif(NODE is None, reason="there is no Node.js to run the page")
@pytest.mark.parametrize("name", ["disk-full", "disk-stalled"])
def test_the_page_lists_conditions(name: str, tmp_path: Path) -> None:
    """With their reasons, until they end; it says when the broker is not ready."""
    watched, end = ALL[name](tmp_path)
    assert end is not None
    phase, items = watched.page()
    assert phase == ("not ready" if name == "disk-stalled" else "ready, degraded")
    assert [item.partition(": ")[0] for item in items] == [name]
    assert items[0].partition(": ")[2] == watched.health.conditions.reasons[name]
    end()
    assert watched.page() == ("ready", [])


def test_every_condition_has_a_gauge_from_the_start(tmp_path: Path) -> None:
    """An alert needs its zero; the broker at rest is in no condition."""
    watched = Watched(tmp_path, CONFIG)
    watched.pass_time(10)
    assert watched.seen() == (200, [], [], [])
    metrics = watched.get("/metrics")[1]
    for name in set(ALL) - {"certificate-expires", "tls-files-unusable"}:
        assert f'brokerd_condition{{condition="{name}"}} 0.0' in metrics


def test_conditions_are_known_when_the_broker_becomes_ready(tmp_path: Path) -> None:
    """No probe sees a degraded broker as healthy for a second."""
    watched, _ = log_damaged(tmp_path)
    watched.disk.kill()
    again = Watched(tmp_path, CONFIG, watched.disk)
    assert again.seen().health == ["log-damaged"]


def test_a_full_disk_is_no_nearly_full_disk(tmp_path: Path) -> None:
    """One state of the disk is one condition."""
    watched, _ = disk_full(tmp_path)
    assert watched.seen().health == ["disk-full"]
    assert "brokerd_wal_starved 1.0" in watched.get("/metrics")[1]


def test_a_nearly_full_disk_does_not_come_and_go(tmp_path: Path) -> None:
    """It is over when there is room for one more segment than at its beginning."""
    disk = SimDisk(capacity=64 * MIB)
    watched = Watched(tmp_path, CONFIG, disk)
    watched.pass_time(6)
    used = disk.used_bytes
    with logged() as events:
        for segments in (3, 4.5, 3, 4.5, 5.5):
            disk.capacity = int(used + segments * MIB)
            watched.pass_time(6)
    assert (began(events), ended(events)) == (["disk-nearly-full"], ["disk-nearly-full"])


def test_a_shortage_that_is_over_leaves_no_nearly_full_disk(tmp_path: Path) -> None:
    """The free space that was measured during the shortage does not count after it."""
    with logged() as events:
        provoked = disk_full(tmp_path)
        provoked.end()  # type: ignore[misc]  # it has an end
    before = began(events)
    assert before.count("disk-full") == 1
    assert "disk-nearly-full" not in before[before.index("disk-full") :]
    assert provoked.watched.seen().health == []
