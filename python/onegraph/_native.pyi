import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, final

from numpy.typing import NDArray
from typing_extensions import Buffer

__version__: str
#: Encoding of keys and values where none is asked for.
DEFAULT_KV_TYPE: Literal["i16", "q8_0", "f32"]
MAX_SALT_BYTES: int
MAX_STOP_TOKENS: int
DEFAULT_CACHE_DIR_BYTES: int

def quant_types() -> list[tuple[str, int, int, int, bool]]: ...
def kv_types(on_card: bool) -> list[str]: ...
def dequantize(type_name: str, data: Buffer | NDArray[Any]) -> bytes: ...
def quantize(type_name: str, data: Buffer | NDArray[Any]) -> bytes: ...
def compile_kernels(
    path: str | os.PathLike[str],
    arch: str,
    *,
    n_ctx: int | None,
    max_batch: int,
    kv_type: str,
    prefill_chunk: int | None,
    nvrtc_folders: Sequence[str | os.PathLike[str]],
    progress: Callable[[int, int], object] | None,
) -> tuple[int, int]:
    """Compiles a model's kernels for an architecture into the cache: how many, and how many new."""

def cuda_devices(nvrtc_folders: Sequence[str | os.PathLike[str]]) -> str:
    """Cards, driver, compiler and kernel cache as JSON; what is missing says why."""

def cuda_read_peak(
    ordinal: int,
    nvrtc_folders: Sequence[str | os.PathLike[str]],
    bytes: int | None = None,
    turns: int = 10,
) -> tuple[float, int]:
    """Bytes a second at which a card reads its memory, and the bytes that were read for it."""

def check_sums(
    device: str, nvrtc_folders: Sequence[str | os.PathLike[str]], sums: int
) -> list[tuple[str, int, int]]:
    """Compares about `sums` sums of sub-blocks on a card with sums of integers: of each type its
    name, how many they were, and how many are not exact."""

def model_info(
    path: str | os.PathLike[str],
    n_ctx: int | None = None,
    max_batch: int = 8,
    kv_type: str = ...,
    device: str = "auto",
) -> str:
    """What the model file contains and what running it needs, as JSON.

    A model that cannot run is described too: `error` says why, `memory` is null. Raises `FileError`
    and `ModelError` if the file cannot be read, `ArgumentError` for the numbers.
    """

def fused_plan(path: str | os.PathLike[str], rows: int) -> str:
    """The fused plan of a step of so many rows, one op a line. Raises as `model_plan`."""

def model_plan(path: str | os.PathLike[str], json: bool = False) -> str:
    """The plan of the model, one op a line, or as JSON. Raises as `model_info`, and `ModelError`
    where the architecture is not supported."""

@final
class PlanRunner:
    """Runs a plan, given as JSON, on a device, with explicit buffers; tests stand on it."""

    def __new__(
        cls,
        device: str,
        plan: str,
        weights: dict[str, bytes] | None = None,
        *,
        n_slots: int = 1,
        n_ctx: int = 64,
        n_pages: int = 2,
        kv_type: str = "F32",
        threads: int = 1,
        capture: bool = False,
        fuse: bool = True,
        pdl: bool | None = None,
        nvrtc_folders: list[str] = ...,
        part: str = ...,
        draft: str | None = None,
    ) -> PlanRunner: ...
    def map_pages(self, slot: int, first: int, pages: list[int]) -> None: ...
    def write(self, name: str, rows: bytes) -> None: ...
    def forward(
        self,
        tokens: list[int],
        positions: list[int],
        slots: list[int],
        out_rows: list[int],
        types: list[int] = ...,
    ) -> None: ...
    def read(self, name: str) -> bytes: ...
    def profile(self, repeats: int) -> str: ...
    def saturated(self, slot: int) -> bool: ...
    def read_kv(self) -> bytes: ...
    def write_kv(self, bytes: bytes) -> None: ...
    def read_state(self, slot: int) -> bytes: ...
    def write_state(self, slot: int, values: bytes) -> None: ...

@final
class Tokenizer:
    """Text to token ids and back, from the metadata of a GGUF file (whole or vocabulary-only).

    Raises `FileError` if the file cannot be read, `ModelError` if its vocabulary is damaged or not
    supported.
    """

    def __new__(cls, path: str | os.PathLike[str]) -> Self: ...
    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of `text`.

        `add_special` adds the begin and end tokens the model was trained with. `parse_special`
        parses control tokens in the text: only for text from a trusted template.
        """

    def encode_rendering(self, rendering: Rendering, add_special: bool = False) -> list[int]:
        """Token ids of a rendered conversation. Control tokens are parsed only in the template's
        own parts; in inserted arguments, their spelling is plain text.
        """

    def _fewest(self, text: str) -> int:
        """The least number of tokens that a text can be, known without making them."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of `ids`; invalid UTF-8 is U+FFFD. `skip_special` leaves control tokens out."""

    def stream(self, skip_special: bool = True, continuation: bool = False) -> StreamDecoder:
        """A decoder fed one id at a time. `continuation` keeps a leading space."""

    def token_bytes(self, id: int) -> bytes:
        """The bytes of token `id`; not always complete characters."""

    def token_text(self, id: int) -> str:
        """The spelling of token `id` in the file."""

    def token_id(self, text: str) -> int | None:
        """The id of the token spelled `text` in the file."""

    def is_special(self, id: int) -> bool:
        """Whether `id` is a control or unknown token, which is not part of the text."""

    @property
    def n_vocab(self) -> int: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_id(self) -> int | None: ...
    @property
    def eot_id(self) -> int | None: ...
    @property
    def infill_ids(self) -> tuple[int, int, int] | None: ...
    @property
    def file_id(self) -> int | None: ...
    @property
    def add_bos(self) -> bool: ...
    @property
    def add_eos(self) -> bool: ...
    @property
    def end_of_text_ids(self) -> list[int]:
        """Ids that end generation, ascending."""

    @property
    def missing_bytes(self) -> bytes:
        """Bytes that no token spells; encoding drops them. Empty for most vocabularies."""

    def __len__(self) -> int: ...

@final
class StreamDecoder:
    """Decodes tokens one by one into whole characters. From `Tokenizer.stream`."""

    def push(self, id: int) -> str:
        """The text that `id` completes; often empty in the middle of a character."""

    def finish(self) -> str:
        """The incomplete rest, as U+FFFD."""

def tool_formats() -> list[tuple[str, str]]:
    """Name of each wire format of calls, and what a call looks like in it."""

@final
class Reading:
    """How to read the answers of a model with a chat template."""

    @staticmethod
    def without_tools(template: ChatTemplate) -> Reading: ...
    @staticmethod
    def with_tools(template: ChatTemplate, name: str | None) -> Reading:
        """Calls too: in the format of this name, or in the one that the template writes.

        Raises `ModelError` where that is none that is known.
        """

    @property
    def format(self) -> str | None: ...
    @property
    def writes(self) -> bool:
        """Whether the template writes the calls of a conversation."""

    @property
    def is_plain(self) -> bool: ...
    def written(self, name: str, arguments: str) -> list[tuple[str, bool]]: ...
    def shown(self, tokenizer: Tokenizer) -> list[int]: ...
    def behind(self, prompt: Rendering, *, continues: bool) -> Reading: ...
    def thought(self, prompt: Rendering, *, continues: bool) -> tuple[str, str, bool] | None: ...
    def constraint(
        self,
        tokenizer: Tokenizer,
        prompt: Rendering,
        *,
        continues: bool,
        text: tuple[str, list[str]] | None,
        tools: list[tuple[str, str]],
        several: bool,
        needed: bool,
    ) -> tuple[str, list[str]]: ...
    def answer(self, prompt: Rendering, tools: str, *, continues: bool, seed: int) -> Answer: ...

@final
class Answer:
    """An answer that is taken apart as it comes, into tuples that begin with their kind."""

    def push(self, text: str) -> list[tuple[Any, ...]]: ...
    def finish(self) -> list[tuple[Any, ...]]: ...

def sampling_defaults() -> dict[str, Any]:
    """Defaults of the sampling keywords that are numbers."""

def check_graph_mode(mode: str) -> None:
    """Raises where a word is no mode of graphs."""

def check_sampling(options: Mapping[str, Any]) -> None:
    """Raises where sampling keywords are out of range, whatever the model."""

@final
class Doorbell:
    """A file that is readable once a request that was given the bell has something new."""

    def __new__(cls) -> Self: ...
    def fileno(self) -> int: ...
    def answer(self) -> list[int]: ...

@final
class Loading:
    """A model that is being loaded; dropping it breaks that off."""

    def next(self) -> tuple[str, int, int] | Engine:
        """Waits a moment: what is going on, how much is done, and how much there is; or the model,
        once."""

    def cancel(self) -> None: ...

@final
class Stop:
    """Ends what a thread does within it: entered by the thread, told by another one."""

    def __new__(cls) -> Self: ...
    def tell(self) -> None:
        """Ends it soon, or before it begins."""

    def __enter__(self) -> None: ...
    def __exit__(self, kind: object, value: object, trace: object) -> None: ...

def go_on() -> None:
    """Raises `CancelledError` where the work of this thread is not wanted any more."""

@final
class Engine:
    """A loaded model; `onegraph.LLM` is its public face."""

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        *,
        device: str,
        n_ctx: int | None,
        max_batch: int,
        kv_type: str,
        kv_tokens: int | None,
        kv_host_bytes: int | None,
        cuda_graph: str,
        graph_batch_sizes: Sequence[int] | None,
        graph_max_batch: int | None,
        graph_padding: bool,
        warmup: bool,
        pdl: bool | None,
        threads: int | None,
        prefill_chunk: int | None,
        prefix_cache: bool,
        prefix_host_bytes: int | None,
        cache_dir: str | os.PathLike[str] | None,
        cache_dir_bytes: int,
        nvrtc_folders: Sequence[str | os.PathLike[str]],
        speculate: str,
        draft: str | None,
    ) -> Loading: ...
    def compile(self, given: tuple[str, list[str]]) -> None:
        """Compiles a constraint and keeps it: requests under it then begin at once."""

    def fits(self, text: str, given: tuple[str, list[str]]) -> bool:
        """Whether a text is one of a constraint's."""

    def encode(
        self,
        prompt: str | Rendering,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        most: int | None = None,
    ) -> list[int]:
        """Token ids of a prompt: of a text, to which `add_special` adds what the model expects
        around it, or of a rendering, which has all of that. One that leaves no room in the context
        is refused, before it is made tokens where that is certain; or where `most` says so, one of
        more tokens than that."""

    def encode_text(self, text: str, cut: bool) -> list[int]:
        """Token ids of a text to embed: as many of the first as the context holds where it is to
        be cut, of which a last one that ends a text stays; else one of more is refused."""

    def encode_pair(self, query: str, document: str) -> list[int]:
        """Token ids of a query and a document, as a reranker was trained to see them."""
    def check_room(self, tokens: int) -> None:
        """Raises where a prompt of so many tokens leaves no room in the context."""

    def submit(
        self,
        prompt: Sequence[int],
        options: Mapping[str, Any],
        *,
        priority: int = 0,
        timed_from: int = 0,
        together: int = 0,
        shown: Sequence[int] = ...,
    ) -> Generation: ...
    def offer(
        self,
        prompt: Sequence[int],
        options: Mapping[str, Any],
        bell: Doorbell,
        number: int,
        at_end: bool,
        *,
        priority: int,
        waited: float,
        shown: Sequence[int] = ...,
    ) -> Generation | None:
        """A request that rings `bell` as `number` whenever it has something new, or where `at_end`,
        once it has ended; None while the queue is full. It is in line for `waited` seconds already.
        """

    def save_prefix(
        self, prompt: Sequence[int], path: str | os.PathLike[str], salt: str | None
    ) -> int:
        """Saves the keys and values of a prompt, and the states behind it; the number of its
        tokens."""

    def load_prefix(self, path: str | os.PathLike[str], salt: str | None) -> int:
        """Takes what `save_prefix` saved; the number of its tokens."""

    def prefix_bytes(self) -> tuple[int, int, int, str | None]:
        """Bytes of what is kept of prefixes beside the device's pages: those of the host's memory,
        how many they may be, those of files, and why no more are written."""

    def check_ids(self, ids: Sequence[int]) -> None: ...
    def logits(self, ids: Sequence[int], path: str, out: Buffer | NDArray[Any]) -> None: ...
    def scores(
        self, ids: Sequence[int], top: int
    ) -> list[tuple[float, int, list[tuple[int, float]]]]: ...
    def embed(
        self,
        ids: Sequence[int],
        *,
        pooling: str | None,
        dimensions: int | None,
        normalize: bool,
        priority: int,
    ) -> Embedding: ...
    def offer_embedding(
        self,
        ids: Sequence[int],
        bell: Doorbell,
        number: int,
        *,
        pooling: str | None,
        dimensions: int | None,
        normalize: bool,
        priority: int,
        waited: float,
    ) -> Embedding | None:
        """A text that rings `bell` as `number` at its end; None while the queue is full. It is in
        line for `waited` seconds already."""

    def check_open(self) -> None: ...
    def verify_graph(
        self, ids: Sequence[int], *, batch_sizes: Sequence[int] | None, rtol: float, atol: float
    ) -> str: ...
    def profile_graph(
        self,
        *,
        batch_size: int,
        prompt: int | None,
        position: int,
        repeats: int,
        dot: str | os.PathLike[str] | None,
        stamps: bool,
    ) -> str: ...
    def graph_stats(self) -> str | None: ...
    def stats(self) -> str: ...
    def close(self) -> None: ...
    @property
    def path(self) -> Path: ...
    @property
    def device(self) -> str: ...
    @property
    def device_description(self) -> str: ...
    @property
    def n_ctx(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def looks_ahead(self) -> bool:
        """Whether it is an encoder, which sees a whole text at once and generates nothing."""
    @property
    def pooling(self) -> Literal["last", "mean", "none", "cls", "rank"] | None: ...
    @property
    def max_batch(self) -> int: ...
    @property
    def load_parts(self) -> list[tuple[str, float]]: ...
    @property
    def wanted_ctx(self) -> int: ...
    @property
    def unkept_kernels(self) -> str | None:
        """Why kernels that were compiled are not kept for the next load."""

    @property
    def no_card(self) -> str | None:
        """Why "auto" took the CPU."""

    @property
    def saturated_sequences(self) -> int: ...
    @property
    def load_seconds(self) -> float: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def chat_template(self) -> ChatTemplate | None: ...
    def template(self, source: str) -> ChatTemplate:
        """A chat template with the first and last token of this model."""

@final
class Generation:
    """A request on its way; dropping it cancels it."""

    @property
    def seed(self) -> int: ...
    def next(self) -> Generated | None: ...
    def poll(self) -> Generated | None: ...
    def ended(self) -> Generated | None:
        """All of it in one piece, once it has ended; None before."""

    def collect(self) -> Generated: ...
    def cancel(self) -> None: ...

@final
class Embedding:
    """A text that is being embedded; dropping it cancels it."""

    def poll(self, out: Buffer | NDArray[Any]) -> bool:
        """Writes the vector into `out`, float32, once it is there; says whether it is."""

    def collect(self, out: Buffer | NDArray[Any]) -> None:
        """Waits for the vector and writes it into `out`, float32."""

    def cancel(self) -> None: ...

@final
class Generated:
    """What came of a request since the last call."""

    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def logprobs(self) -> list[tuple[float, list[tuple[int, float]]]]: ...
    @property
    def finish_reason(self) -> Literal["stop", "length", "cancelled"] | None: ...
    @property
    def cut(self) -> Literal["max_tokens", "context"] | None: ...
    @property
    def stop_reason(self) -> int | str | None: ...
    @property
    def usage(self) -> tuple[int, int, int, int, int, int]: ...
    @property
    def timings(self) -> tuple[float, float, float, float, float, float, float]: ...

@final
class ChatTemplate:
    """A chat template (Jinja), with the semantics of `transformers`, in a sandbox.

    Raises `ModelError`, with the line, if the template is invalid.
    """

    def __new__(cls, source: str, bos_token: str = "<s>", eos_token: str = "</s>") -> Self: ...
    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The text of a conversation.

        `kwargs` are additional template variables. Raises `ModelError` if the template refuses the
        messages or exceeds its limits on steps or memory, `ArgumentError` for values other than
        dicts, lists, strings, numbers, bools and None.
        """

    def rendering(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> Rendering:
        """The text of a conversation as `render` returns it, with the parts that came from the
        arguments marked, for `Tokenizer.encode_rendering`. Raises what `render` raises.
        """

    @property
    def source(self) -> str:
        """The template as given."""

@final
class Rendering:
    """The text of a conversation, from `ChatTemplate.rendering`."""

    @property
    def text(self) -> str:
        """The text, as `ChatTemplate.render` returns it."""

    @property
    def given(self) -> list[tuple[int, int]]:
        """The parts of the text that came from the arguments, not from the template: start and stop
        of each, in characters, in order.
        """

    def with_parts(
        self, mark: str, texts: Sequence[Sequence[tuple[str, bool]]]
    ) -> Rendering | None:
        """A copy with other text in place of `mark` followed by an eight-digit number: by number,
        its parts, and whether control tokens in each are plain text. None if a number is missing.
        """

    def before(self, mark: str) -> Rendering | None:
        """The part before the last `mark` that came from the arguments; None if there is none."""
