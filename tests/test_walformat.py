"""The bytes of docs/wal-format.rst, written out, and what encoders and decoders promise."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from brokerd.walformat import (
    BATCH_RECORDS_MAX,
    FRAME_BYTES_MAX,
    LARGE_BODY_BYTES,
    SEGMENT_HEADER_BYTES,
    Entry,
    EntryKind,
    FormatError,
    RecordColumns,
    SegmentHeader,
    UnsupportedFormat,
    decode_group_events,
    decode_records,
    decode_segment_header,
    encode_frame,
    encode_group_events,
    encode_large_records,
    encode_plain_record,
    encode_records,
    encode_segment_header,
    frame_size,
    iter_entries,
    parse_entry_header,
    parse_frame_header,
    records_expire_at_us,
    segment_salt,
)
from tests.strategies.wal import group_events, record_columns, texts

ID = bytes(range(16))
SALT = 0x954BE88286D4E628
MARK = Entry(EntryKind.MARK, 0, 0, 0, 0, b"")


def hexes(text: str) -> bytes:
    return bytes.fromhex(text)


SEGMENT = hexes(
    "42524b4457414c00 0100 0000 00100000"  # magic, version, flags, header size
    "000102030405060708090a0b0c0d0e0f"  # id
    "0030000000000000 0000100000000000"  # first LSN 12288, 1 MiB
    "00401e18240a0600 d6c9fd4622f5e70b"  # created, checksum
)
EMPTY_FRAME = hexes(
    "424b6672 0100 0000 40000000 00000000"  # magic, version, flags, length 64, no entries
    "0020000000000000 000102030405060708090a0b0c0d0e0f"  # LSN 8192, segment id
    "0010000000000000 0500000000000000 6881c891e15002d6"  # synced 4096, time 5, checksum
)
TOPIC_ENTRY = hexes(
    "03 01 0000 04000000 0700000000000000 00000000 00000000 0000000000000000"
    "1b8cbea530f05218 cdbe59724c6b2526"  # checksums of header and body
    "81a26f70 00000000"  # body, padding
)
ONE_RECORD = hexes(
    "10011001 00000000 00000000 02000000 0000000000000000"  # kinds, sizes, never expires
    "0000000000000000 0200000000000000 00401e18240a0600 0000000000000000"  # constants
    "0000000000000000 0100000000000000 0100000000000000 0000000000000000"
    "6869"
)
TWO_RECORDS = hexes(
    "22322221 01000000 01000000 04000000 c800000000000000"
    "0000000000000000 0000000000000000 0000000000000000 0000000000000000"
    "0000000000000000 0000000000000000 0100000000000000 0000000000000000"
    "ffffffff 01000000"  # key lengths
    "01000000 03000000"  # value lengths
    "0a00000000000000 0b00000000000000"  # append times
    "0001000000000000 0000000000000000 fbffffffffffffff"  # producer times: none, -5
    "6400000000000000 c800000000000000"  # expires at
    "0002000000000000"  # encodings
    "01000000 ffffffff"  # metadata lengths
    "80 6b 61 626364"
)
ONE_EVENT = hexes(
    "11111101 02000000 04000000 00000000"
    "0100000000000000 0900000000000000 80c3c90100000000 0400000000000000"
    "0200000000000000 0100000000000000 0000000000000000"
    "01000000 03000000 67 616e6e"
)
TWO_EVENTS = hexes(
    "22111202 02000000 04000000 00000000"
    "0000000000000000 0000000000000000 0000000000000000 0000000000000000"
    "0000000000000000 0000000000000000 0000000000000000"
    "0407000000000000"  # kinds
    "0100000000000000 0200000000000000"  # offsets
    "01000000 03000000"  # counts
    "00000000 01000000"  # reasons
    "01000000 03000000 67 626164"
)


class TestGolden:
    """The exact bytes. A change here is a new format version."""

    def test_salt(self) -> None:
        assert segment_salt(ID) == SALT

    def test_segment_header(self) -> None:
        header = SegmentHeader(ID, 12288, 1 << 20, 1_700_000_000_000_000)
        data = encode_segment_header(header)
        assert data[:64] == SEGMENT
        assert data[64:] == bytes(SEGMENT_HEADER_BYTES - 64)
        assert decode_segment_header(data) == header

    def test_frame_and_entry(self) -> None:
        entry = Entry(EntryKind.TOPIC, 7, 0, 0, 0, b"\x81\xa2op")
        assert encode_frame([], 8192, ID, 4096, 5) == EMPTY_FRAME
        frame = encode_frame([entry], 8192, ID, 4096, 5)
        assert frame[64:] == TOPIC_ENTRY
        assert list(iter_entries(frame, SALT)) == [entry]

    def test_one_record(self) -> None:
        columns = RecordColumns([b"hi"], encodings=1, append_time_us=1_700_000_000_000_000)
        columns = columns._replace(producer_format=1)
        assert encode_records(columns) == ONE_RECORD
        assert decode_records(ONE_RECORD, 1) == columns

    def test_two_records_that_differ_in_everything(self) -> None:
        columns = RecordColumns(
            [b"a", b"bcd"],
            [None, b"k"],
            [0, 2],
            [b"\x80", None],
            [10, 11],
            [None, -5],
            [100, 200],
            [1, 1],
        )
        assert encode_records(columns) == TWO_RECORDS
        assert rows_of(decode_records(TWO_RECORDS, 2), 2) == rows_of(columns, 2)
        assert records_expire_at_us(TWO_RECORDS) == 200

    def test_group_events(self) -> None:
        one = [(1, 9, 30_000_000, 4, 2, "ann", "")]
        two = [(4, 1, 0, 0, 1, "", ""), (7, 2, 0, 0, 3, "", "bad")]
        assert encode_group_events("g", one) == ONE_EVENT
        assert encode_group_events("g", two) == TWO_EVENTS
        assert decode_group_events(ONE_EVENT, 1) == ("g", one)
        assert decode_group_events(TWO_EVENTS, 2) == ("g", two)


def rows_of(columns: RecordColumns, n: int) -> list[tuple[Any, ...]]:
    """Record by record, whatever kinds the columns came back in."""
    defaults = {"expires_at_us": 0}
    spread = []
    for name, column in zip(columns._fields, columns, strict=True):
        if column is None:
            column = defaults.get(name)
        spread.append(list(column) if isinstance(column, list | tuple) else [column] * n)
    return list(zip(*spread, strict=True))


class TestRoundTrips:
    @given(record_columns())
    def test_a_batch_comes_back_record_by_record(self, columns: RecordColumns) -> None:
        n = len(columns.values)
        body = encode_records(columns)
        assert rows_of(decode_records(body, n), n) == rows_of(columns, n)
        again = decode_records(memoryview(body), n)
        assert encode_records(again) == body or rows_of(again, n) == rows_of(columns, n)

    @given(texts, st.lists(group_events, min_size=1, max_size=9))
    def test_group_events_come_back(self, group: str, events: list[Any]) -> None:
        body = encode_group_events(group, events)
        assert decode_group_events(body, len(events)) == (group, events)

    def test_a_thousand_group_events_come_back(self) -> None:
        events = [(3, offset, 0, 0, 0, "", "") for offset in range(1_000)]
        assert decode_group_events(encode_group_events("g", events), 1_000) == ("g", events)

    @given(st.lists(st.binary(max_size=30), max_size=5), st.integers(0, 2**40))
    def test_a_frame_comes_back_and_has_the_size_foretold(
        self, bodies: list[bytes], block: int
    ) -> None:
        entries = [
            Entry(EntryKind.RECORDS, 2**64 - 1, 2**32 - 1, index, 3, body)
            for index, body in enumerate(bodies)
        ]
        frame = encode_frame(entries, block * 8, ID, 0, -1)
        assert len(frame) == frame_size(entries)
        assert len(frame) % 8 == 0
        assert list(iter_entries(frame, SALT)) == entries
        assert parse_frame_header(frame, SALT).lsn == block * 8

    @pytest.mark.parametrize("size", [1, LARGE_BODY_BYTES])
    def test_a_large_body_has_the_same_bytes_in_parts(self, size: int) -> None:
        value = b"v" * size
        for values in [value, b"", b"w"], [value] * 3:
            columns = RecordColumns(values, [b"k", None, b""], 0, [None, b"m", None])
            body = encode_large_records(columns)
            assert isinstance(body, bytes) == (size == 1)
            assert len(body) == len(bytes(body))
            assert bytes(body) == encode_records(columns)
            assert decode_records(bytes(body), 3).values == values

    def test_the_batch_never_expires_if_one_record_never_does(self) -> None:
        body = encode_records(RecordColumns([b"", b""], expires_at_us=[5, 0]))
        assert records_expire_at_us(body) == 0

    @given(
        st.binary(max_size=300),
        st.integers(0, 255),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1)),
    )
    def test_one_plain_record_has_the_bytes_of_a_batch(
        self, value: bytes, number: int, time_us: int, producer_time: int | None
    ) -> None:
        columns = RecordColumns(
            [value], None, [number], None, time_us, [producer_time], None, number
        )
        plain = encode_plain_record(value, time_us, producer_time, number, number)
        assert plain == encode_records(columns) == bytes(encode_large_records(columns))

    def test_a_plain_record_refuses_a_number_out_of_range(self) -> None:
        with pytest.raises(ValueError, match="does not fit its column"):
            encode_plain_record(b"", 0, None, 256, 0)

    def test_equal_numbers_take_no_room_in_a_batch(self) -> None:
        body = encode_records(RecordColumns([b"x" * 10] * 1000, append_time_us=[7] * 1000))
        assert len(body) == 88 + 10_000


class TestDamage:
    FRAME = encode_frame(
        [
            Entry(EntryKind.RECORDS, 1, 0, 5, 1, encode_records(RecordColumns([b"value"]))),
            Entry(EntryKind.GROUP_EVENTS, 1, 0, 0, 1, ONE_EVENT),
        ],
        4096,
        ID,
        0,
        9,
    )

    def test_a_flipped_bit_is_noticed_wherever_it_means_something(self) -> None:
        entries = list(iter_entries(self.FRAME, SALT))
        for position in range(len(self.FRAME)):
            for bit in (1, 128):
                data = bytearray(self.FRAME)
                data[position] ^= bit
                try:
                    found = list(iter_entries(data, SALT))
                except FormatError:
                    continue
                assert found == entries, f"bit {bit} of byte {position} passed"
                assert self.FRAME[position] == 0, "only padding may differ"

    def test_a_frame_cut_short_anywhere_is_noticed(self) -> None:
        for length in range(len(self.FRAME)):
            with pytest.raises(FormatError):
                list(iter_entries(self.FRAME[:length], SALT))

    def test_a_header_that_is_cut_short_says_how_many_bytes_are_left(self) -> None:
        with pytest.raises(FormatError, match="frame header is cut short: 5 bytes of 64"):
            parse_frame_header(bytes(12), SALT, 7)
        with pytest.raises(FormatError, match="entry header is cut short: 5 bytes of 48"):
            parse_entry_header(bytes(12), SALT, 7)

    def test_bytes_of_another_segment_never_pass(self) -> None:
        other = segment_salt(bytes(16))
        with pytest.raises(FormatError, match="checksum"):
            parse_frame_header(self.FRAME, other)
        with pytest.raises(FormatError, match="checksum"):
            parse_entry_header(self.FRAME, other, 64)

    def test_a_body_moved_below_another_header_is_noticed(self) -> None:
        bodies = [encode_records(RecordColumns([value])) for value in (b"aaaa", b"bbbb")]
        frames = [
            encode_frame([Entry(EntryKind.RECORDS, 1, 0, at, 1, body)], 4096, ID, 0, 9)
            for at, body in enumerate(bodies)
        ]
        mixed = frames[0][:112] + frames[1][112:]
        with pytest.raises(FormatError, match="body checksum"):
            list(iter_entries(mixed, SALT))

    @given(st.binary(max_size=200), st.integers(-1, 40))
    def test_any_bytes_as_a_body_give_records_or_a_format_error(
        self, body: bytes, count: int
    ) -> None:
        for decode in (decode_records, decode_group_events):
            with contextlib.suppress(FormatError):
                decode(body, count)

    @given(st.integers(0, len(TWO_RECORDS) - 1), st.integers(0, 255), st.integers(0, 9))
    def test_a_wrong_byte_in_a_body_gives_records_or_a_format_error(
        self, position: int, value: int, count: int
    ) -> None:
        for body, decode in ((TWO_RECORDS, decode_records), (TWO_EVENTS, decode_group_events)):
            data = bytearray(body)
            data[position % len(body)] = value
            with contextlib.suppress(FormatError):
                decode(bytes(data), count)


class TestNewerVersions:
    @staticmethod
    def _resealed(data: bytes, position: int, value: int, end: int, seed: int) -> bytes:
        """Change a byte and make the checksum at ``end`` right again."""
        changed = bytearray(data)
        changed[position] = value
        start = 64 if end == 96 else 0
        changed[end : end + 8] = struct.pack(
            "<Q", xxh3_64_intdigest(bytes(changed[start:end]), seed)
        )
        return bytes(changed)

    def test_a_newer_segment_frame_or_entry_says_so(self) -> None:
        segment = encode_segment_header(SegmentHeader(ID, 0, 4096, 0))
        frame = encode_frame([MARK], 4096, ID, 0, 0)
        with pytest.raises(UnsupportedFormat, match="version 2"):
            decode_segment_header(self._resealed(segment, 8, 2, 56, 0))
        with pytest.raises(UnsupportedFormat, match="version 2"):
            parse_frame_header(self._resealed(frame, 4, 2, 56, SALT), SALT)
        with pytest.raises(UnsupportedFormat, match="kind 12"):
            parse_entry_header(self._resealed(frame, 64, 12, 96, SALT), SALT, 64)
        with pytest.raises(UnsupportedFormat, match="version 2"):
            parse_entry_header(self._resealed(frame, 65, 2, 96, SALT), SALT, 64)

    @pytest.mark.parametrize("flag", [1, 2])
    def test_compressed_and_encrypted_bodies_are_refused_not_misread(self, flag: int) -> None:
        frame = self._resealed(encode_frame([MARK], 4096, ID, 0, 0), 66, flag, 96, SALT)
        with pytest.raises(UnsupportedFormat, match="flags"):
            list(iter_entries(frame, SALT))


class TestRefusals:
    """What cannot be written is refused by name, before any byte is made."""

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            (RecordColumns([]), "1 to"),
            (RecordColumns([b""], keys=[]), "column keys has 0 rows, not 1"),
            (RecordColumns([b""], encodings=256), "does not fit"),
            (RecordColumns([b"", b""], encodings=[1, 256]), "does not fit"),
            (RecordColumns([b""], producer_time=[2**63]), "does not fit"),
            (RecordColumns([b"", b""], producer_time=[2**63, None]), "does not fit"),
        ],
    )
    def test_records(self, columns: RecordColumns, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            encode_records(columns)

    @pytest.mark.parametrize(
        ("events", "message"),
        [
            ([], "1 to"),
            ([(1, 0, 0, 0, 0, "", "")] * (2**20 + 1), "1 to 1048576 events, not 1048577"),
            ([(1, 2**63, 0, 0, 0, "", "")], "does not fit"),
            ([(1, 0, 0, -1, 0, "", ""), (1, 0, 0, 0, 0, "", "")], "does not fit"),
        ],
    )
    def test_group_events(self, events: list[Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            encode_group_events("g", events)

    def test_a_frame_over_the_limit(self) -> None:
        body = bytes(FRAME_BYTES_MAX // 4)
        with pytest.raises(ValueError, match="over the limit"):
            encode_frame([MARK._replace(body=body)] * 4, 0, ID, 0, 0)

    def test_a_count_over_the_limit_is_not_believed(self) -> None:
        with pytest.raises(FormatError):
            decode_records(ONE_RECORD, BATCH_RECORDS_MAX + 1)
