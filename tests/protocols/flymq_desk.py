"""A FlyMQ client in memory, with the common requests of the format's tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokerd.codecs import flymq
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.flymq.connection import FlymqFactory, FlymqSettings
from tests.house import House, Wire

MIB = 1 << 20
LIMITS = Limits(frame_bytes=32 * MIB)


class Steps:
    """A clock whose calls run one at a time, by hand; each look at it takes ``look_seconds``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.look_seconds = 0.0
        self.waiting: list[Callable[[], object]] = []

    def seconds(self) -> float:
        self.now += self.look_seconds
        return self.now

    def callLater(self, delay: float, call: Callable[..., object], *arguments: object) -> Any:
        if not delay:
            self.waiting.append(lambda: call(*arguments))
        return None

    def step(self) -> None:
        self.waiting.pop(0)()


class FlymqHouse(House):
    """A whole broker that listens for FlyMQ."""

    def __init__(self, flymq: FlymqSettings | None = None, **rest: Any) -> None:
        super().__init__(**{"limits": LIMITS, **rest})
        self.flymq = flymq or FlymqSettings()
        self.flymq_factory = FlymqFactory(self.broker, self.clock, self.limits, self.flymq)

    def again(self, **changes: Any) -> FlymqHouse:
        arguments = {
            "flymq": self.flymq,
            "disk": self.disk,
            "settings": self.settings,
            "options": self.options,
            "limits": self.limits,
            "wall_seconds": self.wall_seconds,
        }
        return FlymqHouse(**{**arguments, **changes})

    def client(self) -> FlymqClient:
        """Return a new client connection."""
        return FlymqClient(self)

    def ask(self, *requests: Any) -> list[Any]:
        """Send requests over a connection of their own and return the answers."""
        return self.client().ask(*requests)

    def only(self, request: Any) -> Any:
        """Return the answer to one request."""
        (answer,) = self.ask(request)
        return answer

    def produce(self, *values: bytes, topic: str = "t", partition: int = -1) -> None:
        """Produce records without a key."""
        answers = self.ask(*[flymq.Produce(topic, None, value, partition) for value in values])
        assert all(isinstance(answer, flymq.Produced) for answer in answers), answers

    def records(self, *request: Any, **rest: Any) -> list[tuple[int, bytes | None, bytes]]:
        """Return the records that a FETCH with these arguments gets."""
        answer = self.only(flymq.Fetch(*request, **rest))
        assert isinstance(answer, flymq.Fetched), answer
        return [tuple(record) for record in answer.records]


class SteppedHouse(FlymqHouse):
    """A broker whose FlyMQ listener is stepped by hand."""

    def __init__(self, **rest: Any) -> None:
        super().__init__(**rest)
        self.steps: Any = Steps()
        self.flymq_factory = FlymqFactory(self.broker, self.steps, self.limits, FlymqSettings())

    def finish(self) -> None:
        """Run until no work is left."""
        self.run()
        while self.steps.waiting:
            self.steps.step()
            self.run()

    def fill(self, count: int, value: bytes = b"miss", last: bytes = b"hit") -> None:
        partition = self.broker.topics.create("t").partitions[0]
        for _ in range(count):
            self.broker.appender.produce(partition, value)
        self.broker.appender.produce(partition, last)
        self.run()


class FlymqClient(Wire):
    """The other end of a FlyMQ connection, in requests and answers."""

    def __init__(self, house: FlymqHouse) -> None:
        self._reader = flymq.FrameReader()
        self._house = house
        self._asked: list[Any] = []
        super().__init__(house.flymq_factory, house.clock)

    def send(self, *requests: Any, gzip: bool = False) -> None:
        """Send requests in one piece."""
        self._asked += requests
        self.send_bytes(b"".join([flymq.encode_request(request, gzip) for request in requests]))

    def answers(self) -> list[Any]:
        """Return all answers received since the last call, decoded, in request order."""
        frames = self._reader.feed(self.received_bytes())
        asked, self._asked = self._asked[: len(frames)], self._asked[len(frames) :]
        assert all(flags == 1 for _, flags, _ in frames)
        return [
            flymq.decode_answer(request, opcode, payload)
            for request, (opcode, _, payload) in zip(asked, frames, strict=True)
        ]

    def ask(self, *requests: Any) -> list[Any]:
        """Send requests in one piece, run until no work is left, and return the answers."""
        self.send(*requests)
        self._house.run()
        return self.answers()
