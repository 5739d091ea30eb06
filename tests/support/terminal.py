"""A real (pseudo) terminal."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping


def drained(leader: int) -> bytes:
    """What the other side of a terminal writes until nobody has it open; closes this one."""
    said = b""
    try:
        while more := os.read(leader, 1 << 16):
            said += more
    except OSError:  # Linux's word for: the other side is gone
        pass
    os.close(leader)
    return said


class Terminal:
    """A program at a terminal of its own: what it prints is read, keys are typed."""

    def __init__(self, args: list[str], env: Mapping[str, str] = {}, columns: int = 80) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            env = os.environ | {"TERM": "xterm", "NO_COLOR": "1"} | dict(env)
            env.pop("COLUMNS", None)
            os.execvpe(args[0], args, env)
        size = struct.pack("HHHH", 25, columns, 0, 0)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, size)
        self.seen = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.status: int | None = None

    def type(self, text: str | bytes) -> None:
        os.write(self.fd, text.encode() if isinstance(text, str) else text)

    def read_until(self, ending: str, timeout: float = 120) -> str:
        """What is printed up to `ending`, which is taken too."""
        deadline = time.monotonic() + timeout
        while ending not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"no {ending!r} within {timeout} s, only {self.seen!r}"
            if not self._read(left):
                break
        assert ending in self.seen, f"the program ended without {ending!r}: {self.seen!r}"
        before, _, self.seen = self.seen.partition(ending)
        return before

    def read_for(self, timeout: float) -> str:
        """What is printed next, where anything is within so many seconds."""
        self._read(timeout)
        said, self.seen = self.seen, ""
        return said

    def _read(self, timeout: float) -> bool:
        if select.select([self.fd], [], [], timeout)[0]:
            try:
                more = os.read(self.fd, 1 << 16)
            except OSError:  # Linux's word for: the other side is gone
                return False
            # Line editing sends a few sequences of its own.
            # What is read may end in the middle of one, or of a character.
            self.seen += self._decoder.decode(more)
            self.seen = re.sub(r"\x1b\[\??[\d;]*[a-zA-Z@]", "", self.seen)
            return bool(more)
        return True

    def ended(self) -> bool:
        """Whether the program has."""
        if self.status is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def wait(self, timeout: float = 60) -> int:
        """The exit code; negative for a signal."""
        deadline = time.monotonic() + timeout
        while not self.ended() and time.monotonic() < deadline:
            self._read(0.05)
        assert self.status is not None, f"still running; it said {self.seen!r}"
        return self.status

    def close(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
