# Tests: tests/protocols/
"""A broker that listens for BlipMQ, and its clients."""

from __future__ import annotations

from typing import Any

from brokerd.codecs import blipmq as bm
from brokerd.protocols.blipmq.connection import BlipmqFactory, BlipmqSettings
from tests.house import House, Wire

KEY = "bench-key"


class BlipmqHouse(House):
    """A house whose clients speak BlipMQ."""

    def __init__(self, blipmq: BlipmqSettings | None = None, **changes: Any) -> None:
        super().__init__(**changes)
        self.blipmq = blipmq or BlipmqSettings(api_keys=(KEY,))
        self.factory: BlipmqFactory = BlipmqFactory(
            self.broker, self.clock, self.limits, self.blipmq
        )

    def again(self, **changes: Any) -> BlipmqHouse:
        arguments = {
            "disk": self.disk,
            "settings": self.settings,
            "options": self.options,
            "limits": self.limits,
            "wall_seconds": self.wall_seconds,
            "blipmq": self.blipmq,
        }
        return BlipmqHouse(**{**arguments, **changes})

    def stranger(self) -> BlipmqClient:
        """Return a connection that has sent nothing yet."""
        return BlipmqClient(self)

    def client(self) -> BlipmqClient:
        """Return a connection that has logged in."""
        client = self.stranger()
        client.send(bm.Hello(1), bm.Auth(2, KEY))
        self.run()
        assert client.answers() == [bm.Ack(1), bm.Ack(2)]
        return client


class BlipmqClient(Wire):
    """The other end of a connection, in messages."""

    def __init__(self, house: BlipmqHouse) -> None:
        self._house = house
        self._reader = bm.frame_reader()
        super().__init__(house.factory, house.clock)

    def send(self, *messages: bm.Message) -> None:
        """Send messages in one piece."""
        self.send_bytes(b"".join(map(bm.encode, messages)))

    def answers(self) -> list[bm.Message]:
        """Return all messages received since the last call."""
        return [bm.decode(frame) for frame in self._reader.feed(self.received_bytes())]

    def first_answers(self) -> list[bm.Message]:
        """Return the first answers as soon as they come, before any later commit."""
        while True:
            self._house.turn()
            answers = self.answers()
            if answers:
                return answers
            assert self._house._step(), "nothing is answered"

    def ask(self, *messages: bm.Message) -> list[bm.Message]:
        """Send messages, run until no work is left, and return the answers."""
        self.send(*messages)
        self._house.run()
        return self.answers()

    def subscribe(self, topic: str = "t", qos: int = 1) -> int:
        (answer,) = self.ask(bm.Subscribe(3, topic, qos))
        assert isinstance(answer, bm.Ack) and answer.correlation_id == 3
        return answer.subscription_id

    def publish(self, *messages: bytes, topic: str = "t", qos: int = 1) -> None:
        """Publish messages durably."""
        answers = self.ask(*[bm.Publish(4, qos, topic, one) for one in messages], bm.Ping(5))
        assert answers == [bm.Pong(5)]

    def poll(self, subscription_id: int) -> bm.Publish | None:
        """Return the message of one POLL, or None."""
        answers = self.ask(bm.Poll(6, subscription_id))
        if not answers:
            return None
        (delivery,) = answers
        assert isinstance(delivery, bm.Publish)
        return delivery

    def poll_all(self, subscription_id: int) -> list[bytes]:
        """Return the messages of POLLs until an empty one, without acknowledging them."""
        found = []
        while (delivery := self.poll(subscription_id)) is not None:
            found.append(delivery.message)
        return found
