"""Any mixture of writers, removals, restarts and an archive: all formats see the log there is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.broker import BrokerSettings
from tests.broker.colddesk import KEEPS_NOTHING, archive_all, segments
from tests.broker.fakearchive import FakeArchive
from tests.cross.format_clients import FORMAT_CLIENTS, Mamamia, QuietBlipMQ
from tests.cross.talk import TOPIC, Talk
from tests.house import House

LEASING = {"Mamamia", "BlipMQ"}

VALUES = st.binary(max_size=40) | st.integers(1, 5_000).map(bytes)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(sorted(FORMAT_CLIENTS)), VALUES),
        st.tuples(st.just("expire"), VALUES, st.integers(0, 3)),
        st.tuples(st.just("trim"), st.floats(0, 1)),
        st.tuples(st.sampled_from(["stop", "crash", "look", "archive"])),
        st.tuples(st.just("compact"), st.sets(st.integers(0, 40), max_size=30)),
    ),
    max_size=25,
)


class Log:
    """One topic as it should be, and the broker that has it."""

    def __init__(self) -> None:
        self.archive = FakeArchive(rows_max=3)
        self.house = House(
            settings=BrokerSettings(archive=KEEPS_NOTHING), open_archive=self.archive.open
        )
        self.values: list[bytes | None] = []
        """By offset; None is removed or expired."""
        self.looks = 0
        self.subscribed = 0
        """Offsets below this have been delivered to the subscription, or were gone."""
        self.house.broker.topics.create(TOPIC)
        Talk(QuietBlipMQ(), self.house).make()

    def write(self, name: str, value: bytes) -> None:
        """Write through a format."""
        told = Talk(FORMAT_CLIENTS[name](), self.house).write(value)
        assert [answer.words for answer in told] == ["done"]
        self.values.append(value)

    def expire(self, value: bytes, more: int) -> None:
        """Have a record that expires, and some around it that do not."""
        talk = Talk(Mamamia(), self.house)
        talk.append(value, expires_at_us=self.house.broker.time.time_us() + 1_000_000)
        for number in range(more):
            talk.append(b"%d" % number)
        self.house.pass_time(1.5, step=0.5)
        self.values += [None, *(b"%d" % number for number in range(more))]

    def trim(self, share: float) -> None:
        """Remove the beginning."""
        offset = int(share * len(self.values))
        self.house.broker.topics.trim(TOPIC, 0, offset)
        self.house.run()
        self.values[:offset] = [None] * offset

    def stop(self) -> None:
        """Stop cleanly and start from the snapshot."""
        self.house.stop()
        self.house = self.house.again()

    def crash(self) -> None:
        """Lose power and start again."""
        self.house = self.house.crash()

    def archive_all(self) -> None:
        """Have what there is in the archive, and not in the log."""
        archive_all(self.house, self.archive)
        assert len(segments(self.house)) == 1

    def compact(self, offsets: set[int]) -> None:
        """Have the archive, which has all there is, remove some; and nothing in memory."""
        self.archive_all()
        gone = {offset for offset in offsets if offset < len(self.values)}
        self.archive.remove((1, 0), gone)
        self.archive.vacuum()
        for offset in gone:
            self.values[offset] = None
        self.crash()
        self.house.run()

    def look(self) -> None:
        """Read everything through each format."""
        there = [value for value in self.values if value is not None]
        for name in sorted(FORMAT_CLIENTS.keys() - LEASING):
            assert self._read_on(name) == there, name
        self.looks += 1
        mamamia = Mamamia()
        mamamia.group = f"look {self.looks}"
        assert self._lease(Talk(mamamia, self.house)) == there
        news = [value for value in self.values[self.subscribed :] if value is not None]
        assert self._lease(Talk(QuietBlipMQ(), self.house)) == news
        self.subscribed = len(self.values)

    def _read_on(self, name: str) -> list[bytes]:
        """From the start on, going on where the format says, until it says nothing new."""
        talk = Talk(FORMAT_CLIENTS[name](), self.house)
        topic = self.house.broker.topics.find(TOPIC)
        assert topic is not None
        offset, got = topic.partitions[0].start_offset, list[bytes]()
        while True:
            told = talk.read_one(offset, most=3)
            got += told.values
            if told.next_offset is None or told.next_offset == offset:
                return got
            assert told.next_offset > offset
            offset = told.next_offset

    def _lease(self, talk: Talk) -> list[bytes]:
        got: list[bytes] = []
        while values := talk.read_one().values:
            got += values
        return got


@given(STEPS)
def test_all_formats_see_the_log_that_there_is(steps: list[tuple[object, ...]]) -> None:
    """Whoever wrote it, whatever is removed, and after any start."""
    log = Log()
    for name, *arguments in [*steps, ("look",), ("crash",), ("look",)]:
        getattr(log, {"archive": "archive_all"}.get(str(name), str(name)))(*arguments)
