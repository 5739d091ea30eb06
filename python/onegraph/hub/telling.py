"""huggingface_hub's downloads, told to a function instead of drawn. Imports tqdm, as it does."""

from __future__ import annotations

import io
from typing import Any, ClassVar

from tqdm.std import tqdm  # type: ignore[import-untyped,unused-ignore]

from onegraph.hub.cache import Progress

__all__ = ["Telling", "telling"]


class Telling(tqdm):  # type: ignore[misc,unused-ignore]
    """A bar that draws nothing and tells `progress`."""

    monitor_interval = 0  # no thread that looks after the bars

    what: ClassVar[str]
    progress: ClassVar[Progress | None]
    #: What `progress` raised: a thread of huggingface_hub's may be the one that tells.
    raised: ClassVar[list[BaseException]]

    def __init__(self, *args: Any, **options: Any) -> None:
        # Where the bytes that came over the network are a bar of their own, one is enough.
        self._tells = not str(options.get("desc")).endswith("downloading bytes")
        super().__init__(*args, **options | {"file": io.StringIO(), "leave": False})

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Called by tqdm now and then, and in the end."""
        progress = type(self).progress
        if progress is None or self.raised or not self._tells:
            return
        try:
            progress(self.what, int(self.n), int(self.total) if self.total else None)
        except BaseException as e:
            self.raised.append(e)
            raise


def telling(what: str, progress: Progress | None, raised: list[BaseException]) -> type[Telling]:
    """A class of bars for one download; what `progress` raises is put into `raised` too."""
    told = None if progress is None else staticmethod(progress)
    return type("Bar", (Telling,), {"what": what, "progress": told, "raised": raised})
