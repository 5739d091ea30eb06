"""`LLM`: a model, loaded and ready."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, overload

from onegraph import _native, arguments, foreign, hub, nvrtc, structured
from onegraph import progress as progress_bar
from onegraph.embedding import Embeds
from onegraph.errors import ArgumentError, OutOfMemoryError
from onegraph.generating import Chatting, Generates, Prompting
from onegraph.graphs import (
    GraphOptions,
    GraphProfile,
    GraphStats,
    GraphVerification,
    check_text,
)
from onegraph.hub import modelfile
from onegraph.loaded import KvType
from onegraph.progress import Told
from onegraph.prompts import Prompt, Prompts, batch
from onegraph.results import Scored, TopLogprob
from onegraph.stats import Stats
from onegraph.streams import naming, token_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["LLM"]

logger = logging.getLogger("onegraph")

_said_cpu = threading.Lock()  # taken once, by the first model that "auto" puts on the CPU


def _load(loading: _native.Loading, told: Told | None) -> _native.Engine:
    """Waits for a model and reports progress; an error of the callback ends the wait."""
    try:
        while not isinstance(now := loading.next(), _native.Engine):
            if told is not None:
                told(*now)
        return now
    except BaseException:
        loading.cancel()
        raise


#: Keywords of requests, some of which programs of other engines give to the model.
REQUESTED = {*Prompting.__annotations__, *Chatting.__annotations__, "n", "stream", "tools"}


class LLM(Generates, Embeds, metaclass=foreign.Answering):
    """A loaded model, ready to use. Threads may share it.

    model: a name such as "smollm2", "llama3.2" or "qwen3.5:4b", the path of a GGUF file (for a
        split model, its first shard), "hf:user/repo/file.gguf", "hf:user/repo:Q4_K_M" or
        "ollama:name:tag"
    device: "cpu", "cuda", "cuda:1", "cuda:0,1" (several GPUs together), or "auto", which uses the
        CPU only if there is no NVIDIA GPU
    n_ctx: maximum tokens of one sequence, prompt and output together; None takes the model's
        trained context, at most 8192, and on a GPU at most what its memory holds, with a warning.
        More than the trained context is an error
    max_batch: sequences that run at once, 1 to 1024; further requests wait
    kv_type: type of keys and values: "i16" or, with half the bytes and less accuracy, "q8_0", both
        with the same logits, bit for bit, on the CPU and every GPU; or, on the CPU only, "f32"
    kv_tokens: tokens of keys and values to allocate, for all sequences together; None takes
        `max_batch` times `n_ctx`. With fewer, sequences share them, and when they run out the last
        sequence in line is preempted until there is room: see `onegraph help cache`
    kv_host_bytes: bytes of host memory for preempted sequences; None takes 8 GiB, but at most a
        quarter of what is available. Requests that could need more than both together wait
    prefix_cache: cache the keys and values of prompts and outputs until their space is needed, so
        that a prompt with a cached prefix is processed only from where it differs; the output has
        the same bits either way. For layers with a recurrent state, such as Qwen3.5's, the state is
        saved at the end of each prompt and output, at the last multiple of 64 tokens before a
        prompt's end and every 2,048 tokens, and a prompt continues from the last of these.
        `Result.usage` counts `cached_tokens`
    prefix_host_bytes: bytes of host memory for prefixes evicted from the device, and for states.
        None takes 8 GiB, but at most a quarter of what is available; with 0, models with states
        process every prompt in full
    cache_dir: a folder where prefixes survive the process; None for no folder. Its files reveal
        prompts, so only their owner may read them
    cache_dir_bytes: maximum size of its files; the least recently used are deleted
    threads: CPU threads; None takes all that the machine has
    speculate: what drafts tokens for a step to verify; no token depends on it. "auto" uses the
        draft model if `draft` names one, else the model's own layer for that (multi-token
        prediction) if the file has one, as far as it pays; "mtp" and "draft" refuse to load
        without the one or the other, "mtp:3" and "draft:3" draft three tokens per round, and "off"
        loads neither. `onegraph help speculation` has more
    draft: a small model of the same vocabulary that drafts tokens, named like `model`; it is loaded
        beside the model
    progress: True or False to show a progress bar or not, None to show it in a terminal; or a
        function, called with what is going on, how much is done, and the total (or None)
    chat_template: an `onegraph.ChatTemplate`, or the source of one, instead of the model's own. For
        a model of ollama's without one, it is built from the Modelfile's TEMPLATE, if that is
        simple

    These apply to GPUs only:

    graph: an `onegraph.GraphOptions`: which decode steps are captured, and how they run
    warmup: capture all sizes and compile all kernels during the load instead of on first use, so
        that running requests never wait for it
    prefill_chunk: maximum tokens of a prompt per pass, a power of two from 64 to 4096; larger ones
        take more memory. None takes 512, or 2048 for a model with experts

    Raises `ArgumentError` for an option out of range, `FileError` if the file cannot be read,
    `ModelError` if it is damaged or not supported, `OutOfMemoryError`, and `DeviceError` if the
    device is missing or unusable: there is no silent fallback.
    """

    @foreign.keywords(REQUESTED)
    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str = "auto",
        n_ctx: int | None = None,
        max_batch: int = 8,
        kv_type: KvType = _native.DEFAULT_KV_TYPE,
        kv_tokens: int | None = None,
        kv_host_bytes: int | None = None,
        prefix_cache: bool = True,
        prefix_host_bytes: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_dir_bytes: int = _native.DEFAULT_CACHE_DIR_BYTES,
        graph: GraphOptions | None = None,
        warmup: bool = False,
        threads: int | None = None,
        prefill_chunk: int | None = None,
        speculate: str = "auto",
        draft: str | os.PathLike[str] | None = None,
        progress: bool | Callable[[str, int, int | None], None] | None = None,
        chat_template: str | _native.ChatTemplate | None = None,
    ) -> None:
        def optional(name: str, value: int | None) -> int | None:
            return None if value is None else arguments.integer(name, value)

        graphs = GraphOptions() if graph is None else graph
        if not isinstance(graphs, GraphOptions):
            raise arguments.refused("graph", graphs, "must be an onegraph.GraphOptions")
        options: dict[str, Any] = {
            "device": arguments.word("device", device),
            "n_ctx": optional("n_ctx", n_ctx),
            "max_batch": arguments.integer("max_batch", max_batch),
            "kv_type": arguments.word("kv_type", kv_type),
            "kv_tokens": optional("kv_tokens", kv_tokens),
            "kv_host_bytes": optional("kv_host_bytes", kv_host_bytes),
            "cuda_graph": graphs.mode,
            "graph_batch_sizes": graphs.batch_sizes,
            "graph_max_batch": graphs.max_batch,
            "graph_padding": graphs.padding,
            "pdl": graphs.pdl,
            "warmup": arguments.flag("warmup", warmup),
            "threads": optional("threads", threads),
            "prefill_chunk": optional("prefill_chunk", prefill_chunk),
            "speculate": arguments.word("speculate", speculate),
            "prefix_cache": arguments.flag("prefix_cache", prefix_cache),
            "prefix_host_bytes": optional("prefix_host_bytes", prefix_host_bytes),
            "cache_dir": (
                None if cache_dir is None else os.fspath(arguments.path("cache_dir", cache_dir))
            ),
            "cache_dir_bytes": arguments.integer("cache_dir_bytes", cache_dir_bytes),
        }
        model = arguments.path("model", model)
        draft = None if draft is None else arguments.path("draft", draft)
        if progress is not None and not callable(progress):
            progress = arguments.flag("progress", progress)
        with progress_bar.shown(progress) as told:
            # Words, not paths: a path's `__fspath__` is Python code, and where Python ends while
            # it runs below a native call, the process aborts.
            ref = hub.meant(model) if isinstance(model, str) else model
            path = os.fspath(hub.resolve(ref, progress=told))
            options["draft"] = None
            if draft is not None:
                its = hub.meant(draft) if isinstance(draft, str) else draft
                options["draft"] = os.fspath(hub.resolve(its, progress=told))
            source = modelfile.read(ref).template if isinstance(ref, str) else None
            options["nvrtc_folders"] = [os.fspath(folder) for folder in nvrtc.folders()]
            self._engine = _load(_native.Engine.load(path, **options), told)
        self._tokenizer = self._engine.tokenizer
        if chat_template is not None:
            self._template = self._read_template(chat_template)
        elif source is not None and self._engine.chat_template is None:
            self._template = self._read_template(source)
        self._kv_type = kv_type
        # Each is taken once, with the first such sequence or text.
        self._unsaid_saturated, self._unsaid_unpooled = threading.Lock(), threading.Lock()
        if (reason := self._engine.no_card) and _said_cpu.acquire(blocking=False):
            logger.warning('running on the CPU: %s; device="cpu" silences this', reason)
        logger.info(
            "loaded %s in %.2f s on %s",
            self.path.name,
            self._engine.load_seconds,
            self._engine.device_description,
        )
        if (stats := self.graph_stats()) and stats.captured:
            logger.info(
                "captured decode steps of %s rows in %.2f s, %.1f MiB",
                ", ".join(str(step.batch_size) for step in stats.captured),
                sum(step.seconds for step in stats.captured),
                sum(step.bytes for step in stats.captured) / 2**20,
            )
        for part, seconds in self._engine.load_parts:
            logger.debug("load, side by side: %s %.2f s", part, seconds)
        if reason := self._engine.unkept_kernels:
            logger.warning(
                "compiled kernels could not be cached, so the next load compiles them again: %s",
                reason,
            )
        if self._engine.n_ctx < self._engine.wanted_ctx:
            logger.warning(
                "GPU memory holds a context of %d tokens, not %d; "
                "a smaller max_batch leaves room for a longer one",
                self._engine.n_ctx,
                self._engine.wanted_ctx,
            )

    def tokenize(
        self, text: str, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of a text. `add_special` adds the special tokens that the model expects around
        it; `parse_special` parses control tokens in the text: only for trusted text.
        """
        self._engine.check_open()
        return self._tokenizer.encode(text, add_special, parse_special)

    def detokenize(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of token ids. `skip_special` leaves control tokens out."""
        self._engine.check_open()
        return self._tokenizer.decode(ids, skip_special)

    def fits(
        self,
        text: str,
        *,
        schema: Any = None,
        regex: str | None = None,
        grammar: str | None = None,
        choice: Sequence[str] | None = None,
    ) -> bool:
        """Whether a complete text conforms to a constraint as `generate` would enforce it: tests a
        constraint, or a text written for one, without running the model.

        Raises `ArgumentError` for an invalid constraint, and unless exactly one is given.
        """
        form = {"schema": schema, "regex": regex, "grammar": grammar, "choice": choice}
        constraint = structured.constraint(form)
        if constraint is None:
            raise ArgumentError(f"give one of {', '.join(form)}")
        self._engine.check_open()
        return self._engine.fits(arguments.text("text", text), constraint)

    def logits(
        self, ids: Sequence[int], path: Literal["prefill", "decode"] = "prefill"
    ) -> NDArray[np.float32]:
        """Logits after each of `ids`: float32 [len(ids), n_vocab].

        `path` selects how the model computes them: "prefill", many tokens at a time, or "decode",
        one token per generation step.
        """
        import numpy as np  # `import onegraph` must be quick

        by = arguments.word("path", path)
        tokens = arguments.integers("ids", ids)
        self._engine.check_ids(tokens)  # before memory is taken for them
        try:
            out = np.empty((len(tokens), self.n_vocab), dtype=np.float32)
        except MemoryError as e:
            raise OutOfMemoryError(
                f"logits of {len(tokens)} tokens: {e}; use fewer at a time"
            ) from e
        self._engine.logits(tokens, by, out.reshape(-1))
        self._say_saturated()
        return out

    @overload
    def score(self, text: Prompt, *, top: int = 0) -> list[Scored]: ...
    @overload
    def score(self, text: Prompts, *, top: int = 0) -> list[list[Scored]]: ...
    def score(self, text: Any, *, top: int = 0) -> Any:
        """Log-probabilities of a text: for each token, the natural logarithm of its probability
        given those before it, bit for bit what `generate` returns as `logprobs`. The first token
        has none.

        text: a text, token ids, or a list of either, which returns a list for each. A text gets the
            same special tokens as a prompt
        top: number of most probable tokens to return at each position, 0 to 100

        Raises `ContextError` for a text that does not fit the context, `ArgumentError` for token
        ids or a `top` out of range.
        """
        many = batch("text", text)
        found = []
        for i, one in enumerate([text] if many is None else many):
            name = "text" if many is None else f"text[{i}]"
            with naming(name):
                if isinstance(one, str):
                    ids = self._engine.encode(arguments.text(name, one), parse_special=False)
                else:
                    ids = arguments.integers(name, one)
            found.append(self._scored(ids, arguments.integer("top", top)))
        return found if many is not None else found[0]

    def _scored(self, ids: list[int], top: int) -> list[Scored]:
        def text(token: int) -> str:
            return token_text(self._tokenizer, token)

        found = [Scored(token, None, None, (), text(token)) for token in ids[:1]]
        scores = self._engine.scores(ids, top)
        for token, (logprob, better, best) in zip(ids[1:], scores, strict=True):
            shown = tuple(TopLogprob(t, lp, text(t)) for t, lp in best)
            found.append(Scored(token, logprob, better + 1, shown, text(token)))
        return found

    def save_prefix(
        self,
        prompt: str | Sequence[int],
        path: str | os.PathLike[str],
        *,
        cache_salt: str | None = None,
    ) -> int:
        """Processes a prompt and saves its keys, values and states to a file, for `load_prefix` in
        a process with the same model file, `kv_type`, kind of device and arithmetic; the salt is
        not saved. Returns its number of tokens.

        Raises `FileError` if the file cannot be written or the model has no prefix cache.
        """
        if isinstance(prompt, str):
            ids = self.tokenize(arguments.text("prompt", prompt))
        else:
            ids = arguments.integers("prompt", prompt)
        salt = None if cache_salt is None else arguments.text("cache_salt", cache_salt)
        return self._engine.save_prefix(ids, os.fspath(arguments.path("path", path)), salt)

    def load_prefix(self, path: str | os.PathLike[str], *, cache_salt: str | None = None) -> int:
        """Loads what `save_prefix` saved into the prefix cache, under a `cache_salt`. Returns its
        number of tokens.

        Raises `FileError` if the file is damaged or belongs to another model, `kv_type`, kind of
        device or arithmetic. A checksum detects damage, not malice: load only files you trust.
        """
        salt = None if cache_salt is None else arguments.text("cache_salt", cache_salt)
        return self._engine.load_prefix(os.fspath(arguments.path("path", path)), salt)

    @property
    def prefix_bytes(self) -> dict[str, int]:
        """Bytes of cached prefixes in host memory ("host"), the limit of that ("host_limit"), and
        bytes of the "files" in `cache_dir`.
        """
        host, limit, files, _ = self._engine.prefix_bytes()
        return {"host": host, "host_limit": limit, "files": files}

    @property
    def saturated_sequences(self) -> int:
        """Number of sequences so far with finite keys or values too large for the cache's type:
        above 1.1e15 for "i16", 8.3e6 for "q8_0". They are clamped to the largest value that it
        holds, so they differ from the model's; the first time is logged as a warning.
        """
        return self._engine.saturated_sequences

    def verify_graph(
        self,
        ids: Sequence[int] | None = None,
        *,
        batch_sizes: Sequence[int] | None = None,
        rtol: float = 0.0,
        atol: float = 0.0,
    ) -> GraphVerification:
        """Compares captured decode steps with the same steps launched kernel by kernel.

        Both process `ids` (None takes the first tokens of a fixed text) from the same state; before
        each replay every activation is set to NaN, so that a kernel missing from the graph is
        noticed. All logits, the bytes of keys and values, and the drawn tokens are compared. The
        result's `.ok` says whether all are equal, `.steps` has the findings for each captured size.
        Other requests wait meanwhile.

        batch_sizes: sizes to compare; None takes those captured so far. Sequences take as many rows
            as there are free slots, and padding the others
        rtol, atol: a logit may differ from the eager `e` by atol + rtol * |e|; 0 and 0: by no bit

        Raises `DeviceError` on a device without graphs, `ArgumentError` if nothing is captured or a
        number is out of range.
        """
        self._engine.check_open()
        if ids is None:
            # Enough to cross from one page of the cache into the next.
            ids = self.tokenize(check_text())[: min(80, self.n_ctx)]
        sizes = batch_sizes
        return GraphVerification.from_json(
            self._engine.verify_graph(
                arguments.integers("ids", ids),
                batch_sizes=None if sizes is None else arguments.integers("batch_sizes", sizes),
                rtol=arguments.number("rtol", rtol),
                atol=arguments.number("atol", atol),
            )
        )

    def profile_graph(
        self,
        batch_size: int = 1,
        *,
        prompt: int | None = None,
        position: int = 0,
        repeats: int = 20,
        dot: str | os.PathLike[str] | None = None,
        stamps: bool = False,
    ) -> GraphProfile:
        """The structure of the captured decode step of `batch_size` rows, and the time of its
        parts: medians of `repeats` measurements. Other requests wait meanwhile.

        prompt: profile the passes of a prompt of this many tokens and the draw after it, instead of
            a step
        position: tokens of each sequence before the step or the prompt
        dot: a file to write the graph to, in Graphviz' DOT language; several files for a piecewise
            step
        stamps: also run a step with kernels that record when their blocks reach each point

        Raises `DeviceError` on a device without graphs, `ArgumentError` if steps of this size are
        not captured or a number is out of range.
        """
        self._engine.check_open()
        return GraphProfile.from_json(
            self._engine.profile_graph(
                batch_size=arguments.integer("batch_size", batch_size),
                prompt=None if prompt is None else arguments.integer("prompt", prompt),
                position=arguments.integer("position", position),
                repeats=arguments.integer("repeats", repeats),
                dot=None if dot is None else arguments.path("dot", dot),
                stamps=arguments.flag("stamps", stamps),
            )
        )

    def graph_stats(self) -> GraphStats | None:
        """What was captured and how decode steps ran so far; None if there are no graphs."""
        text = self._engine.graph_stats()
        return None if text is None else GraphStats.from_json(text)

    def stats(self) -> Stats:
        """What is waiting, running and in use now, and totals since loading; never blocks.

        Raises `ClosedError` after `close`.
        """
        return Stats.from_json(self._engine.stats())

    @property
    def device(self) -> str:
        """Where the model runs: "cpu", or "cuda:N"."""
        return self._engine.device

    @property
    def kv_type(self) -> KvType:
        """Type of keys and values: "i16", "q8_0", or on the CPU "f32"."""
        return self._kv_type

    @property
    def n_ctx(self) -> int:
        """Maximum tokens of one sequence, prompt and output together."""
        return self._engine.n_ctx

    @property
    def n_vocab(self) -> int:
        """Width of the logits."""
        return self._engine.n_vocab

    @property
    def max_batch(self) -> int:
        """Sequences that run at once."""
        return self._engine.max_batch

    def close(self) -> None:
        """Ends all requests and frees the memory. Using the model afterwards raises
        `ClosedError`; closing it again does nothing.
        """
        self._engine.close()

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name):
            raise foreign.unknown(self, type(self), name)

    def __call__(self, *_args: Any, **_given: Any) -> NoReturn:
        raise TypeError(
            "an LLM is not callable: llm.generate continues a prompt, llm.chat answers "
            f"a conversation; {foreign.answer('llm', is_keyword=False)}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"LLM({str(self.path)!r}, device={self.device!r}, n_ctx={self.n_ctx}, "
            f"max_batch={self.max_batch})"
        )
