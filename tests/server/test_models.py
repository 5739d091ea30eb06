"""Models that are loaded when they are asked for, and unloaded for one another."""

import asyncio
import gc
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from onegraph import LLM, FileError, OutOfMemoryError
from onegraph.server.models import Model, Models, Turn
from onegraph.server.refusals import Refused


class Memory:
    """A memory that holds so many models, each of which takes so long to load."""

    def __init__(self, path: Path, room: int, seconds: float = 0.0) -> None:
        self.path = path
        self.seconds = seconds
        self.room = room
        self.loads: list[str] = []
        self.models = Models(
            {}, max_queue=8, folder={name: (path, self.load(name)) for name in "abc"}
        )

    def load(self, name: str) -> Callable[[], LLM]:
        def load() -> LLM:
            time.sleep(self.seconds)
            if len(self.there()) >= self.room:
                raise OutOfMemoryError(f"{name} needs more than there is")
            self.loads.append(name)
            return LLM(self.path, device="cpu", max_batch=2)

        return load

    def there(self) -> list[str]:
        return [model.name for model in self.models.all() if model.llm is not None]

    async def use(self, name: str) -> None:
        async with self.models.using(self.models.find(name)) as llm:
            assert llm.generate("tea", max_tokens=1).usage.completion_tokens <= 1


def test_the_one_used_longest_ago_gives_way(tiny: Path) -> None:
    async def run() -> None:
        memory = Memory(tiny, room=2)
        for name in "abab":
            await memory.use(name)
        assert memory.loads == ["a", "b"]
        await memory.use("c")
        assert memory.there() == ["b", "c"]
        await memory.use("a")
        assert memory.there() == ["a", "c"] and memory.loads == ["a", "b", "c", "a"]
        for model in memory.models.all():
            await memory.models.unload(model)
        assert memory.there() == []

    asyncio.run(run())


def test_one_that_is_used_stays(tiny: Path) -> None:
    async def run() -> None:
        memory = Memory(tiny, room=1)
        model = memory.models.find("a")
        async with memory.models.using(model) as llm:
            with pytest.raises(Refused, match="b cannot be loaded now: b needs more") as refused:
                await memory.use("b")
            assert refused.value.status == 503
            assert llm.generate("tea", max_tokens=1)
        await memory.use("b")
        assert memory.there() == ["b"]
        await memory.models.unload(memory.models.find("b"))

    asyncio.run(run())


def test_requests_for_one_model_load_it_once(tiny: Path) -> None:
    async def run() -> None:
        memory = Memory(tiny, room=3)
        await asyncio.gather(*(memory.use("a") for _ in range(8)))
        assert memory.loads == ["a"]
        model = memory.models.find("a")
        assert (model.users, model.line.slots) == (0, 2)
        await memory.models.unload(model)

    asyncio.run(run())


def test_a_load_goes_on_when_its_requests_are_gone(tiny: Path) -> None:
    async def run() -> None:
        memory = Memory(tiny, room=3, seconds=0.3)
        model = memory.models.find("a")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await memory.use("a")
        assert model.users == 0
        await memory.use("a")
        assert memory.loads == ["a"] and memory.there() == ["a"] and model.line.slots == 2
        await memory.models.unload(model)

    asyncio.run(run())


def test_a_load_that_fails_when_all_have_left_is_begun_anew(
    tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        memory = Memory(tiny, room=0, seconds=0.1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await memory.use("a")
        await asyncio.sleep(0.2)
        memory.room = 1
        await memory.use("a")
        assert memory.loads == ["a"]
        await memory.models.unload(memory.models.find("a"))

    asyncio.run(run())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_loads_at_once_do_not_take_each_others_room(tiny: Path) -> None:
    async def run() -> None:
        memory = Memory(tiny, room=1, seconds=0.05)
        await memory.use("a")
        await asyncio.gather(memory.use("b"), memory.use("c"))
        assert memory.loads == ["a", "b", "c"] and memory.there() == ["c"]
        await memory.models.unload(memory.models.find("c"))

    asyncio.run(run())


def test_one_that_is_given_never_goes(llm: LLM, tiny: Path) -> None:
    async def run() -> None:
        def load() -> LLM:
            raise OutOfMemoryError("no room")

        models = Models({"given": llm}, max_queue=1, folder={"more": (tiny, load)})
        with pytest.raises(Refused, match="no room"):
            async with models.using(models.find("more")):
                pass
        assert models.find(None).llm is llm and not models.find("given").may_go

    asyncio.run(run())


def test_a_file_that_is_gone_is_said_of_its_model_alone(tmp_path: Path) -> None:
    async def run() -> None:
        def load() -> LLM:
            return LLM(tmp_path / "gone.gguf")

        model = Model("gone", None, 1, load, tmp_path / "gone.gguf")

        async def nothing() -> bool:
            return False

        with pytest.raises(Refused, match=r"gone cannot be loaded: there is no file") as refused:
            await model.loaded(Turn(), nothing)
        assert refused.value.status == 503 and isinstance(refused.value.__cause__, FileError)

    asyncio.run(run())
