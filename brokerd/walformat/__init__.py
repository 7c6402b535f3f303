# Tests: tests/test_walformat.py
"""The bytes of the write-ahead log, both directions: segments, frames, entries, columns, indexes.

Pure: no disk, no clock, and no import of another package of brokerd. A Spark executor reads a log
with this package alone. docs/wal-format.rst is the layout; section names refer to it.

Decoders raise :class:`FormatError` for bytes that do not follow the layout, and
:class:`UnsupportedFormat` for sound bytes of a newer version. Encoders raise ValueError for values
that a column cannot hold. Times are broker time in microseconds.
"""

from brokerd.walformat.columns import ABSENT, ARRAY, ARRAY_WITH_VALIDITY, CONSTANT
from brokerd.walformat.entries import (
    ENTRY_HEADER_BYTES,
    LARGE_BODY_BYTES,
    BodyParts,
    Entry,
    EntryHeader,
    EntryKind,
    entry_body,
    entry_size,
    parse_entry_header,
)
from brokerd.walformat.events import (
    ENTRY_EVENTS_MAX,
    EVENTS_HEADER_BYTES,
    EventKind,
    GroupEvent,
    decode_group_events,
    encode_group_events,
)
from brokerd.walformat.frames import (
    FRAME_BYTES_MAX,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FrameHeader,
    encode_frame,
    frame_parts,
    frame_size,
    iter_entries,
    parse_frame_header,
)
from brokerd.walformat.layout import (
    ALIGNMENT,
    FORMAT_VERSION,
    Bytes,
    FormatError,
    UnsupportedFormat,
    align,
)
from brokerd.walformat.records import (
    BATCH_RECORDS_MAX,
    RECORDS_HEADER_BYTES,
    RecordColumns,
    decode_records,
    encode_large_records,
    encode_plain_record,
    encode_records,
    records_expire_at_us,
)
from brokerd.walformat.segments import (
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    segment_salt,
)

__all__ = [
    "ABSENT",
    "ALIGNMENT",
    "ARRAY",
    "ARRAY_WITH_VALIDITY",
    "BATCH_RECORDS_MAX",
    "BodyParts",
    "Bytes",
    "CONSTANT",
    "ENTRY_EVENTS_MAX",
    "ENTRY_HEADER_BYTES",
    "EVENTS_HEADER_BYTES",
    "Entry",
    "EntryHeader",
    "EntryKind",
    "EventKind",
    "FORMAT_VERSION",
    "FRAME_BYTES_MAX",
    "FRAME_HEADER_BYTES",
    "FRAME_MAGIC",
    "FormatError",
    "FrameHeader",
    "GroupEvent",
    "LARGE_BODY_BYTES",
    "RECORDS_HEADER_BYTES",
    "RecordColumns",
    "SEGMENT_BYTES_DEFAULT",
    "SEGMENT_BYTES_MAX",
    "SEGMENT_BYTES_MIN",
    "SEGMENT_HEADER_BYTES",
    "SegmentHeader",
    "UnsupportedFormat",
    "align",
    "decode_group_events",
    "decode_records",
    "decode_segment_header",
    "encode_frame",
    "encode_group_events",
    "encode_large_records",
    "encode_plain_record",
    "encode_records",
    "encode_segment_header",
    "entry_body",
    "entry_size",
    "frame_parts",
    "frame_size",
    "iter_entries",
    "parse_entry_header",
    "parse_frame_header",
    "records_expire_at_us",
    "segment_salt",
]
