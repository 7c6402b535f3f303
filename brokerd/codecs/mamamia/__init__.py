# Tests: tests/codecs
"""The Mamamia wire format (MAB): bytes to values and back, pure. Page: docs/protocols/mamamia.rst.

A server reads with `FrameReader` and a `Decoder` per connection, and writes with the functions of
`answers`. A client writes with `encode_request` and reads with `FrameReader` and
`decode_response`.
"""

from brokerd.codecs.mamamia.answers import (
    BATCH_ROOM,
    SETTLED,
    acquired,
    acquired_batch,
    acquired_nothing,
    answer_length,
    batch_item,
    batch_item_length,
    error,
    extended,
    group_info,
    produced,
    produced_batch,
    settled,
    settled_batch,
)
from brokerd.codecs.mamamia.frames import Frame, FrameReader, frame
from brokerd.codecs.mamamia.peer import (
    COMMANDS,
    decode_response,
    encode_request,
    pack_metadata,
    pack_payload,
)
from brokerd.codecs.mamamia.requests import Decoder
from brokerd.codecs.mamamia.values import (
    DEFAULT_DURATION,
    MAX_BATCH,
    MAX_LENGTH,
    Acquire,
    AcquireBatch,
    Acquired,
    AcquiredBatch,
    Answer,
    BatchMessage,
    BatchSettle,
    BodyError,
    Command,
    Extend,
    Extended,
    Failed,
    FrameError,
    GroupInfo,
    GroupState,
    LeasedMessage,
    Message,
    Produce,
    ProduceBatch,
    Produced,
    ProducedBatch,
    Request,
    RequestError,
    Settle,
    SettleBatch,
    Settled,
    SettledBatch,
    message_id_of,
    split_message_id,
)

__all__ = [
    "BATCH_ROOM", "COMMANDS", "DEFAULT_DURATION", "MAX_BATCH", "MAX_LENGTH", "SETTLED",
    "Acquire", "AcquireBatch", "Acquired", "AcquiredBatch", "Answer", "BatchMessage",
    "BatchSettle", "BodyError", "Command", "Decoder", "Extend", "Extended", "Failed", "Frame",
    "FrameError", "FrameReader", "GroupInfo", "GroupState", "LeasedMessage", "Message", "Produce",
    "ProduceBatch", "Produced", "ProducedBatch", "Request", "RequestError", "Settle",
    "SettleBatch", "Settled", "SettledBatch", "acquired", "acquired_batch", "acquired_nothing",
    "answer_length", "batch_item", "batch_item_length", "decode_response", "encode_request",
    "error", "extended", "frame", "group_info", "message_id_of", "pack_metadata", "pack_payload",
    "produced", "produced_batch", "settled", "settled_batch", "split_message_id",
]
