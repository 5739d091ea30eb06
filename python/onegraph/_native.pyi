from typing import Any

from numpy.typing import NDArray
from typing_extensions import Buffer

__version__: str

def quant_types() -> list[tuple[str, int, int, int, bool]]: ...
def dequantize(type_name: str, data: Buffer | NDArray[Any]) -> bytes: ...
def quantize(type_name: str, data: Buffer | NDArray[Any]) -> bytes: ...

class PlanRunner:
    """Runs a plan, given as JSON, on a device, with explicit buffers; tests stand on it."""

    def __new__(
        cls,
        device: str,
        plan: str,
        weights: dict[str, bytes],
        *,
        n_slots: int = 1,
        n_ctx: int = 64,
        n_pages: int = 2,
        kv_type: str = "F32",
        threads: int = 1,
    ) -> PlanRunner: ...
    def map_pages(self, slot: int, first: int, pages: list[int]) -> None: ...
    def write(self, name: str, rows: bytes) -> None: ...
    def forward(
        self, tokens: list[int], positions: list[int], slots: list[int], out_rows: list[int]
    ) -> None: ...
    def read(self, name: str) -> bytes: ...
    def read_kv(self) -> bytes: ...
    def write_kv(self, bytes: bytes) -> None: ...
