# Tests: tests/simulator/test_run.py
"""Apply the faults of a plan to a machine and its network, and restart the broker.

It acts as an operator's supervisor: a broker that ended for any reason is booted after a while.
After `Faults.end` no fault occurs, and the broker is up or about to boot.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from functools import partial, singledispatchmethod

from simulator import plan
from simulator.archive.rollup import Archiver
from simulator.history.operations import Boot, ClockStep
from simulator.machine.disk import CrashModel, SimDisk
from simulator.machine.machine import Machine
from simulator.machine.network import Link, Network
from simulator.machine.world import Event, World

RESTART_US = 1_000_000
"""Default delay of a restart."""
WATCH_US = 100_000
DELETING_US = 10_000_000
"""On a healthy disk, the longest time that deletions for a past reason take."""
SHORT_BYTES_MAX = 2048
"""Most bytes of a short write."""


class Faults:
    """The faults of one run, from `begin` on."""

    def __init__(
        self,
        world: World,
        machine: Machine,
        network: Network,
        faults: tuple[plan.AnyFault, ...],
        archiver: Archiver,
    ) -> None:
        self._world = world
        self._machine = machine
        self._disk: SimDisk = machine.disk
        self._network = network
        self._archiver = archiver
        self._faults = faults
        self._scheduled: list[Event] = []
        self._at_next_boot: list[plan.CallFault] = []
        self._armed: list[plan.CallFault] = []
        """Faults that wait for their disk call."""
        self._disk_error: plan.DiskError | None = None
        self._restart: Event | None = None
        self._capacity: int | None = None
        self._is_full = False
        self.clock_steps: list[ClockStep] = []
        self.has_rotted = False
        self.has_damaged_archive = False
        self._away = 0
        """Count of the archive's disappearances and returns."""
        self._older_lsn: int | None = None
        """The LSN up to which an older copy must hold the log to replace the archive."""
        self.done: list[str] = []
        """Applied faults in order, as text."""

    def begin(self) -> None:
        """Start the clock of the plan."""
        self._capacity = self._disk.capacity
        for fault in self._faults:
            self._scheduled.append(self._world.call_after(fault.at_us, self._strike, fault))

    def end(self) -> None:
        """End all faults and repair the repairable ones."""
        for event in self._scheduled:
            event.cancel()
        for fault in (*self._at_next_boot, *self._armed):
            self._world.trace(f"never struck: {fault}")
        self._at_next_boot.clear()
        self._disk_error = None
        self._disk.capacity = None
        self._machine.slow_factor = 1
        self._archive_well()
        self._machine.disarm()
        if not self._machine.is_up and (self._restart is None or self._restart.done):
            self._restart_after(0)

    def ended(self, boot: Boot) -> None:
        """Schedule the next boot after the broker ended."""
        fault, self._disk_error = self._disk_error, None
        if boot.end in ("failed", "refused"):
            self._restart_after(RESTART_US if fault is None else fault.down_us)
            if fault is not None and fault.power is not None:
                self._world.call_after(1, self._power_off, fault.power, fault.seed)

    def booting(self) -> None:
        """Arm the faults that wait for a boot."""
        waiting, self._at_next_boot = self._at_next_boot, []
        for fault in waiting:
            self._arm(fault)

    def _restart_after(self, us: int) -> None:
        if self._restart is not None:
            self._restart.cancel()
        self._restart = self._world.call_after(us, self._boot)

    def _boot(self) -> None:
        if not self._machine.is_up:
            self.booting()
            self._machine.boot()

    # -- what strikes ---------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self.done.append(text)
        self._world.trace(f"fault: {text}")

    def _strike(self, fault: plan.AnyFault) -> None:
        if isinstance(fault, plan.CallFault) and fault.from_boot:
            self._at_next_boot.append(fault)
        elif isinstance(fault, plan.CallFault) and fault.at_call is not None:
            self._arm(fault)
        else:
            self._happen(fault)

    def _arm(self, fault: plan.CallFault) -> None:
        if isinstance(fault, plan.DiskError):
            self._happen(fault)
        else:
            self._armed.append(fault)
            happen = partial(self._happen_armed, fault)
            self._machine.crash_at_call(fault.at_call or 1, happen, fault.at_name, fault.at_stuck)

    def _happen_armed(self, fault: plan.CallFault) -> None:
        self._armed.remove(fault)
        self._happen(fault)

    @singledispatchmethod
    def _happen(self, fault: plan.Fault) -> None:
        raise TypeError(f"a fault of an unknown kind: {fault!r}")

    @_happen.register
    def _kill(self, fault: plan.Kill) -> None:
        if self._machine.is_up:
            self._say("SIGKILL")
            self._machine.kill()
            self._restart_after(fault.down_us)

    @_happen.register
    def _power_loss(self, fault: plan.PowerLoss) -> None:
        self._power_off(fault.model, fault.seed)
        self._restart_after(fault.down_us)

    def _power_off(self, model: plan.PowerModel, seed: int) -> None:
        self._say(f"power loss, {model}")
        self._archiver.kill()
        self._machine.power_off(CrashModel(model), random.Random(seed))

    @_happen.register
    def _stop(self, fault: plan.Stop) -> None:
        if self._machine.is_ready:
            self._say("clean stop")
            self._machine.stop(partial(self._restart_after, fault.down_us))

    @_happen.register
    def _disk_fails(self, fault: plan.DiskError) -> None:
        nth = fault.at_call or 1
        self._say(f"{fault.error} at the next {fault.call} but {nth - 1}")
        self._disk_error = fault
        written = random.Random(fault.seed).randrange(SHORT_BYTES_MAX) if fault.short else None
        self._disk.fail(fault.call, nth, getattr(errno, fault.error), written)

    @_happen.register
    def _no_space(self, fault: plan.NoSpace) -> None:
        if not self._is_full:
            self._say("the disk is full")
            self._is_full = True
            self._disk.capacity = self._disk.used_bytes
            self._scheduled.append(self._world.call_after(fault.for_us, self._space_again))

    def _space_again(self) -> None:
        self._say("the disk has space again")
        self._is_full = False
        self._disk.capacity = self._capacity

    @_happen.register
    def _slow_disk(self, fault: plan.SlowDisk) -> None:
        self._say(f"the disk is {fault.factor} times slower")
        self._machine.slow_factor = fault.factor
        self._scheduled.append(self._world.call_after(fault.for_us, self._fast_again))

    def _fast_again(self) -> None:
        self._machine.slow_factor = 1

    def _links(self, client: str) -> list[Link]:
        return [link for link in self._network.links if link.client == client]

    @_happen.register
    def _drop(self, fault: plan.Drop) -> None:
        chance = self._world.chance(f"drop/{fault.at_us}/{fault.client}")
        for link in self._links(fault.client):
            self._say(f"{link.name} is cut")
            link.drop(chance.randrange(5_000_000), chance.randrange(2_000_000))

    @_happen.register
    def _stall(self, fault: plan.Stall) -> None:
        for link in self._links(fault.client):
            self._say(f"{link.name} stalls for {fault.for_us} us")
            link.stall(fault.for_us)

    @_happen.register
    def _stop_reading(self, fault: plan.StopReading) -> None:
        for link in self._links(fault.client):
            self._say(f"{link.name} reads nothing for {fault.for_us} us")
            link.pause()
            self._world.call_after(fault.for_us, link.resume)

    @_happen.register
    def _rot(self, fault: plan.Rot) -> None:
        chance = random.Random(fault.seed)
        held = {path: data.rstrip(b"\0") for path, data in self._disk.files().items()}
        path = chance.choice([path for path, data in held.items() if data] or [""])
        if path:
            position, bit = chance.randrange(len(held[path])), chance.randrange(8)
            self._say(f"bit {bit} of byte {position} of {path} rots")
            self._disk.flip(path, position, 1 << bit)
            self.has_rotted = True

    @_happen.register
    def _rollup(self, fault: plan.Rollup) -> None:
        if self._machine.archive is not None:
            self._say("the archive's job is run")
            self._archiver.start(fault)

    @_happen.register
    def _seal(self, fault: plan.Seal) -> None:
        if self._machine.is_ready and self._machine.core is not None:
            self._say("seal the log")
            self._machine.core.broker.archive_admin.seal(lambda lsn, error: None)

    @_happen.register
    def _archive_away(self, fault: plan.ArchiveAway) -> None:
        archive = self._machine.archive
        if archive is not None:
            self._say("the archive is gone" if fault.gone else "the archive is out of reach")
            archive.problem = "" if fault.gone else "it is out of reach"
            archive.is_gone = fault.gone
            self._away += 1
            if fault.older:
                self._watch_looks(self._away, archive.failed_looks)
            self._later(fault.for_us, self._archive_back)

    def _watch_looks(self, away: int, looks: int) -> None:
        """Wait until the broker knows that the archive is away and has finished its deletions."""
        archive = self._machine.archive
        if archive is None or away != self._away:
            return
        if archive.failed_looks > looks:
            self._later(DELETING_US, self._choose_older, away)
        else:
            self._later(WATCH_US, self._watch_looks, away, looks)

    def _choose_older(self, away: int) -> None:
        if away == self._away:
            self._older_lsn = self._archiver.let_go_lsn()

    def _archive_back(self) -> None:
        archive, older_lsn = self._machine.archive, self._older_lsn
        assert archive is not None, "it was away"
        self._away += 1
        self._older_lsn = None
        archive.problem, archive.is_gone = "", False
        if older_lsn is None:
            self._say("the archive is back")
        else:
            self._say(f"an older copy of the archive is back, with the log to {older_lsn}")
            self._archiver.kill()
            archive.restore(older_lsn)

    def _later(self, us: int, function: Callable[..., object], *arguments: object) -> None:
        self._scheduled.append(self._world.call_after(us, function, *arguments))

    @_happen.register
    def _archive_slow(self, fault: plan.ArchiveSlow) -> None:
        archive = self._machine.archive
        if archive is not None:
            self._say(f"the archive is {fault.factor} times slower")
            archive.slow_factor = fault.factor
            self._scheduled.append(self._world.call_after(fault.for_us, self._archive_fast))

    def _archive_fast(self) -> None:
        assert self._machine.archive is not None, "it was slow"
        self._machine.archive.slow_factor = 1

    def _archive_well(self) -> None:
        archive = self._machine.archive
        if archive is not None:
            archive.problem, archive.is_gone, archive.slow_factor = "", False, 1

    @_happen.register
    def _archive_damage(self, fault: plan.ArchiveDamage) -> None:
        archive = self._machine.archive
        held = sorted(archive.newest.held.items()) if archive is not None else []
        if archive is not None and held:
            chance = random.Random(fault.seed)
            key, of_key = chance.choice(held)
            first, end = chance.choice(of_key.covered)
            first = chance.randrange(first, end)
            end = min(end, first + chance.randint(1, 100))
            self._say(f"the archive loses {first} to {end} of {key}")
            archive.damage[key] = first, end
            self.has_damaged_archive = True

    @_happen.register
    def _clock_step(self, fault: plan.ClockStep) -> None:
        self._say(f"the wall clock is set by {fault.by_us} us")
        self._machine.wall_step_us += fault.by_us
        self.clock_steps.append(ClockStep(self._world.now_us, fault.by_us))
