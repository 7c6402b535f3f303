# Tests: tests/test_bench_formats.py
"""BlipMQ under load: PUBLISH of QoS 1, and POLL with ACK. Page: docs/protocols/blipmq.rst.

Both have no answer on success. Each request therefore ends with a PING, and its PONG confirms
everything before it. A message of ``acquire-settle`` counts with the PONG behind its ACK. A request
of ``produce-batch`` is several PUBLISH and one PING.
"""

from __future__ import annotations

import socket
from collections import deque
from struct import Struct

from brokerd.cli.bench.formats.base import (
    FILL_WINDOW,
    PROBE_SECONDS,
    BenchFailed,
    LoadSpec,
    LoadTarget,
    TargetSpec,
    pump,
)
from brokerd.cli.bench.scenarios import Role, Step, Tally
from brokerd.cli.credentials import Credentials
from brokerd.client.blipmq import BlipmqClient
from brokerd.codecs.blipmq import (
    VERSION,
    Ack,
    Auth,
    FrameType,
    Hello,
    Ping,
    Poll,
    Pong,
    Publish,
    decode,
    encode,
    frame_reader,
)
from brokerd.errors import BrokerdError

API_KEY = "bench"
_HEAD = Struct(">IBQ")
"""Length, type, correlation id."""
_FILL_BATCH = 100
_PING = encode(Ping(1 << 63))
_PONG = encode(Pong(1 << 63))


class BlipmqFormat:
    """See `BenchFormat`."""

    port = 5555
    scenarios: tuple[str, ...] = ("produce", "produce-batch", "acquire-settle")
    batched: tuple[str, ...] = ("produce-batch",)

    def consumes(self, scenario: str) -> bool:
        return scenario == "acquire-settle"

    def prepare(self, target: TargetSpec) -> LoadTarget:
        """A subscription begins at the end of the topic, so it comes before the backlog."""
        try:
            options = target.connection.client_options(target.address)
            key = _key(target.connection.credentials)
            with BlipmqClient(
                target.address, api_key=key, timeout=PROBE_SECONDS, **options
            ) as client:
                subscription_id = client.subscribe(target.topic)
        except (BrokerdError, OSError) as error:
            raise BenchFailed(f"{target.address}: {error}; is it a BlipMQ listener?") from error
        if self.consumes(target.scenario):
            role = PublishRole(target.topic, target.size, _FILL_BATCH, FILL_WINDOW // 64)
            pump(target, self.open, role)
        return LoadTarget(target.topic, group=str(subscription_id))

    def open(self, sock: socket.socket, credentials: Credentials) -> None:
        """Send HELLO and AUTH and check their answers."""
        sock.sendall(encode(Hello(1, VERSION)) + encode(Auth(2, _key(credentials))))
        reader = frame_reader()
        answers: list[bytes] = []
        while len(answers) < 2:
            data = sock.recv(1 << 16)
            if not data:
                raise OSError("the connection ended during the greeting")
            answers += reader.feed(data)
        for answer in map(decode, answers):
            if not isinstance(answer, Ack):
                raise OSError(f"the greeting was answered {answer}")

    def role(self, spec: LoadSpec, number: int) -> Role:
        if self.consumes(spec.scenario):
            return PollRole(int(spec.group), spec.window)
        batch = spec.batch if spec.scenario == "produce-batch" else 1
        return PublishRole(spec.topic, spec.size, batch, spec.window)


def _key(credentials: Credentials) -> str:
    """Return the key for AUTH; a broker without security accepts any."""
    return credentials.key or API_KEY


class _PingRole:
    """Base of both roles: a request ends with a PING, and its PONG is the answer."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def answers(self, data: bytes) -> Step:
        reply: list[bytes] = []
        found = at = 0
        size = len(data)
        while size - at >= _HEAD.size:
            length, kind, correlation_id = _HEAD.unpack_from(data, at)
            stop = at + 4 + length
            if stop > size:
                break
            if kind == FrameType.PONG:
                found += 1
                request = self._answered()
                if request is not None:
                    reply.append(request)
            elif kind == FrameType.PUBLISH:
                self._delivered(correlation_id)
            else:
                self.tally.refused(data[at:stop])
            at = stop
        if self._stopped:
            reply = []
        return Step(found, at, b"".join(reply), len(reply))

    def _answered(self) -> bytes | None:
        """Count the messages that a PONG confirms; return the next request, if there is one."""
        raise NotImplementedError

    def _delivered(self, tag: int) -> None:
        """Record a delivered message."""
        raise NotImplementedError


class PublishRole(_PingRole):
    """Publishes messages of QoS 1: a request is ``batch`` messages and a PING."""

    def __init__(self, topic: str, size: int, batch: int, window: int) -> None:
        super().__init__()
        self._batch = batch
        self._window = window
        self._template = encode(Publish(1, 1, topic, b"x" * size)) * batch + _PING
        self._refused = 0

    def first(self) -> tuple[bytes | memoryview, int]:
        return self._template * self._window, self._window

    def answers(self, data: bytes) -> Step:
        """Count answers in one step if none of the data is an error."""
        count = len(data) // len(_PONG)
        alike = data[: count * len(_PONG)] == _PONG * count
        if not count or not alike or self.tally.errors > self._refused:
            return super().answers(data)
        self.tally.produced += self._batch * count
        replies = 0 if self._stopped else count
        return Step(count, count * len(_PONG), self._template * replies, replies)

    def _answered(self) -> bytes | None:
        refused = self.tally.errors - self._refused
        self._refused = self.tally.errors
        self.tally.produced += max(0, self._batch - refused)
        return self._template


class PollRole(_PingRole):
    """Polls one subscription and acknowledges its messages: a request is ACK, POLL and PING."""

    def __init__(self, subscription_id: int, window: int) -> None:
        super().__init__()
        self._subscription_id = subscription_id
        self._window = window
        self._poll = encode(Poll(1 << 63, subscription_id)) + _PING
        self._acknowledges = deque([False] * window)
        """Whether each request in flight begins with an ACK."""
        self._tag: int | None = None

    def first(self) -> tuple[bytes | memoryview, int]:
        return self._poll * self._window, self._window

    def _delivered(self, tag: int) -> None:
        self._tag = tag

    def _answered(self) -> bytes | None:
        if self._acknowledges.popleft():
            self.tally.settled += 1
        tag, self._tag = self._tag, None
        if tag is None:
            self.tally.empty += 1
            return None
        self._acknowledges.append(True)
        return encode(Ack(tag, self._subscription_id)) + self._poll
