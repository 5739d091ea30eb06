"""Whether the interpreter's lock is free while something is done."""

import threading
from collections.abc import Callable


def turns_beside(work: Callable[[], object]) -> int:
    """How often this thread has a turn, about a millisecond apart, while another does `work`; one
    that held the interpreter's lock throughout would leave none."""
    done = threading.Event()

    def run() -> None:
        try:
            work()
        finally:
            done.set()

    thread = threading.Thread(target=run)
    thread.start()
    turns = 0
    while not done.wait(0.001):
        turns += 1
    thread.join()
    return turns
