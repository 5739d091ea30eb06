from typing import Any

from numpy.typing import NDArray
from typing_extensions import Buffer

__version__: str

def quant_types() -> list[tuple[str, int, int, int, bool]]: ...
def dequantize(type_name: str, data: Buffer | NDArray[Any]) -> bytes: ...
def quantize(type_name: str, data: Buffer | NDArray[Any]) -> bytes: ...
