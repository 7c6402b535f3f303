"""What each format shows of records that others wrote, beyond bytes: docs/cross-format.rst."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgpack
import pytest
import pytest_twisted
from twisted.internet.threads import deferToThread

from brokerd.client.blipmq import BlipmqClient
from brokerd.client.flymq import FlymqClient
from brokerd.client.mamamia import MamamiaClient, split_message_id
from brokerd.client.mega import MegaClient
from brokerd.client.rustlog import RustlogClient, RustlogError
from tests.cross.serving import serve_all
from tests.protocols.serving import SECONDS

Addresses = dict[str, str]


@pytest_twisted.async_yield_fixture(scope="module")
async def addresses(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Addresses]:
    """Where every wire format of one broker listens."""
    async with AsyncExitStack() as stack:
        yield await serve_all(stack, tmp_path_factory.mktemp("views"))


Story = Callable[[Addresses], None]


def told_in_a_thread(story: Story) -> Any:
    """A test that blocks, beside the reactor that serves it."""

    @pytest_twisted.ensureDeferred
    async def test(addresses: Addresses) -> None:
        await deferToThread(story, addresses)

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


PAYLOADS: list[Any] = [
    None,
    True,
    -7,
    1 << 63,
    1.5,
    "text",
    b"bytes",
    [1, "two", b"3"],
    {"n": 1, "list": []},
    msgpack.Timestamp(1, 2),
]


@told_in_a_thread
def test_payloads_that_are_no_bytes_are_messagepack_for_others(addresses: Addresses) -> None:
    """Bytes and text as they are, all else as the producer packed it; Mamamia has its own back."""
    wanted = [
        payload
        if isinstance(payload, bytes)
        else payload.encode()
        if isinstance(payload, str)
        else msgpack.packb(payload)
        for payload in PAYLOADS
    ]
    with MamamiaClient(addresses["mamamia"]) as client:
        for payload in PAYLOADS:
            client.produce("payloads", payload)
        leased = client.acquire_batch("payloads", "g", "c", len(PAYLOADS))
        assert [message.payload for message in leased] == PAYLOADS
    with FlymqClient(addresses["flymq"]) as client:
        assert [record.value for record in client.fetch("payloads", 0, 0).records] == wanted
    with MegaClient(addresses["mega"]) as client:
        assert [message.payload for message in client.read("payloads")] == wanted


@told_in_a_thread
def test_foreign_records_are_bin_for_mamamia_whatever_their_bytes(addresses: Addresses) -> None:
    """Bytes that are text, or MessagePack, are not taken for it."""
    values = [b"text", msgpack.packb({"n": 1}), b"\xff"]
    with FlymqClient(addresses["flymq"]) as client:
        for value in values:
            client.produce("foreign", value)
    with MamamiaClient(addresses["mamamia"]) as client:
        leased = client.acquire_batch("foreign", "g", "c", 10)
    assert [(message.payload, message.metadata) for message in leased] == [
        (value, None) for value in values
    ]


@told_in_a_thread
def test_records_of_a_key_are_in_one_partition_whoever_wrote_them(addresses: Addresses) -> None:
    """Mamamia and FlyMQ hash alike, as FlyMQ's reference does; Mamamia's ids tell the partition."""
    places = {"user-123": 5, "a": 4, "b": 1, "key": 4, "hello": 3}
    with FlymqClient(addresses["flymq"]) as flymq, MamamiaClient(addresses["mamamia"]) as mamamia:
        flymq.create_topic("keys", 6)
        for key, partition in places.items():
            stored = flymq.produce("keys", b"flymq", key)
            message_id = mamamia.produce("keys", b"mamamia", key=key)
            assert stored.partition == partition
            assert split_message_id(message_id) == (partition, stored.offset + 1)


@told_in_a_thread
def test_a_key_is_kept_by_formats_that_cannot_show_it(addresses: Addresses) -> None:
    """MEGA reads the value alone, and the key is there for FlyMQ afterwards."""
    with MamamiaClient(addresses["mamamia"]) as client:
        client.produce("kept", b"value", {"trace": 7}, key=b"\x00key")
    with MegaClient(addresses["mega"]) as client:
        assert client.consume("kept", 0).payload == b"value"
    with FlymqClient(addresses["flymq"]) as client:
        assert client.consume("kept", 0, 0) == (b"\x00key", b"value")
    with MamamiaClient(addresses["mamamia"]) as client:
        (message,) = client.acquire_batch("kept", "g", "c", 1)
    assert (message.key, message.metadata) == (b"\x00key", {"trace": 7})


@told_in_a_thread
def test_mega_shows_the_time_of_its_producers_and_else_of_the_append(addresses: Addresses) -> None:
    """Its own producers' timestamps are any number; other formats' records have the broker's."""
    with MegaClient(addresses["mega"]) as mega, FlymqClient(addresses["flymq"]) as flymq:
        mega.create_topic("times")
        mega.produce("times", b"own", timestamp=-5)
        before_ms = int(time.time() * 1000)
        stored = flymq.produce("times", b"foreign")
        assert mega.consume("times", 0).timestamp == -5
        assert mega.consume("times", 1).timestamp == stored.timestamp_ms
        assert before_ms - 1000 <= stored.timestamp_ms <= time.time() * 1000 + 1000


@told_in_a_thread
def test_leases_and_committed_offsets_of_a_group_are_two_things(addresses: Addresses) -> None:
    """One group name in two formats: neither moves the other. Once there are leases they tell."""
    with FlymqClient(addresses["flymq"]) as flymq, MamamiaClient(addresses["mamamia"]) as mamamia:
        for number in range(5):
            flymq.produce("shared", b"%d" % number)
        flymq.commit("shared", "team", 0, 4)
        state = mamamia.group_info("shared", "team")
        assert (state.floor, state.committed, state.lag) == (0, 4, 1)
        message = mamamia.acquire("shared", "team", "worker")
        assert message is not None and message.id == 0
        mamamia.settle("shared", "team", 0, "worker")
        state = mamamia.group_info("shared", "team")
        assert (state.floor, state.committed, state.lag) == (1, 4, 4)
        assert flymq.get_offset("shared", "team") == 4


@told_in_a_thread
def test_mega_sees_partition_0_of_a_topic_with_several(addresses: Addresses) -> None:
    with FlymqClient(addresses["flymq"]) as flymq, MegaClient(addresses["mega"]) as mega:
        flymq.create_topic("wide", 3)
        for partition in range(3):
            flymq.produce("wide", b"in %d" % partition, partition=partition)
        assert mega.produce("wide", b"of mega") == 1
        assert [message.payload for message in mega.read("wide")] == [b"in 0", b"of mega"]


@told_in_a_thread
def test_committed_offsets_of_a_group_are_the_same_for_all_who_commit(addresses: Addresses) -> None:
    """FlyMQ commits, and RustLog's fetch of that group begins there."""
    with FlymqClient(addresses["flymq"]) as flymq, RustlogClient(addresses["rustlog"]) as rustlog:
        for number in range(5):
            flymq.produce("committed", b"%d" % number)
        flymq.commit("committed", "team", 0, 3)
        assert rustlog.committed("committed", "team") == 3
        assert list(rustlog.fetch("committed", 0, group="team").pairs()) == [(3, b"3"), (4, b"4")]
        rustlog.commit("committed", "team", 5)
        assert flymq.get_offset("committed", "team") == 5


@told_in_a_thread
def test_a_topic_is_there_for_all_whoever_made_it(addresses: Addresses) -> None:
    """Lists have it, a second CREATE_TOPIC is refused or succeeds as the format says."""
    with MamamiaClient(addresses["mamamia"]) as mamamia:
        mamamia.produce("by mamamia", b"x")
    with MegaClient(addresses["mega"]) as mega:
        mega.create_topic("by-mega")
    with RustlogClient(addresses["rustlog"]) as rustlog, FlymqClient(addresses["flymq"]) as flymq:
        rustlog.create_topic("by rustlog", 2)
        flymq.create_topic("by rustlog", 7)
        made = {"by mamamia": 1, "by-mega": 1, "by rustlog": 2}
        assert {name: rustlog.topics()[name] for name in made} == made
        assert made.keys() <= set(flymq.list_topics())
        with pytest.raises(RustlogError, match="already exists"):
            rustlog.create_topic("by-mega", 1)


@told_in_a_thread
def test_a_subscription_gets_what_every_format_writes(addresses: Addresses) -> None:
    """Records of others are of QoS 1, from all partitions, and the tag tells the message id."""
    with (
        BlipmqClient(addresses["blipmq"]) as blipmq,
        FlymqClient(addresses["flymq"]) as flymq,
        MamamiaClient(addresses["mamamia"]) as mamamia,
        RustlogClient(addresses["rustlog"]) as rustlog,
    ):
        flymq.create_topic("fan", 3)
        subscription = blipmq.subscribe("fan")
        flymq.produce("fan", b"flymq", partition=2)
        message_id = mamamia.produce("fan", {"of": "mamamia"}, partition=1)
        rustlog.produce("fan", [b"rustlog"], 2)
        got = {}
        while delivery := blipmq.poll(subscription):
            got[delivery.tag] = (delivery.qos, delivery.message)
            blipmq.ack(delivery)
        assert got == {
            (2 << 48 | 0) + 1: (1, b"flymq"),
            message_id + 1: (1, msgpack.packb({"of": "mamamia"})),
            (2 << 48 | 1) + 1: (1, b"rustlog"),
        }


@told_in_a_thread
def test_a_message_of_qos_0_is_one_for_others_and_keeps_its_quality(addresses: Addresses) -> None:
    """Mamamia sees what it was stored with; a subscription of QoS 1 delivers it as QoS 0."""
    with BlipmqClient(addresses["blipmq"]) as blipmq:
        subscription = blipmq.subscribe("quiet")
        blipmq.publish("quiet", b"once", qos=0)
        blipmq.publish("quiet", b"surely", qos=1)
        blipmq.flush()
        deliveries = [blipmq.poll(subscription) for _ in range(3)]
    assert [one and (one.qos, one.message) for one in deliveries] == [
        (0, b"once"),
        (1, b"surely"),
        None,
    ]
    with MamamiaClient(addresses["mamamia"]) as mamamia:
        leased = mamamia.acquire_batch("quiet", "g", "c", 5)
    assert [(one.payload, one.metadata) for one in leased] == [
        (b"once", {"qos": 0}),
        (b"surely", None),
    ]


@told_in_a_thread
def test_a_subscription_is_a_group_for_others(addresses: Addresses) -> None:
    """Mamamia's GROUP_INFO tells how far it is."""
    with BlipmqClient(addresses["blipmq"]) as blipmq, MamamiaClient(addresses["mamamia"]) as other:
        subscription = blipmq.subscribe("followed")
        for number in range(3):
            other.produce("followed", number)
        delivery = blipmq.receive(subscription, timeout=SECONDS)
        assert delivery is not None
        state = other.group_info("followed", f"__blipmq.{subscription}")
        assert (state.lag, state.leased) == (3, 1)
        blipmq.ack(delivery)
        blipmq.ping()
        assert other.group_info("followed", f"__blipmq.{subscription}").lag == 2
