"""What a model is asked for: `generate`, `chat`, `agenerate` and `achat` of `LLM`."""

from __future__ import annotations

import functools
import selectors
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack, overload

from onegraph import _native, arguments, conversations, structured
from onegraph import progress as progress_bar
from onegraph.answers import Reader
from onegraph.errors import ArgumentError, ClosedError, ModelError
from onegraph.functions import Offered, offered
from onegraph.loaded import Loaded
from onegraph.progress import Told
from onegraph.prompts import Prompt, Prompts, batch, preparing
from onegraph.results import Result
from onegraph.sampling import Sampling, SamplingOptions, resolve, takes_sampling
from onegraph.stats import Stats, so_far
from onegraph.streams import Ask, AsyncStream, Job, Stream, naming, whole

__all__ = ["Generates"]

#: A conversation; a text is one message of the user.
Messages = str | Sequence[Mapping[str, Any]]
Conversations = list[str] | Sequence[Sequence[Mapping[str, Any]]]
#: Functions, and descriptions of functions. What type checkers make of a list of several functions
#: is no list of callables.
Tools = Sequence[Any] | None
#: Whether the model has to call a tool, and which.
ToolChoice = Literal["auto", "none", "required"] | Mapping[str, Any]

#: Outputs of one prompt.
MAX_N = 1024

#: Readings that are kept: one for each chat template, with tools and without.
MAX_READINGS = 64

#: Arguments of `ChatTemplate.render` that are no variables of the template.
TEMPLATE_ARGUMENTS = ("messages", "tools", "add_generation_prompt")


class Asking(SamplingOptions, total=False):
    """Keywords of every request; `generate` and `chat` say what they mean."""

    priority: int
    sampling: Sampling | None


class Prompting(Asking, total=False):
    """Keywords of `generate` and `agenerate`, but for what the type of the result depends on."""

    suffix: str | None
    echo: bool


class Chatting(Asking, total=False):
    """Keywords of `chat` and `achat`, but for what the type of the result depends on."""

    tool_choice: ToolChoice
    parallel_tool_calls: bool
    tool_format: str | None
    chat_template: str | _native.ChatTemplate | None
    continue_final_message: bool
    template_kwargs: Mapping[str, Any] | None
    parse_special: bool


class Whole(TypedDict, total=False):
    """Keywords of calls that wait for all of their output."""

    stream: Literal[False]
    progress: bool | Told | None


class PromptingWhole(Prompting, Whole, total=False): ...


class ChattingWhole(Chatting, Whole, total=False): ...


class Generates(Loaded):
    """The part of an `LLM` that takes requests."""

    _template: _native.ChatTemplate | None = None

    @functools.cached_property
    def chat_template(self) -> _native.ChatTemplate | None:
        """The template for conversations: the one passed at loading, otherwise the model file's;
        None if there is none.

        Raises `ModelError` if it is invalid.
        """
        return self._template or self._engine.chat_template

    @overload
    def generate(self, prompt: Prompt, **options: Unpack[PromptingWhole]) -> Result: ...
    @overload
    def generate(self, prompt: Prompts, **options: Unpack[PromptingWhole]) -> list[Result]: ...
    @overload
    def generate(
        self, prompt: Prompt | Prompts, *, n: int | None, **options: Unpack[PromptingWhole]
    ) -> Any: ...
    @overload
    def generate(
        self, prompt: Prompt, *, stream: Literal[True], **options: Unpack[Prompting]
    ) -> Stream: ...
    @overload
    def generate(
        self,
        prompt: Iterable[Prompt],
        *,
        as_completed: Literal[True],
        **options: Unpack[PromptingWhole],
    ) -> Iterator[tuple[int, Result]]: ...
    @takes_sampling
    def generate(
        self,
        prompt: Prompt | Iterable[Prompt],
        *,
        stream: bool = False,
        as_completed: bool = False,
        n: int | None = None,
        suffix: str | None = None,
        echo: bool = False,
        priority: int = 0,
        sampling: Sampling | None = None,
        progress: bool | Told | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Any:
        """Continues a prompt: a text, which is tokenized with the model's special tokens around it,
        or token ids, which are taken as they are.

        A list of prompts runs as one batch and returns a list of results, each equal to that of its
        own call. With `stream`, returns the pieces as they are generated; leaving the stream
        cancels it.

        as_completed: return an iterator over pairs of a prompt's index and its result, in order of
            completion. Prompts may then come from any iterable, which is read only as fast as
            requests can run: a million take no more memory than a few. Leaving the iterator cancels
            running requests
        n: return a list of this many results for each prompt, 1 to 1024. Each result's seed is one
            above the previous, or random if none is given; each equals its own call with its seed
        suffix: fill the gap between the prompt and this text, using the model's own
            fill-in-the-middle tokens; an error if it has none
        echo: start the text with the prompt's; `token_ids` and `logprobs` do not include it
        priority: order when there is not room for all, -100 to 100: higher first, and first come
            first served among equals. One step counts as 10 seconds of waiting, so no request waits
            forever
        sampling: an `onegraph.Sampling`; keywords override it
        progress: True or False to show a progress bar or not, None to show it for a list in a
            terminal; or a function, called with what is going on, how many are done, and how many
            there are

        Raises `ContextError` if a prompt leaves no room in the context, `ArgumentError` for a
        parameter out of range, `ClosedError` after `close`.
        """
        resolved = resolve(options, sampling)
        urgency = arguments.integer("priority", priority)
        echoes = arguments.flag("echo", echo)

        def job(given: Any) -> Job:
            return self._prompts(given, resolved, n, echoes, suffix=suffix)

        if arguments.flag("as_completed", as_completed):
            _check_several("prompt", prompt, int, stream, n)
            return self._completed("prompt", prompt, job, urgency, progress)
        return self._run(job(prompt), stream, progress, urgency)

    @overload
    def chat(
        self, messages: Messages, tools: Tools = None, **options: Unpack[ChattingWhole]
    ) -> Result: ...
    @overload
    def chat(
        self, messages: Conversations, tools: Tools = None, **options: Unpack[ChattingWhole]
    ) -> list[Result]: ...
    @overload
    def chat(
        self,
        messages: Messages | Conversations,
        tools: Tools = None,
        *,
        n: int | None,
        **options: Unpack[ChattingWhole],
    ) -> Any: ...
    @overload
    def chat(
        self,
        messages: Messages,
        tools: Tools = None,
        *,
        stream: Literal[True],
        **options: Unpack[Chatting],
    ) -> Stream: ...
    @overload
    def chat(
        self,
        messages: Iterable[Messages],
        tools: Tools = None,
        *,
        as_completed: Literal[True],
        **options: Unpack[ChattingWhole],
    ) -> Iterator[tuple[int, Result]]: ...
    @takes_sampling
    def chat(
        self,
        messages: Messages | Iterable[Messages],
        tools: Tools = None,
        *,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        tool_format: str | None = None,
        stream: bool = False,
        as_completed: bool = False,
        n: int | None = None,
        chat_template: str | _native.ChatTemplate | None = None,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        parse_special: bool = False,
        priority: int = 0,
        sampling: Sampling | None = None,
        progress: bool | Told | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Any:
        """Answers a conversation, such as `[{"role": "user", "content": "Hi"}]`, using the model's
        own chat template. A string is a single user message. A list of conversations runs as one
        batch and returns a list of results.

        A message's content may be a list of text parts, as in the OpenAI API; they are joined.

        tools: functions that the model may call, described by their annotations and docstrings, or
            descriptions in OpenAI's form. `Result.tool_calls` has the model's calls. An error if
            the template has no place for tools or writes calls in an unknown format; see
            `onegraph help tools`
        tool_choice: "none" leaves the tools out of the prompt, "required" forces a call, {"type":
            "function", "function": {"name": ...}} forces a call of this one
        parallel_tool_calls: False limits an answer to one call
        tool_format: the format of calls, if the template does not show it: one of those that the
            error lists
        chat_template: a template to use instead of the model's: an `onegraph.ChatTemplate`, or its
            source
        continue_final_message: continue the last message, which must be the assistant's, instead of
            starting a new answer
        template_kwargs: additional template variables, such as {"enable_thinking": False}
        parse_special: parse control tokens such as `<|im_end|>` in messages, tools and variables:
            only if all of them are trusted. By default only the template can write them, and their
            spelling elsewhere is plain text
        as_completed, n, priority, sampling, progress: as in `generate`

        Raises `ModelError` if the model has no template or the template refuses the messages, and
        what `generate` raises.
        """
        resolved = resolve(options, sampling)
        urgency = arguments.integer("priority", priority)

        def job(given: Any) -> Job:
            return self._conversations(
                given,
                resolved,
                n,
                tools=tools,
                tool_choice=tool_choice,
                parallel=parallel_tool_calls,
                tool_format=tool_format,
                chat_template=chat_template,
                continues=continue_final_message,
                template_kwargs=template_kwargs,
                parse_special=parse_special,
            )

        if arguments.flag("as_completed", as_completed):
            _check_several("messages", messages, Mapping, stream, n)
            return self._completed("messages", messages, job, urgency, progress)
        return self._run(job(messages), stream, progress, urgency)

    @overload
    def agenerate(self, prompt: Prompt, **options: Unpack[Prompting]) -> AsyncStream[Result]: ...
    @overload
    def agenerate(
        self, prompt: Prompts, **options: Unpack[Prompting]
    ) -> AsyncStream[list[Result]]: ...
    @overload
    def agenerate(
        self, prompt: Prompt | Prompts, *, n: int | None, **options: Unpack[Prompting]
    ) -> AsyncStream[Any]: ...
    @takes_sampling
    def agenerate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        n: int | None = None,
        suffix: str | None = None,
        echo: bool = False,
        priority: int = 0,
        sampling: Sampling | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Any:
        """`generate` for asyncio: blocks neither the event loop nor a thread. `await` returns what
        `generate` returns; `async for` iterates over the pieces of one prompt. Leaving the loop
        early, or cancelling the task, cancels the generation. See `AsyncStream`.
        """
        resolved = resolve(options, sampling)
        urgency = arguments.integer("priority", priority)
        echoes = arguments.flag("echo", echo)
        return AsyncStream(
            self,
            preparing(
                lambda: self._prompts(prompt, resolved, n, echoes, suffix=suffix),
                prompt,
                compiles=resolved["constraint"] is not None,
            ),
            urgency,
        )

    @overload
    def achat(
        self, messages: Messages, tools: Tools = None, **options: Unpack[Chatting]
    ) -> AsyncStream[Result]: ...
    @overload
    def achat(
        self, messages: Conversations, tools: Tools = None, **options: Unpack[Chatting]
    ) -> AsyncStream[list[Result]]: ...
    @overload
    def achat(
        self,
        messages: Messages | Conversations,
        tools: Tools = None,
        *,
        n: int | None,
        **options: Unpack[Chatting],
    ) -> AsyncStream[Any]: ...
    @takes_sampling
    def achat(
        self,
        messages: Messages | Conversations,
        tools: Tools = None,
        *,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        tool_format: str | None = None,
        n: int | None = None,
        chat_template: str | _native.ChatTemplate | None = None,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        parse_special: bool = False,
        priority: int = 0,
        sampling: Sampling | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Any:
        """`chat` for asyncio, as `agenerate` for `generate`."""
        resolved = resolve(options, sampling)
        urgency = arguments.integer("priority", priority)
        return AsyncStream(
            self,
            preparing(
                lambda: self._conversations(
                    messages,
                    resolved,
                    n,
                    tools=tools,
                    tool_choice=tool_choice,
                    parallel=parallel_tool_calls,
                    tool_format=tool_format,
                    chat_template=chat_template,
                    continues=continue_final_message,
                    template_kwargs=template_kwargs,
                    parse_special=parse_special,
                ),
                messages,
                compiles=resolved["constraint"] is not None or tools is not None,
            ),
            urgency,
        )

    def _prompts(
        self,
        prompt: Any,
        options: dict[str, Any],
        n: int | None,
        echo: bool,
        parse_special: bool = False,
        suffix: Any = None,
    ) -> Job:
        """What `generate` asks for. `parse_special` lets texts spell control tokens."""
        _native.check_sampling(options)  # said before anything is made tokens
        if (budget := options["thinking_token_budget"]) is not None:
            expected = "only chat knows which text is reasoning; use it"
            raise arguments.refused("thinking_token_budget", budget, expected)
        many = batch("prompt", prompt)
        count = _outputs(n)
        asks = []
        for i, one in enumerate([prompt] if many is None else many):
            name = "prompt" if many is None else f"prompt[{i}]"
            with naming(name):
                if suffix is not None:
                    ids = self._around(arguments.text(name, one), arguments.text("suffix", suffix))
                elif isinstance(one, str):
                    text = arguments.text(name, one)
                    ids = self._engine.encode(text, parse_special=parse_special)
                else:
                    ids = arguments.integers(name, one)
                    self._engine.check_room(len(ids))
            front = ""
            if echo:
                front = one if isinstance(one, str) else self._tokenizer.decode(ids)
            each = Ask(ids, options, name, front, is_chat=False)
            asks += _repeated(each, count)
        if echo and options["constraint"]:
            raise ArgumentError("echo = True: cannot be combined with structured output")
        self._compile(asks)
        return Job(asks, many is not None, n)

    def _around(
        self,
        prefix: str,
        suffix: str,
        files: Sequence[tuple[str, str]] = (),
        begun: str = "",
    ) -> list[int]:
        """The prompt of what stands between two texts, behind further files by name, and behind
        `begun`.

        Raises `ArgumentError` where the model has no tokens for that, `ContextError` where there is
        no room for it.
        """
        tokenizer = self._tokenizer
        if tokenizer.infill_ids is None:
            expected = (
                "this model has no fill-in-the-middle tokens; leave it out, or use a coding model"
            )
            raise arguments.refused("suffix", suffix, expected)
        before, behind, middle = tokenizer.infill_ids
        encode = functools.partial(self._engine.encode, add_special=False)
        ids = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
        for name, text in files:
            separator = [] if tokenizer.file_id is None else [tokenizer.file_id]
            ids += [*separator, *encode(f"{name}\n{text}\n")]
        ids += [before, *encode(prefix), behind, *encode(suffix), middle, *encode(begun)]
        self._engine.check_room(len(ids))
        return ids

    def _conversations(
        self,
        messages: Any,
        options: dict[str, Any],
        n: int | None,
        *,
        tools: Any,
        tool_choice: Any,
        parallel: Any,
        tool_format: Any,
        chat_template: Any,
        continues: Any,
        template_kwargs: Any,
        parse_special: Any,
        most: int | None = None,
    ) -> Job:
        """What `chat` asks for; prompts have at most so many tokens where that is said, else as
        many as leave room in the context."""
        _native.check_sampling(options)  # said before anything is made tokens
        parse_special = arguments.flag("parse_special", parse_special)
        continues = arguments.flag("continue_final_message", continues)
        variables = arguments.variables("template_kwargs", template_kwargs, TEMPLATE_ARGUMENTS)
        many = conversations.batch(messages)
        count = _outputs(n)
        named = (
            [("messages", messages)]
            if many is None
            else [(f"messages[{i}]", one) for i, one in enumerate(many)]
        )
        checked = [(name, conversations.conversation(name, one)) for name, one in named]
        given = _offered(tools, tool_choice, tool_format)
        asked = structured.Calls.asked(
            given, tool_choice, arguments.flag("parallel_tool_calls", parallel)
        )
        template = self._template_of(chat_template)
        asks = []
        for name, one in checked:
            with naming(name):
                rendering = self._rendering(
                    *(template, one, given.schemas, variables, tool_format),
                    name=name,
                    continues=continues,
                )
            reading = self._reading(template, bool(given.schemas), tool_format)
            held = asked.held(self._tokenizer, reading, rendering, continues, options)
            if options["thinking_token_budget"] is not None:
                held = {**held, "thought": reading.thought(rendering, continues=continues)}
            # The template spells the special tokens, the first one included.
            with naming(name):
                ids = self._engine.encode(rendering, parse_special=parse_special, most=most)
            reader = None
            if not reading.is_plain:
                shown = reading.shown(self._tokenizer)
                salt = hash(tuple(ids))
                reader = Reader(reading, rendering, given, continues, shown, salt)
            asks += _repeated(Ask(ids, held, name, "", is_chat=True, reader=reader), count)
        self._compile(asks)
        return Job(asks, many is not None, n)

    def _rendering(
        self,
        template: _native.ChatTemplate,
        messages: list[dict[str, Any]],
        schemas: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        tool_format: Any,
        *,
        name: str,
        continues: bool,
    ) -> _native.Rendering:
        """The text of a conversation, open for an answer."""
        render = functools.partial(
            conversations.render,
            *(template, messages, schemas or None, variables),
            name=name,
            continues=continues,
        )
        rendering = render()
        if conversations.has_calls(messages) and (calls := self._writer(template, tool_format)):
            rendering = render(calls=calls)
        return rendering

    def _rendered(self, messages: Any, tools: Any, continues: bool, variables: Any) -> str:
        """What `chat` makes tokens of."""
        name = "messages"
        one = conversations.conversation(name, messages)
        given = _offered(tools, None, None)
        variables = arguments.variables("template_kwargs", variables, TEMPLATE_ARGUMENTS)
        return self._rendering(
            *(self._template_of(None), one, given.schemas, variables, None),
            name=name,
            continues=continues,
        ).text

    def _thinks(self) -> bool:
        """Whether the chat template tells reasoning apart."""
        template = self.chat_template
        return template is not None and not self._reading(template, False, None).is_plain

    def _tokens(self, text: str, add_special: bool, most: int) -> list[int]:
        """`tokenize`, of a text that has at most so many tokens."""
        self._engine.check_open()
        return self._engine.encode(text, add_special=add_special, most=most)

    def _compile(self, asks: Sequence[Ask]) -> None:
        """Has the constraints ready: beside an event loop, where there is one."""
        for i, ask in enumerate(asks):
            given = ask.options["constraint"]
            _native.go_on()
            if given and (i == 0 or given != asks[i - 1].options["constraint"]):
                self._engine.compile(given)

    def _reading(
        self, template: _native.ChatTemplate, tools: bool, tool_format: str | None
    ) -> _native.Reading:
        """How answers are read that such a template opens; found out once."""
        key = (template.source, tools, tool_format)
        found = self._readings.get(key)
        if found is None:
            if tools:
                found = _native.Reading.with_tools(template, tool_format)
            else:
                found = _native.Reading.without_tools(template)
            if len(self._readings) >= MAX_READINGS:
                self._readings.clear()
            self._readings[key] = found
        return found

    def _writer(
        self, template: _native.ChatTemplate, tool_format: str | None
    ) -> _native.Reading | None:
        """What writes the calls of a conversation whose template leaves them out."""
        try:
            found = self._reading(template, True, tool_format)
        except ModelError:
            return None  # nobody knows the format
        return None if found.writes else found

    @functools.cached_property
    def _readings(self) -> dict[tuple[str, bool, str | None], _native.Reading]:
        return {}

    def _template_of(self, given: Any) -> _native.ChatTemplate:
        if given is not None:
            return self._read_template(given)
        if self._engine.looks_ahead:
            raise ModelError(
                f"{self.path.name}: the model is an encoder, which cannot generate text; use "
                "embed for vectors of texts"
            )
        template = self.chat_template
        if template is None:
            raise ModelError(
                f"{self.path.name} has no chat template: use generate, a model "
                "trained to chat, or pass chat_template="
            )
        return template

    def _read_template(self, given: Any) -> _native.ChatTemplate:
        if isinstance(given, _native.ChatTemplate):
            return given
        if not isinstance(given, str):
            expected = "must be an onegraph.ChatTemplate or the source of one"
            raise arguments.refused("chat_template", given, expected)
        return self._engine.template(arguments.text("chat_template", given))

    def _run(self, job: Job, stream: Any, progress: Any, priority: int) -> Any:
        """All of a job, or its stream."""

        def submit(ask: Ask) -> _native.Generation:
            return self._engine.submit(ask.ids, ask.options, priority=priority, shown=ask.shown)

        if arguments.flag("stream", stream):
            ask = job.only()
            return Stream(self, ask, submit(ask))
        if progress is not None and not callable(progress):
            progress = arguments.flag("progress", progress)
        if progress is None and len(job.asks) == 1:
            progress = False
        results: list[Result] = []
        generations: list[_native.Generation] = []

        def give(made: _native.Generated) -> None:
            ask, generation = job.asks[len(results)], generations[len(results)]
            results.append(whole(self, ask, generation.seed, [made]))
            if told is not None:
                told("generate", len(results), len(job.asks))

        with progress_bar.shown(progress, counts=True, beside=self._so_far) as told:
            if told is not None:
                told("generate", 0, len(job.asks))
            for ask in job.asks:
                with naming(ask.name):
                    generations.append(submit(ask))
                # A list longer than the queue: what has ended while there was no room in it.
                with naming(job.asks[len(results)].name):
                    if made := generations[len(results)].ended():
                        give(made)
            while len(results) < len(job.asks):
                with naming(job.asks[len(results)].name):
                    made = generations[len(results)].collect()
                give(made)
        return job.shape(results)

    def _so_far(self) -> Callable[[], str]:
        """Tells, whenever it is asked, what the model has read and made from now on."""
        began = Stats.from_json(self._engine.stats())

        def said() -> str:
            try:
                return so_far(Stats.from_json(self._engine.stats()), began)
            except ClosedError:
                return ""

        return said

    def _completed(
        self,
        name: str,
        given: Iterable[Any],
        prepare: Callable[[Any], Job],
        priority: int,
        progress: Any,
    ) -> Iterator[tuple[int, Result]]:
        """Results in the order in which they end, each with the place of its prompt."""
        if progress is not None and not callable(progress):
            progress = arguments.flag("progress", progress)
        total = len(given) if isinstance(given, Sized) else None
        from onegraph.doorbell import QUEUE_POLL  # brings asyncio

        bell = _native.Doorbell()
        running: dict[int, tuple[int, Ask, _native.Generation]] = {}
        waiting: list[tuple[int, Ask]] = []
        left, number, done = enumerate(given), 0, 0
        with (
            progress_bar.shown(progress, counts=True, beside=self._so_far) as told,
            selectors.DefaultSelector() as selector,
        ):
            selector.register(bell, selectors.EVENT_READ)
            try:
                while True:
                    # As many wait in the engine's queue as run.
                    while len(running) < 2 * self._engine.max_batch:
                        if not waiting:
                            if (more := next(left, None)) is None:
                                break
                            with naming(f"{name}[{more[0]}]"):
                                waiting = [(more[0], ask) for ask in prepare(more[1]).asks]
                        place, ask = waiting[0]
                        with naming(f"{name}[{place}]"):
                            generation = self._engine.offer(
                                ask.ids,
                                ask.options,
                                bell,
                                number,
                                True,
                                priority=priority,
                                waited=0.0,
                                shown=ask.shown,
                            )
                        if generation is None:
                            break
                        running[number] = (place, ask, generation)
                        number += 1
                        del waiting[0]
                    if not running and not waiting:
                        return
                    # Others' requests leave a full queue without a sound.
                    selector.select(QUEUE_POLL if waiting else None)
                    for ended in bell.answer():
                        place, ask, generation = running[ended]
                        with naming(f"{name}[{place}]"):
                            made = generation.ended()
                        if made is None:
                            continue
                        del running[ended]
                        done += 1
                        if told is not None:
                            told("generate", done, total)
                        yield place, whole(self, ask, generation.seed, [made])
            finally:
                for _, _, generation in running.values():
                    generation.cancel()


def _check_several(name: str, given: Any, part: type, stream: Any, n: int | None) -> None:
    """That results can be given as they end: of several, where one is a text or begins with a
    `part`."""
    if arguments.flag("stream", stream) or n is not None:
        raise ArgumentError("as_completed = True: cannot be combined with stream or n")
    is_one = isinstance(given, str | Mapping) or not isinstance(given, Iterable)
    if is_one or (arguments.is_sequence(given) and len(given) and isinstance(given[0], part)):
        raise ArgumentError(f"as_completed = True: {name} is a single one; pass a list")


def _offered(tools: Any, choice: Any, tool_format: Any) -> Offered:
    """The tools that a model is shown."""
    if tool_format is not None:
        name = arguments.word("tool_format", tool_format)
        known = [each for each, _ in _native.tool_formats()]
        if name not in known:
            raise arguments.refused("tool_format", name, f"must be one of {', '.join(known)}")
    return offered(None if choice == "none" else tools)


def _outputs(n: int | None) -> int:
    """How many outputs of each prompt."""
    if n is None:
        return 1
    count = arguments.integer("n", n)
    if not 1 <= count <= MAX_N:
        raise arguments.refused("n", n, f"must be from 1 to {MAX_N}")
    return count


def _repeated(ask: Ask, count: int) -> list[Ask]:
    """The same, so many times, each with a seed of its own."""
    seed = ask.options["seed"]
    if count == 1 or seed is None:
        return [ask] * count
    return [replace(ask, options={**ask.options, "seed": (seed + i) % 2**64}) for i in range(count)]
