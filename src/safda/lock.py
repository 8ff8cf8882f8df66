"""A lock that one process holds at a time and that does not outlive it, on one machine and on disks that many share."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safda.errors import SafdaError, SafdaWarning
from safda.io import disk_errors

_BEAT = 5.0  # seconds between two signs of life
_PATIENCE = 20.0  # seconds without one, after which an owner on another machine is taken for gone
_POLL = 0.2  # seconds between two looks


class InUse(SafdaError):
    """Another process has the lock."""


class Lock:
    """A file that says who holds something. It stays when the lock is let go, and is then empty.

    Two things keep others off. The system's own lock (flock), which ends with its process; most shared disks pass it
    on to other machines. For those that do not, the owner's name is in the file, with a count that goes on while it
    lives: an owner elsewhere whose count stands still is gone, and the lock is taken over.

    Args:
        path: the file.
        what: what is locked, to begin an error with.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path, self._what = path, what
        self._id = uuid.uuid4().hex
        self._ended = threading.Event()

    def acquire(self, wait: bool = False) -> None:
        """Take the lock, or say who has it.

        Args:
            wait: until whoever has it lets it go.
        """
        with disk_errors(self.path):
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            self._take(wait)
        self._beating = threading.Thread(target=self._beat, name="safda-lock", daemon=True)
        self._beating.start()

    def _take(self, wait: bool) -> None:
        try:
            while not self._is_free():
                if not wait:
                    raise InUse(f"{self._what}: is in use by {self._owner_name()}; wait until it has ended")
                time.sleep(_POLL)
            self._sign(0)
            self.check()
        except BaseException:
            os.close(self._file)
            raise

    def release(self) -> None:
        """Let the lock go."""
        self._ended.set()
        self._beating.join()
        if not self._is_taken_over():
            os.ftruncate(self._file, 0)
        os.close(self._file)

    def check(self) -> None:
        """Make sure that nobody has taken the lock over, as happens to a process that was asleep for long.

        Nor may its folder be gone: whoever goes on would make another, of which half is missing.
        """
        if not self.path.parent.is_dir():
            raise SafdaError(f"{self._what}: is gone; this process ends, too")
        if self._is_taken_over():
            raise SafdaError(f"{self._what}: was taken over by {self._owner_name()}; this process leaves it alone")

    def _is_free(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locks = True
        except BlockingIOError:
            return False
        except OSError:  # this disk knows no locks
            locks = False
        owner = self._read()
        if owner is None:  # whoever has it may be alive
            return False
        if not owner:
            return True
        pid, _, machine, *_ = [*owner.split(), "", "", ""]
        if machine == _machine():
            return locks or not _is_alive(pid)
        return self._stands_still(owner)

    def _stands_still(self, owner: str) -> bool:
        """Watch an owner on another machine, whose process cannot be looked for."""
        told = f"{self._what}: was in use by {self._owner_name()}; looking for {_PATIENCE:.0f} seconds if it still is"
        warnings.warn(told, SafdaWarning, stacklevel=2)
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            time.sleep(_POLL)
            now = self._read()
            if now is not None and now != owner:
                return not now
        return True

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(_BEAT) and not self._is_taken_over():
            count += 1
            with suppress(OSError):  # a disk that is away for a while
                self._sign(count)

    def _sign(self, count: int) -> None:
        line = f"{os.getpid()} {socket.gethostname()} {_machine()} {self._id} {count:010d}\n".encode()
        os.pwrite(self._file, line, 0)
        os.ftruncate(self._file, len(line))
        os.fsync(self._file)

    def _read(self) -> str | None:
        """Read who has it, by opening the file anew: so a shared disk is asked, and not what is remembered of it."""
        try:
            return self.path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def _is_taken_over(self) -> bool:
        """Whether the file does not name this one; where it cannot be read, the disk may be away for a while."""
        owner = self._read()
        return owner is not None and self._id not in owner.split()

    def _owner_name(self) -> str:
        pid, host, *_ = [*(self._read() or "").split(), "", ""]
        return f"process {pid} on {host}" if host else "another process"


@contextmanager
def locked(path: Path, what: str, wait: bool = False) -> Iterator[Lock]:
    """Hold a lock for a while."""
    lock = Lock(path, what)
    lock.acquire(wait)
    try:
        yield lock
    finally:
        lock.release()


def _machine() -> str:
    """Return what tells this machine, since it was started, from any other: hosts may share a name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:  # it is there, and another user's
        return True
    return True
