"""The other end of a simulated client's connections, played by a test."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from brokerd.codecs import mamamia as mm
from simulator.history.operations import NEVER, History, Operation
from simulator.machine.world import World

LATENCY_US = 100


class ScriptedLink:
    """A connection that is established at once; the test sends the answers."""

    def __init__(self, peer: Peer, number: int, boot: int) -> None:
        self.number = number
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_lost: Callable[[str], None] = lambda why: None
        self.boot = boot
        self.is_open = True
        self.paused = False
        self.sent = b""
        self._peer = peer
        self._reader = mm.FrameReader()

    # -- for the client ---------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        assert self.is_open
        self.sent += data
        self._peer.sends.append(data)
        for command, body in self._reader.feed(data):
            self._peer.ask(self, command, body)

    def close(self) -> None:
        self.is_open = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    lost_us = NEVER

    def arrived_us(self, position: int) -> int:
        return position if position <= self._peer.arrives else NEVER

    def written_us(self, position: int) -> int:
        return 1_000_000 + position

    # -- for the test -----------------------------------------------------------------------------

    def answer(self, *frames: bytes) -> None:
        self.on_data(b"".join(frames))

    def lose(self, why: str = "gone") -> None:
        self.is_open = False
        self.on_lost(why)


class ScriptedAsker:
    """An asker without a broker; ``tells`` maps each kind of operation to its answer or None."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.is_ready = True
        self.tells: Callable[[Any], Any] = lambda operation: None
        self.refuses: Callable[[Any], str] = lambda operation: ""
        self.latency_us = LATENCY_US
        """Time until the answer of a call comes."""

    def perform(
        self,
        operation: Any,
        call: Callable[[Any], Any],
        tell: Callable[[Any], None],
        done: Callable[[Any], None],
    ) -> None:
        now_us = self._peer.world.now_us
        operation.number = len(self._peer.operations)
        operation.boot = self._peer.boot
        operation.sent_us = operation.arrived_us = now_us
        operation.written_us = operation.answered_us = now_us
        operation.error = self.refuses(operation)
        self._peer.operations.append(operation)
        told = self.tells(operation)
        if told is not None and not operation.error:
            tell(told)
        self._peer.world.call_after(self.latency_us, done, operation)

    def perform_later(
        self,
        operation: Any,
        begin: Callable[[Any, Any], None],
        tell: Callable[[Any], None],
        done: Callable[[Any], None],
    ) -> None:
        self.perform(operation, lambda broker: None, tell, done)


class Peer:
    """Accepts connections and collects requests; ``reply`` answers them, if it is set.

    Positions replace times: a sent byte arrives at the microsecond of its position.
    """

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self._decoder = mm.Decoder()
        self.history = History()
        self.links: list[ScriptedLink] = []
        self.asked: list[Any] = []
        """Decoded requests; an invalid request is its error."""
        self.sends: list[bytes] = []
        self.boot = 3
        self.refuses = False
        """Whether connections are refused."""
        self.arrives = 1 << 60
        """Positions up to this one arrive."""
        self.reply: Callable[[Any], bytes] | None = None
        self.direct = ScriptedAsker(self)
        self._unanswered: deque[tuple[ScriptedLink, Any]] = deque()

    def connect(self) -> ScriptedLink:
        link = ScriptedLink(self, len(self.links), self.boot)
        self.links.append(link)
        if self.refuses:
            self.world.call_after(LATENCY_US, link.lose, "refused")
        return link

    @property
    def link(self) -> ScriptedLink:
        """The newest connection."""
        return self.links[-1]

    @property
    def operations(self) -> list[Operation]:
        return self.history.operations

    def ask(self, link: ScriptedLink, command: int, body: bytes) -> None:
        """Collect an arrived request."""
        request: Any
        try:
            request = self._decoder.decode(command, body)
        except (mm.RequestError, mm.BodyError) as error:
            request = error
        self.asked.append(request)
        if link.is_open:
            self._unanswered.append((link, request))

    def run(self, us: int | None = None, steps: int = 100_000) -> None:
        """Let time pass, by ``us`` or until nothing is due; ``reply`` answers if it is set."""
        end_us = None if us is None else self.world.now_us + us
        if end_us is not None:
            self.world.call_at(end_us, lambda: None)
        self._reply_later()
        while self.world.now_us != end_us and self.world.step():
            self._reply_later()
            steps -= 1
            assert steps, "it never ends"

    def _reply_later(self) -> None:
        while self.reply is not None and self._unanswered:
            self.world.call_after(LATENCY_US, self._reply_to, *self._unanswered.popleft())

    def _reply_to(self, link: ScriptedLink, request: Any) -> None:
        if self.reply is not None and link.is_open:
            link.answer(self.reply(request))
