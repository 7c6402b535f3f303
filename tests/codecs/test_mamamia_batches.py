"""Batches read in one step are read as walking would read them, right and wrong ones alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs.mamamia import (
    BatchMessage,
    BodyError,
    Decoder,
    ProduceBatch,
    RequestError,
    SettleBatch,
    batches,
)
from brokerd.codecs.mamamia.batches import plain_produce_batch, plain_settle_batch
from brokerd.codecs.mamamia.values import MAX_MESSAGE_ID
from brokerd.codecs.mamamia.walk_steps import finish
from tests.strategies.mamamia import keys, names, payloads

odd = st.one_of(
    payloads,
    st.just(msgpack.ExtType(5, b"x")),
    st.just(msgpack.Timestamp(1, 2)),
    st.floats(),
    st.integers(-5, 40_000),
)
"""What may stand where it does not belong."""


def maps(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Maps with some of these keys, their values sometimes odd, sometimes with others between."""
    fields = {key: st.one_of(value, value, value, odd) for key, value in values.items()}
    sound = st.fixed_dictionaries({}, optional=fields)
    return st.one_of(
        st.fixed_dictionaries(values),
        st.tuples(sound, st.dictionaries(keys, odd, max_size=2)).map(lambda p: {**p[1], **p[0]}),
    )


settle_items = maps(
    message_id=st.integers(-1, 1 << 63),
    success=odd,
    token=st.none() | st.integers(0, 1 << 63),
    delay=st.integers(0, 9) | st.floats(),
    reason=st.none()
    | st.sampled_from(["a\n", "\x9b"])
    | st.text(max_size=9)
    | st.text(min_size=250, max_size=260),
    dead=odd,
)
bare_settles = st.fixed_dictionaries(
    {
        "token": st.integers(0, 1 << 63) | odd,
        "success": st.booleans() | odd,
        "message_id": st.integers(0, 1 << 63) | odd,
    }
)
settle_bodies = maps(
    log_id=names | st.text(min_size=250, max_size=260),
    group_id=names,
    client_id=names,
    settles=st.lists(settle_items | odd, max_size=4) | st.lists(bare_settles, max_size=4),
)
produce_items = maps(
    payload=payloads,
    metadata=st.none() | st.dictionaries(keys, payloads, max_size=2),
    key=st.none() | st.text(max_size=9) | st.binary(max_size=9),
    partition=st.none() | st.integers(-1, 32_767),
)
late_items = maps(payload=payloads, ttl=st.floats() | st.integers(-1, 9), delay=st.floats())
bare_items = st.one_of(
    st.fixed_dictionaries({"payload": st.binary(max_size=300)}),
    st.fixed_dictionaries({"payload": st.binary(max_size=300), "metadata": st.none()}),
    st.fixed_dictionaries({"payload": payloads, "metadata": st.none() | odd}),
)
produce_bodies = maps(
    log_id=names,
    messages=st.lists(produce_items | late_items | odd, max_size=4)
    | st.lists(bare_items, max_size=4),
    producer_id=st.none() | st.text(max_size=9) | st.text(min_size=250, max_size=260),
    sequence=st.none() | st.integers(-1, 1 << 63),
)


def walk_settle_batch(body: bytes) -> Any:
    return finish(Decoder().decode_steps(0x84, body))


def walk_produce_batch(body: bytes) -> Any:
    return finish(Decoder().decode_steps(0x82, body))


def outcome(read: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return read(body)
    except (BodyError, RequestError) as error:
        return type(error), str(error)


@given(settle_bodies)
def test_a_settle_batch_is_read_as_walking_reads_it(body: Any) -> None:
    packed = msgpack.packb(body)
    plain = plain_settle_batch(packed)
    assert plain is None or plain == outcome(walk_settle_batch, packed)


@given(produce_bodies)
def test_a_produce_batch_is_read_as_walking_reads_it(body: Any) -> None:
    packed = msgpack.packb(body)
    plain = plain_produce_batch(packed)
    assert plain is None or plain == outcome(walk_produce_batch, packed)


@pytest.mark.parametrize("field", ["metadata", "key", "partition"])
def test_an_extension_in_a_message_is_not_read_as_nil(field: str) -> None:
    message = {"payload": b"", field: msgpack.ExtType(5, b"x")}
    packed = msgpack.packb({"log_id": "l", "messages": [message]})
    assert plain_produce_batch(packed) is None


@pytest.mark.parametrize("field", ["token", "reason"])
def test_an_extension_in_a_settle_is_not_read_as_nil(field: str) -> None:
    settle = {"message_id": 1, "success": True, field: msgpack.ExtType(5, b"x")}
    names = {"log_id": "l", "group_id": "g", "client_id": "c"}
    assert plain_settle_batch(msgpack.packb({**names, "settles": [settle]})) is None


def cut(body: bytes) -> Any:
    """Read the body of a batch for the log of an earlier one."""
    decoder = Decoder()
    decoder.decode(0x82, msgpack.packb({"log_id": "l", "messages": [{"payload": b""}]}))
    log_id, values = decoder.plain_batch(body)
    return None if values is None else (log_id, list(values))


bins = st.binary(max_size=300)
messages_alone = st.one_of(
    st.lists(st.fixed_dictionaries({"payload": bins, "metadata": st.none()}), max_size=4),
    st.lists(st.fixed_dictionaries({"payload": bins}), max_size=4),
    st.lists(bare_items, max_size=4),
)


@given(messages_alone, st.integers(0, 3))
def test_values_cut_out_of_a_body_are_those_that_walking_finds(messages: Any, count: int) -> None:
    """Messages of one length, too."""
    for items in messages, messages[:1] * count:
        packed = msgpack.packb({"log_id": "l", "messages": items})
        values = cut(packed)
        walked = outcome(walk_produce_batch, packed)
        if values is not None:
            assert walked == ProduceBatch(
                "l", tuple(BatchMessage(one, 0, None, None, None, None, None) for one in values[1])
            )
        else:
            assert not items or not all(map(_is_alone, items)) or len(set(map(tuple, items))) > 1


def _is_alone(message: dict[str, Any]) -> bool:
    """Return whether a message is a payload of bytes alone, in the usual order."""
    return list(message.items()) in (
        [("payload", message["payload"])],
        [("payload", message["payload"]), ("metadata", None)],
    ) and isinstance(message["payload"], bytes)


@given(messages_alone.filter(bool), st.data())
def test_a_damaged_body_is_not_cut_into_other_values(messages: Any, data: st.DataObject) -> None:
    packed = bytearray(msgpack.packb({"log_id": "l", "messages": messages}))
    at = data.draw(st.integers(0, len(packed)))
    packed[at : at + data.draw(st.integers(0, 2))] = data.draw(
        st.binary(max_size=2) | st.sampled_from([b"\xc4", b"\xc5", b"\xc5\x00", b"\x81", b"\x90"])
    )
    values = cut(bytes(packed))
    if values is not None:
        walked = walk_produce_batch(bytes(packed))
        assert (walked.log_id, [one.value for one in walked.messages]) == values
        assert {one[1:] for one in walked.messages} == {(0, None, None, None, None, None)}


@pytest.mark.parametrize("size", [0, 3, 300])
@pytest.mark.parametrize("rest", [{}, {"metadata": None}])
def test_one_other_byte_between_equal_values_is_noticed(rest: dict[str, None], size: int) -> None:
    body = msgpack.packb({"log_id": "l", "messages": [{"payload": bytes(size), **rest}] * 3})
    for at in range(body.index(b"payload") - 2, len(body)):
        damaged = bytearray(body)
        damaged[at] ^= 1
        values = cut(bytes(damaged))
        walked = outcome(walk_produce_batch, bytes(damaged))
        if isinstance(walked, ProduceBatch):
            assert values in (None, ("l", [one.value for one in walked.messages]))
        else:
            assert values is None


WHO = {"log_id": "l", "group_id": "g", "client_id": "c"}
numbers = st.integers(0, 300) | st.integers(0, 1 << 64) | st.sampled_from([127, 65_535, 1 << 63])


def cut_settles(body: bytes) -> Any:
    """Read the body of a settle batch with the names of an earlier one."""
    decoder = Decoder()
    decoder.decode(0x84, msgpack.packb({**WHO, "settles": [{"message_id": 1, "success": True}]}))
    who, settles = decoder.plain_settles(body)
    return None if settles is None else (*who, list(zip(*settles, strict=True)))


def as_cut(request: Any) -> Any:
    """Return what `cut_settles` does; None if a settle has more than id and token."""
    if type(request) is not SettleBatch or {one[1:2] + one[3:] for one in request.settles} != {
        (True, None, "", False)
    }:
        return None
    return (*request[:3], [(one.message_id, one.token) for one in request.settles])


@given(
    order=st.permutations(["message_id", "token", "success"]),
    first=st.tuples(numbers, numbers),
    step=st.sampled_from([0, 1, 7]),
    count=st.integers(1, 40),
)
def test_settles_cut_out_of_a_body_are_those_that_walking_finds(
    order: list[str], first: tuple[int, int], step: int, count: int
) -> None:
    rows = [
        {"message_id": first[0] + step * at, "token": first[1] + at, "success": True}
        for at in range(count)
    ]
    if max(first) + 7 * count < 1 << 64:
        packed = msgpack.packb(
            {**WHO, "settles": [{key: row[key] for key in order} for row in rows]}
        )
        settles = cut_settles(packed)
        assert settles in (None, as_cut(outcome(walk_settle_batch, packed)))
        widths = {len(msgpack.packb(list(row.values()))) for row in rows}
        if settles is None:
            assert len(widths) > 1 or rows[-1]["message_id"] > MAX_MESSAGE_ID


@given(st.integers(0, 300), st.integers(1, 4), st.data())
def test_a_damaged_body_is_not_cut_into_other_settles(
    first: int, count: int, data: st.DataObject
) -> None:
    rows = [{"message_id": first + at, "token": first * at, "success": True} for at in range(count)]
    packed = bytearray(msgpack.packb({**WHO, "settles": rows}))
    at = data.draw(st.integers(24, len(packed)))
    packed[at : at + data.draw(st.integers(0, 2))] = data.draw(
        st.binary(max_size=2) | st.sampled_from([b"\xcc", b"\xcd", b"\xd0", b"\xc2", b"\x80"])
    )
    settles = cut_settles(bytes(packed))
    assert settles in (None, as_cut(outcome(walk_settle_batch, bytes(packed))))


@pytest.mark.parametrize(
    "odd",
    [{"success": False}, {"delay": 1}, {"reason": ""}, {"token": None}, {"message_id": -1}],
)
@pytest.mark.parametrize("at", [0, 3, 9])
def test_an_odd_settle_is_not_cut_out(odd: dict[str, Any], at: int) -> None:
    rows: list[dict[str, Any]] = [
        {"message_id": number, "success": True, "token": number} for number in range(10)
    ]
    assert cut_settles(msgpack.packb({**WHO, "settles": rows})) == (
        *WHO.values(),
        [(number, number) for number in range(10)],
    )
    rows[at] |= odd
    assert cut_settles(msgpack.packb({**WHO, "settles": rows})) is None


def test_a_settle_batch_of_other_names_or_of_many_bytes_is_not_cut() -> None:
    row = {"message_id": 1, "success": True, "token": 2}
    assert cut_settles(msgpack.packb({**WHO, "settles": [row] * 500})) is not None
    for who, count in (({**WHO, "group_id": "h"}, 9), (WHO, 800), (WHO, 0)):
        assert cut_settles(msgpack.packb({**who, "settles": [row] * count})) is None
    for end in range(40):
        assert cut_settles(msgpack.packb({**WHO, "settles": [row]})[:end]) is None


def test_a_large_batch_is_not_cut_in_one_step() -> None:
    def batch(count: int, size: int) -> bytes:
        message = {"payload": bytes(size), "metadata": None}
        packed: bytes = msgpack.packb({"log_id": "l", "messages": [message] * count})
        return packed

    most = batches.PLAIN_VALUES_MAX
    assert cut(batch(most, 1)) == ("l", [b"\0"] * most)
    assert cut(batch(most + 1, 1)) is None
    assert cut(batch(2, 60_000)) == ("l", [bytes(60_000)] * 2)
    assert cut(batch(3, 60_000)) is None


@given(settle_bodies, st.data())
def test_damaged_bodies_are_judged_by_walking(body: Any, data: st.DataObject) -> None:
    packed = bytearray(msgpack.packb(body))
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    plain = plain_settle_batch(bytes(packed))
    assert plain is None or plain == outcome(walk_settle_batch, bytes(packed))


@pytest.mark.parametrize("count", [1, 100])
def test_the_usual_shapes_take_the_short_way(count: int) -> None:
    """Otherwise the tests above would hold without it ever being used."""
    settle = {"message_id": 7, "success": True, "token": 3}
    names = {"log_id": "l", "group_id": "g", "client_id": "c"}
    settled = plain_settle_batch(msgpack.packb({**names, "settles": [settle] * count}))
    assert settled is not None
    assert len(settled.settles) == count
    for extra in {}, {"metadata": None}:
        bare = [{"payload": b"%d" % number, **extra} for number in range(count)]
        values = batches._bare_values(bare)
        assert values == [message["payload"] for message in bare]
    assert batches._bare_settles([settle] * count) == settled.settles
    message = {"payload": b"x", "metadata": None, "key": "k"}
    produced = plain_produce_batch(msgpack.packb({"log_id": "l", "messages": [message] * count}))
    assert produced is not None
    assert produced.messages[0].key == b"k"


def test_a_settle_that_gives_up_is_read_either_way() -> None:
    settle = {"message_id": 7, "success": False, "reason": "no such customer", "dead": 1}
    packed = msgpack.packb({"log_id": "l", "group_id": "g", "client_id": "c", "settles": [settle]})
    plain = plain_settle_batch(packed)
    assert plain is not None
    assert plain == walk_settle_batch(packed)
    assert plain.settles[0][4:] == ("no such customer", True)
