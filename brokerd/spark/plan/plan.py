# Tests: tests/spark/test_plan.py
"""What a query reads, and in which parts: files of the archive, and pieces of the journal.

No record is read here. No pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.journal.pending import damaged_places
from brokerd.errors import BrokerdError
from brokerd.spark.location import Location
from brokerd.spark.plan.log_snapshot import TRIES, LogSnapshot, end_lsn_of, look, too_quick
from brokerd.spark.plan.parts import Part, parts_of
from brokerd.spark.plan.predicate import LEAST, MOST, Names, Narrowing, Predicate, Within
from brokerd.spark.plan.topic_state import TopicState
from brokerd.spark.read.archive_files import FilePart, files_wanted, parts_of_files

COLUMNS = tuple(column.name for column in RECORDS.file_columns())
"""All that a row has."""
PARTITION_BYTES = 64 << 20
PARTS_MAX = 64
"""So many files are open at once, at most."""


class ShortLog(BrokerdError):
    """The log does not go as far as it did once."""


class Request(NamedTuple):
    """What somebody wants to read; goes to other processes."""

    topics: tuple[str, ...] | None = None
    """Names, or patterns with ``*``; None: all but the broker's own."""
    columns: tuple[str, ...] = COLUMNS
    """Of `COLUMNS`, in the order that the rows are to have."""
    from_time_us: int | None = None
    to_time_us: int | None = None
    """Append times, by broker time; exclusive."""
    from_offset: int | None = None
    to_offset: int | None = None
    """In every partition; exclusive."""
    from_offsets: Mapping[str, Mapping[int, int]] = {}
    to_offsets: Mapping[str, Mapping[int, int]] = {}
    """By name of the topic and partition; what is not named is read whole."""
    first_lsn: int = 0
    end_lsn: int | None = None
    """Of the batches, exclusive; None: all there is."""
    partition_bytes: int = PARTITION_BYTES
    """About how much one split reads."""
    tail: bool = True
    """Whether the file is read that is written to right now."""
    unknown_topics: bool = False
    """Whether a name that no topic has is no error, but has no records yet."""


class Count(NamedTuple):
    """How much of something a query reads, and how much there is of it."""

    read: int = 0
    all: int = 0


class Split(NamedTuple):
    """What one task reads; goes to other processes, and is small."""

    bytes: int
    """About how much."""
    records: int
    """About how many rows, at most."""
    place: Location
    log_id: str
    columns: tuple[str, ...]
    sieve: Predicate
    files: tuple[FilePart, ...] = ()
    """Of the archive."""
    parts: tuple[Part, ...] = ()
    """Of the journal."""
    names: Mapping[int, str] = {}
    """Of topics in the journal, by id."""
    damage: Mapping[str, Sequence[tuple[int, int]]] = {}
    """What is known to be damaged in the files of the journal."""


class Plan(NamedTuple):
    """What a query reads."""

    log_id: str
    splits: tuple[Split, ...]
    end_lsn: int
    """The rows are those below it: the end of the journal that was seen to be durable, or the
    request's, if that is below."""
    records: int
    """How many rows at most."""
    files: Count
    """Of the archive."""
    file_bytes: Count
    segments: Count
    """Files of the journal."""
    segment_bytes: Count
    """Of batches of records, in them."""


class End(NamedTuple):
    """How far a log has got."""

    log_id: str
    lsn: int


def plan(place: Location, request: Request, now_us: int) -> Plan:
    """Divide a query into splits.

    :param now_us: what is expired by then is left out.
    :raises BrokerdError: what is there cannot be read, or is not what it should be.
    """
    for _ in range(TRIES):
        seen = look(place, request.tail)
        try:
            return _Planning(place, request, seen, now_us).plan()
        except FileNotFoundError:
            continue
    raise too_quick(place)


class _Planning:
    """Divides what was seen."""

    def __init__(self, place: Location, request: Request, seen: LogSnapshot, now_us: int) -> None:
        self._place = place
        self._request = request
        self._seen = seen
        self._end_lsn = seen.end_lsn
        if request.end_lsn is not None:
            if request.end_lsn > seen.end_lsn:
                raise ShortLog(
                    f"the log ends at LSN {seen.end_lsn}, and it was asked for up to LSN "
                    f"{request.end_lsn}: an older copy of it was brought back, or its last file "
                    "is left out"
                )
            self._end_lsn = request.end_lsn
        if not seen.has_bounds and (request.from_offsets or request.to_offsets):
            raise BrokerdError(
                f"{place.archive} does not tell which topics there are, as it lacks its bounds: "
                "let brokerd-rollup run, which writes them, or give no offsets by topic"
            )
        unknown = request._replace(unknown_topics=request.unknown_topics or not seen.has_bounds)
        self._sieve = sieve_of(unknown, seen.known, now_us)

    def plan(self) -> Plan:
        """Raises FileNotFoundError when a file of the journal went since it was seen."""
        archived, files, file_bytes = self._files()
        parts, segments, segment_bytes = self._parts()
        splits = [*self._archive_splits(archived), *self._journal_splits(parts)]
        return Plan(
            self._seen.log_id,
            tuple(splits),
            self._end_lsn,
            sum(split.records for split in splits),
            files,
            file_bytes,
            segments,
            segment_bytes,
        )

    # -- Archive ---------------------------------------------------------------------------------

    def _files(self) -> tuple[list[FilePart], Count, Count]:
        archive = self._seen.archive
        if archive is None or self._request.first_lsn >= archive.records_lsn:
            every = () if archive is None else archive.files["size"].to_pylist()
            return [], Count(0, len(every)), Count(0, sum(every))
        chosen = files_wanted(archive.files, self._sieve)
        return (
            parts_of_files(chosen, self._request.partition_bytes),
            Count(len(chosen), len(archive.files)),
            Count(*(sum(one["size"].to_pylist()) for one in (chosen, archive.files))),
        )

    def _archive_splits(self, parts: Sequence[FilePart]) -> Iterator[Split]:
        narrowing = Narrowing(self._sieve)
        for some in packed(parts, self._request.partition_bytes):
            low = min(part.topic_ids[0] for part in some)
            high = max(part.topic_ids[1] for part in some)
            yield self._split(some, narrowing.between(low, high))._replace(files=tuple(some))

    def _split(self, parts: Sequence[FilePart | Part], sieve: Predicate) -> Split:
        return Split(
            sum(part.bytes for part in parts),
            sum(part.records for part in parts),
            self._place,
            self._seen.log_id,
            self._request.columns,
            sieve,
        )

    # -- Journal ---------------------------------------------------------------------------------

    def _parts(self) -> tuple[list[Part], Count, Count]:
        journal = self._seen.journal
        found: list[Part] = []
        segments = segment_bytes = 0
        files = [file for file in journal.files if file.first_lsn >= self._seen.archived_lsn]
        for file in files:
            if not self._sieve.lsns.has_some(file.first_lsn, file.end_lsn - 1):
                continue
            walked = journal.walked.get(file.path)
            parts = parts_of(file, walked, self._sieve, self._request.partition_bytes)
            segments += bool(parts)
            segment_bytes += sum(part.bytes for part in parts)
            found += parts
        total = sum(file.end_lsn - file.first_lsn for file in files)
        return found, Count(segments, len(files)), Count(segment_bytes, total)

    def _journal_splits(self, parts: Sequence[Part]) -> Iterator[Split]:
        narrowing = Narrowing(self._sieve)
        known, damage = self._seen.known, damaged_places(self._seen.bounds)
        for some in packed(parts, self._request.partition_bytes):
            own = {topic_id for part in some for topic_id in part.topic_ids}
            ids = sorted(own)
            sieve = narrowing.between(ids[0], ids[-1])
            sieve = sieve._replace(
                topic_ids=tuple(ids),
                limits={key: one for key, one in sieve.limits.items() if key[0] in own},
            )
            names = {part.name for part in some}
            yield self._split(some, sieve)._replace(
                parts=tuple(part._replace(topic_ids=()) for part in some),
                names={topic_id: known.name_of(topic_id) for topic_id in ids},
                damage={name: damage[name] for name in names if name in damage},
            )


class _Sized(Protocol):
    @property
    def bytes(self) -> int: ...


Sized = TypeVar("Sized", bound=_Sized)


def packed(parts: Iterable[Sized], size: int) -> Iterator[list[Sized]]:
    """Neighbours together up to a size, and no more than `PARTS_MAX` of them."""
    some: list[Sized] = []
    total = 0
    for part in parts:
        if some and (total + part.bytes > size or len(some) == PARTS_MAX):
            yield some
            some, total = [], 0
        some.append(part)
        total += part.bytes
    if some:
        yield some


def sieve_of(request: Request, known: TopicState, now_us: int) -> Predicate:
    """Which records a request wants. Raises UnknownTopic."""
    names = Names(request.topics)
    topic_ids = known.chosen(names, not request.unknown_topics)
    if not request.unknown_topics:
        known.check("from", request.from_offsets)
        known.check("to", request.to_offsets)
    offsets = Within(0).and_within(_within(request.from_offset, request.to_offset))
    limits = known.limits(topic_ids, offsets, request.from_offsets, request.to_offsets)
    return Predicate(
        topic_ids,
        known.next_topic_id,
        names,
        None,  # all partitions
        offsets,
        limits,
        _within(request.from_time_us, request.to_time_us),
        _within(request.first_lsn, request.end_lsn),
        now_us,
    )


def _within(first: int | None, end: int | None) -> Within:
    return Within(LEAST if first is None else first, MOST if end is None else end)


# -- How far a log has got -----------------------------------------------------------------------


def end_of(place: Location, tail: bool = True) -> End:
    """How far the log has got: records from there on come later. Raises as `plan` does."""
    return End(*end_lsn_of(place, tail))


def end_after(place: Location, first_lsn: int, max_bytes: int, tail: bool = True) -> End:
    """Where about ``max_bytes`` of the log from an LSN on end; at the end if there are fewer.

    What is not there any more counts nothing. Raises as `plan` does.
    """
    seen = look(place, tail)
    pieces = []
    if seen.archive is not None:
        files = seen.archive.files
        columns = [files[name].to_pylist() for name in ("first_lsn", "last_lsn", "content")]
        pieces += [row for row in zip(*columns, strict=True) if row[0] >= 0]
    pieces += [
        (file.first_lsn, file.end_lsn - 1, file.end_lsn - file.first_lsn)
        for file in seen.journal.files
        if file.first_lsn >= seen.archived_lsn
    ]
    return End(seen.log_id, _cut(pieces, first_lsn, seen.lasting_lsn, max_bytes))


def _cut(pieces: Sequence[tuple[int, int, int]], first: int, end: int, max_bytes: int) -> int:
    """The LSN above ``first`` below which pieces hold so many bytes; ``end`` if they hold less.

    :param pieces: smallest and largest LSN and bytes, which are spread evenly between the two.
    """
    slopes: dict[int, float] = {}
    for low, high, size in pieces:
        if high >= first:
            slope = max(1, size) / (high + 1 - low)
            low = max(low, first)
            slopes[low] = slopes.get(low, 0.0) + slope
            slopes[high + 1] = slopes.get(high + 1, 0.0) - slope
    lsn, slope, total = first, 0.0, 0.0
    for at in sorted(slopes):
        more = slope * (at - lsn)
        if total + more >= max_bytes and slope > 0:
            lsn += int((max_bytes - total) / slope)
            break
        total, lsn, slope = total + more, at, slope + slopes[at]
    else:
        return end
    return min(max(lsn, first + 1), end)
