"""A card that several workers share."""

import fcntl
import threading
from pathlib import Path

from support import card_lock


def is_taken(path: Path) -> bool:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_measurement_waits_for_the_others_and_later_ones_wait_behind(tmp_path: Path) -> None:
    order: list[str] = []

    def use(name: str, alone: bool) -> None:
        with card_lock.held(tmp_path, alone=alone):
            order.append(name)

    with card_lock.held(tmp_path, alone=False):
        use("beside", alone=False)
        measuring = threading.Thread(target=use, args=("alone", True))
        measuring.start()
        while not is_taken(tmp_path / "card.gate"):
            assert measuring.is_alive()
        later = threading.Thread(target=use, args=("later", False))
        later.start()
        assert order == ["beside"]
    measuring.join()
    later.join()
    assert order == ["beside", "alone", "later"]
