# Tests: tests/powerloss/test_filesystem.py
"""``python -m benchmarks.powerloss.filesystem BACKING MOUNT RECORDING``: a recording file system.

Serves the directory BACKING at MOUNT and appends each change and each sync to RECORDING. Prints
``ready`` once it is mounted. SIGTERM, SIGINT or an unmount ends it; the recording is complete then.

A write is recorded when it comes from the kernel, in the order of the calls. A sync takes
``SYNC_SECONDS``, as on a disk, and covers the operations before its begin. Other requests are
served during a sync. BACKING itself is never synced.
"""

from __future__ import annotations

import errno
import heapq
import os
import resource
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.process import die_with_parent

from . import kernel
from .kernel import Opcode
from .recording import ROOT, Kind, Operation, Recorder

SYNC_SECONDS = 0.002


class FileSystemFailed(Exception):
    """The file system did not start; the message has its output."""


class Node:
    """A file or directory. Its descriptor keeps the inode, so that its number is unique."""

    def __init__(self, number: int, descriptor: int, mode: int) -> None:
        self.number = number
        self.descriptor = descriptor
        self.mode = mode
        self.lookups = 0
        self._opened: int | None = None

    @property
    def opened(self) -> int:
        """A descriptor to read and write the file."""
        if self._opened is None:
            self._opened = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self._opened

    @property
    def path(self) -> str:
        """A path to the file that does not depend on its names."""
        return f"/proc/self/fd/{self.descriptor}"

    @property
    def is_recorded(self) -> bool:
        """Whether it is a file or directory: sockets, pipes and symbolic links are not recorded."""
        return stat.S_ISREG(self.mode) or stat.S_ISDIR(self.mode)

    def status(self) -> os.stat_result:
        return os.fstat(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)
        if self._opened is not None:
            os.close(self._opened)


class FileSystem:
    """Carries out the kernel's requests on a directory and records the changes."""

    def __init__(self, backing: Path, recorder: Recorder) -> None:
        self._recorder = recorder
        self._nodes: dict[int, Node] = {}
        self._numbers: dict[int, int] = {}
        """Number by inode."""
        self._made = 0
        self._add(os.open(backing, os.O_PATH | os.O_CLOEXEC))
        self._calls: dict[int, Callable[[Node, bytes], bytes | None]] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._getattr,
            Opcode.SETATTR: self._setattr,
            Opcode.READLINK: self._readlink,
            Opcode.SYMLINK: self._symlink,
            Opcode.MKNOD: self._mknod,
            Opcode.MKDIR: self._mkdir,
            Opcode.UNLINK: self._unlink,
            Opcode.RMDIR: self._rmdir,
            Opcode.RENAME: self._rename,
            Opcode.RENAME2: self._rename2,
            Opcode.LINK: self._link,
            Opcode.READ: self._read,
            Opcode.WRITE: self._write,
            Opcode.STATFS: self._statfs,
            Opcode.READDIR: self._readdir,
        }

    @property
    def position(self) -> int:
        """Number of recorded operations."""
        return self._recorder.position

    def call(self, opcode: int, number: int, body: bytes) -> bytes:
        """Carry out a request and return its answer.

        :raises OSError: as the system call does.
        """
        call = self._calls.get(opcode)
        if call is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return call(self._nodes[number], body) or b""

    def end_sync(self, number: int, covered: int) -> None:
        """Record the end of a sync."""
        self._record(Kind.SYNC, self._nodes[number], position=covered)

    def forget(self, number: int, lookups: int) -> None:
        """Drop references of the kernel; close a file that has neither names nor references."""
        node = self._nodes.get(number)
        if node is None or number == ROOT:
            return
        node.lookups -= lookups
        status = node.status()
        if node.lookups <= 0 and status.st_nlink == 0:
            del self._nodes[number], self._numbers[status.st_ino]
            node.close()

    def _record(self, kind: Kind, node: Node, **rest: object) -> None:
        if node.is_recorded:
            self._recorder.append(Operation(kind, node.number, **rest))  # type: ignore[arg-type]

    def _add(self, descriptor: int) -> Node:
        """Return the node of an open file, a new one if needed; takes over the descriptor."""
        status = os.fstat(descriptor)
        number = self._numbers.get(status.st_ino)
        if number is not None:
            os.close(descriptor)
            return self._nodes[number]
        self._made += 1
        node = Node(self._made, descriptor, status.st_mode)
        self._nodes[node.number] = node
        self._numbers[status.st_ino] = node.number
        return node

    def _find(self, directory: Node, name: str) -> Node:
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        return self._add(os.open(name, flags, dir_fd=directory.descriptor))

    def _entry(self, node: Node) -> bytes:
        node.lookups += 1
        return kernel.entry_answer(node.number, node.status())

    # -- names -----------------------------------------------------------------------------------

    def _lookup(self, directory: Node, body: bytes) -> bytes:
        return self._entry(self._find(directory, _name(body)))

    def _mknod(self, directory: Node, body: bytes) -> bytes:
        mode, _, _, _ = kernel.MKNOD.unpack_from(body)
        name = _name(body[kernel.MKNOD.size :])
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        os.mknod(name, mode, dir_fd=directory.descriptor)
        return self._made_entry(Kind.CREATE, directory, name)

    def _mkdir(self, directory: Node, body: bytes) -> bytes:
        mode, _ = kernel.MKDIR.unpack_from(body)
        name = _name(body[kernel.MKDIR.size :])
        os.mkdir(name, mode, dir_fd=directory.descriptor)
        return self._made_entry(Kind.MKDIR, directory, name)

    def _made_entry(self, kind: Kind, directory: Node, name: str) -> bytes:
        node = self._find(directory, name)
        self._record(kind, node, directory=directory.number, name=name)
        return self._entry(node)

    def _symlink(self, directory: Node, body: bytes) -> bytes:
        name, target = (os.fsdecode(part) for part in body.split(b"\0")[:2])
        os.symlink(target, name, dir_fd=directory.descriptor)
        return self._entry(self._find(directory, name))

    def _readlink(self, node: Node, body: bytes) -> bytes:
        return os.fsencode(os.readlink("", dir_fd=node.descriptor))

    def _link(self, directory: Node, body: bytes) -> bytes:
        (number,) = kernel.LINK.unpack_from(body)
        node, name = self._nodes[number], _name(body[kernel.LINK.size :])
        os.link(node.path, name, dst_dir_fd=directory.descriptor, follow_symlinks=True)
        self._record(Kind.LINK, node, directory=directory.number, name=name)
        return self._entry(node)

    def _unlink(self, directory: Node, body: bytes) -> None:
        node = self._find(directory, _name(body))
        os.unlink(_name(body), dir_fd=directory.descriptor)
        self._record(Kind.UNLINK, node, directory=directory.number, name=_name(body))

    def _rmdir(self, directory: Node, body: bytes) -> None:
        node = self._find(directory, _name(body))
        os.rmdir(_name(body), dir_fd=directory.descriptor)
        self._record(Kind.UNLINK, node, directory=directory.number, name=_name(body))

    def _rename(self, directory: Node, body: bytes) -> None:
        (number,) = kernel.RENAME.unpack_from(body)
        self._renamed(directory, number, body[kernel.RENAME.size :])

    def _rename2(self, directory: Node, body: bytes) -> None:
        number, flags, _ = kernel.RENAME2.unpack_from(body)
        if flags:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._renamed(directory, number, body[kernel.RENAME2.size :])

    def _renamed(self, directory: Node, number: int, names: bytes) -> None:
        old, new = (os.fsdecode(part) for part in names.split(b"\0")[:2])
        node, target = self._find(directory, old), self._nodes[number]
        os.rename(old, new, src_dir_fd=directory.descriptor, dst_dir_fd=target.descriptor)
        place = {"directory": directory.number, "name": old}
        self._record(Kind.RENAME, node, **place, new_directory=number, new_name=new)

    def _readdir(self, directory: Node, body: bytes) -> bytes:
        _, place, size, *_ = kernel.READ.unpack_from(body)
        listed = os.open(directory.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            names = [".", "..", *sorted(os.listdir(listed))]
            answer = b""
            for at, name in enumerate(names[place:], place + 1):
                found = os.stat(name, dir_fd=listed, follow_symlinks=False)
                entry = kernel.directory_entry(found.st_ino, os.fsencode(name), found.st_mode, at)
                if len(answer) + len(entry) > size:
                    break
                answer += entry
        finally:
            os.close(listed)
        return answer

    # -- files -----------------------------------------------------------------------------------

    def _getattr(self, node: Node, body: bytes) -> bytes:
        return kernel.attributes_answer(node.number, node.status())

    def _setattr(self, node: Node, body: bytes) -> bytes:
        valid, _, _, size, _, accessed, changed, _, *rest = kernel.SET_ATTRIBUTES.unpack_from(body)
        accessed_ns, changed_ns, _, mode, _, owner, group, _ = rest
        if valid & kernel.SET_SIZE:
            os.truncate(node.opened, size)
            self._record(Kind.RESIZE, node, position=size)
        if valid & kernel.SET_MODE:
            os.chmod(node.path, stat.S_IMODE(mode))
        if valid & (kernel.SET_OWNER | kernel.SET_GROUP):
            has_owner, has_group = valid & kernel.SET_OWNER, valid & kernel.SET_GROUP
            os.chown(node.path, owner if has_owner else -1, group if has_group else -1)
        if valid & (kernel.SET_ACCESS_TIME | kernel.SET_CHANGE_TIME):
            now = node.status()
            times = [now.st_atime_ns, now.st_mtime_ns]
            if valid & kernel.SET_ACCESS_TIME:
                times[0] = accessed * 10**9 + accessed_ns
            if valid & kernel.SET_CHANGE_TIME:
                times[1] = changed * 10**9 + changed_ns
            os.utime(node.path, ns=(times[0], times[1]))
        return kernel.attributes_answer(node.number, node.status())

    def _read(self, node: Node, body: bytes) -> bytes:
        _, position, size, *_ = kernel.READ.unpack_from(body)
        return os.pread(node.opened, size, position)

    def _write(self, node: Node, body: bytes) -> bytes:
        _, position, size, *_ = kernel.READ.unpack_from(body)
        data = body[kernel.READ.size : kernel.READ.size + size]
        done = os.pwrite(node.opened, data, position)
        self._record(Kind.WRITE, node, position=position, data=data[:done])
        return kernel.WRITTEN.pack(done, 0)

    def _statfs(self, node: Node, body: bytes) -> bytes:
        return kernel.statfs_answer(os.statvfs(node.path))


class Server:
    """Reads requests from the kernel and answers them, one at a time except for syncs."""

    def __init__(self, device: int, files: FileSystem) -> None:
        self._device = device
        self._files = files
        self._syncs: list[tuple[float, int, int, int]] = []
        """End time, request, file and covered position of each sync."""

    def serve(self) -> None:
        """Serve until the file system is unmounted."""
        poll = select.poll()
        poll.register(self._device, select.POLLIN)
        while True:
            wait = (self._syncs[0][0] - time.monotonic()) * 1000 if self._syncs else None
            ready = poll.poll(None if wait is None else max(0.0, wait))
            self._end_syncs()
            if not ready:
                continue
            try:
                request = os.read(self._device, kernel.REQUEST_BYTES)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                if error.errno == errno.ENODEV:
                    return
                raise
            self._serve_request(request)

    def _end_syncs(self) -> None:
        while self._syncs and self._syncs[0][0] <= time.monotonic():
            _, unique, number, covered = heapq.heappop(self._syncs)
            self._files.end_sync(number, covered)
            self._answer(unique)

    def _serve_request(self, request: bytes) -> None:
        _, opcode, unique, number, *_ = kernel.REQUEST_HEADER.unpack_from(request)
        body = request[kernel.REQUEST_HEADER.size :]
        try:
            if opcode in (Opcode.FSYNC, Opcode.FSYNCDIR):
                end = time.monotonic() + SYNC_SECONDS
                heapq.heappush(self._syncs, (end, unique, number, self._files.position))
            elif opcode == Opcode.FORGET:
                self._files.forget(number, *kernel.FORGET.unpack_from(body))
            elif opcode == Opcode.BATCH_FORGET:
                count, _ = kernel.FORGET_COUNT.unpack_from(body)
                many = body[kernel.FORGET_COUNT.size :][: count * kernel.FORGET_ONE.size]
                for one, lookups in kernel.FORGET_ONE.iter_unpack(many):
                    self._files.forget(one, lookups)
            elif opcode == Opcode.INIT:
                self._answer(unique, kernel.init_answer(body))
            elif opcode not in (Opcode.INTERRUPT, Opcode.DESTROY):
                self._answer(unique, self._files.call(opcode, number, body))
        except OSError as error:
            self._answer(unique, error=error.errno or errno.EIO)

    def _answer(self, unique: int, body: bytes = b"", error: int = 0) -> None:
        size = kernel.ANSWER_HEADER.size + len(body)
        try:
            os.writev(self._device, [kernel.ANSWER_HEADER.pack(size, -error, unique), body])
        except OSError as gone:
            if gone.errno not in (errno.ENOENT, errno.ENODEV):  # aborted or unmounted
                raise


class RecordedDirectory:
    """A mounted directory, served by a process of its own; use it as a context."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "mounted"
        self.recording = directory / "recording"
        self._backing = directory / "backing"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> RecordedDirectory:
        """Mount the directory.

        :raises FileSystemFailed: it cannot be mounted.
        """
        for path in (self.path, self._backing):
            path.mkdir(parents=True)
        arguments = [str(path) for path in (self._backing, self.path, self.recording)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.powerloss.filesystem", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self.__exit__()
            raise FileSystemFailed(f"nothing was mounted on {self.path}")
        return self

    @property
    def pid(self) -> int:
        """Process id of the server. While it is stopped (SIGSTOP), the directory hangs."""
        assert self._process is not None
        return self._process.pid

    def __exit__(self, *_: object) -> None:
        """Unmount the directory; the recording is complete then."""
        assert self._process is not None
        with self._process:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()
        kernel.unmount(self.path)  # in case the process was killed


def _name(body: bytes) -> str:
    return os.fsdecode(body[: body.index(b"\0")])


def main(backing: Path, mounted: Path, recording: Path) -> int:
    """Serve until the unmount and return the exit code."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    os.umask(0)  # The kernel has applied the caller's umask.
    recorder = Recorder(recording)
    device = kernel.mount(mounted)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    print("ready", flush=True)
    try:
        Server(device, FileSystem(backing, recorder)).serve()
    finally:
        recorder.close()
        kernel.unmount(mounted)
    return 0


def _end(*_: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:4])))
