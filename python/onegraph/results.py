"""Results of a generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from onegraph import structured
from onegraph.answers import AnswerEvent, InvalidToolCall, ToolCall

__all__ = ["Piece", "Result", "Scored", "Timings", "TokenLogprob", "TopLogprob", "Usage"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request."""

    prompt_tokens: int
    #: Tokens of the result, without the token that ended the text.
    completion_tokens: int
    #: Prompt tokens found in the cache: see `prefix_cache` of `onegraph.LLM`.
    cached_tokens: int
    #: Tokens that `speculate` or `prompt_lookup_num_tokens` drafted, and how many of them were
    #: right.
    drafted_tokens: int
    accepted_tokens: int
    #: Steps of a sequence that verified drafts.
    draft_rounds: int
    #: Tokens of the result up to the end of the reasoning.
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall-clock times of a request, in seconds, and rates, in tokens per second."""

    #: Loading the model.
    load_seconds: float
    #: From the call to the start of processing.
    queue_seconds: float
    #: From there to the first token; a cached prefix takes no time.
    prefill_seconds: float
    #: From the first token to the last.
    decode_seconds: float
    prefill_tokens_per_second: float
    #: Tokens after the first, divided by `decode_seconds`.
    decode_tokens_per_second: float
    #: The same without the time for sampling and text.
    decode_tokens_per_second_without_sampling: float


class TopLogprob(NamedTuple):
    """One of the most probable tokens, with the natural logarithm of its probability."""

    token_id: int
    logprob: float
    #: As `TokenLogprob.text`.
    text: str


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability under the model's unmodified logits."""

    token_id: int
    logprob: float
    #: The most probable tokens and their log-probabilities, best first.
    top: tuple[TopLogprob, ...]
    #: The token's text; for a control token, its spelling. Incomplete characters are U+FFFD;
    #: `Tokenizer.token_bytes` returns the bytes.
    text: str

    def to_openai(self) -> dict[str, Any]:
        """One entry of `logprobs.content` of an OpenAI chat completion."""
        top = [_openai_token(*each) for each in self.top]
        return {**_openai_token(self.token_id, self.logprob, self.text), "top_logprobs": top}


@dataclass(frozen=True, slots=True)
class Scored:
    """A token of a text passed to `LLM.score`. The first has only its id and text."""

    token_id: int
    #: Natural logarithm of its probability given the tokens before it.
    logprob: float | None
    #: Its rank among all tokens by probability, 1 for the most probable.
    rank: int | None
    #: The most probable tokens and their log-probabilities, best first.
    top: tuple[TopLogprob, ...]
    #: As `TokenLogprob.text`.
    text: str


def _openai_token(token_id: int, logprob: float, text: str) -> dict[str, Any]:
    whole = "\ufffd" not in text
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if whole else None}


@dataclass(frozen=True, slots=True)
class Piece:
    """New output of a stream. `str` gives its text."""

    #: Whole characters only; text that may become a stop string is held back for a later piece.
    text: str
    token_ids: list[int]
    #: Set on the last piece; see `Result`.
    finish_reason: Literal["stop", "length", "cancelled", "tool_calls"] | None
    #: One per token of `token_ids`, if `logprobs` was given.
    logprobs: list[TokenLogprob] | None
    #: New reasoning.
    reasoning: str = ""
    #: For an answer to a conversation, everything new in order, including text and reasoning.
    events: list[AnswerEvent] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Result:
    """A finished generation. `str` gives its text."""

    #: The generated text, without the stop string; with `echo`, after the prompt's text.
    text: str
    #: The generated tokens, without the token that ended the text and without the prompt's.
    token_ids: list[int]
    #: "stop": the model ended its text, or a stop string or stop token occurred. "length":
    #: `max_tokens` was reached, or the context is full. "cancelled": the stream was cancelled.
    #: "tool_calls": the model called tools; text after a complete call may be cut off.
    finish_reason: Literal["stop", "length", "cancelled", "tool_calls"]
    #: For "length", which limit was reached; for "tool_calls", what cut off the text after the
    #: calls.
    cut: Literal["max_tokens", "context"] | None
    #: For "stop", the stop string, or the id of the token that ended it.
    stop_reason: str | int | None
    usage: Usage
    timings: Timings
    #: One per token of `token_ids`, if `logprobs` was given.
    logprobs: list[TokenLogprob] | None
    #: The seed of the draws; the same seed gives the same text.
    seed: int
    #: The file of the model.
    model: str
    #: Whether it is an answer to a conversation.
    is_chat: bool
    #: When it finished: seconds since 1970.
    created: float
    #: For an answer to a conversation, the model's reasoning, if it shows any.
    reasoning: str | None = None
    #: The model's tool calls.
    tool_calls: list[ToolCall] = field(default_factory=list)
    #: Invalid calls, with the reason.
    invalid_tool_calls: list[InvalidToolCall] = field(default_factory=list)
    #: Log-probabilities of the prompt's tokens, as from `LLM.score`, if a server request asked for
    #: them.
    prompt_logprobs: list[Scored] | None = field(default=None, repr=False)
    #: The `schema` that the text was constrained to.
    schema: Any = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    @property
    def parsed(self) -> Any:
        """The value of a text constrained to a `schema`: an instance of the type if one was given,
        otherwise plain JSON. None without a schema, or if the text was cut off or calls tools.

        Raises `ArgumentError` if the type rejects what its schema allows.
        """
        if self.schema is None or self.finish_reason != "stop":
            return None
        return structured.parsed(self.schema, self.text)

    @property
    def message(self) -> dict[str, Any]:
        """The assistant's message, to append to the conversation: text, calls and reasoning."""
        said: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning is not None:
            said["reasoning_content"] = self.reasoning
            # The other name that templates have for it; where there are calls, in place of a text.
            if not (self.text and self.tool_calls):
                said["thinking"] = self.reasoning
        if self.tool_calls:
            said["tool_calls"] = [call.to_openai() for call in self.tool_calls]
        return said

    def to_openai(self) -> dict[str, Any]:
        """The result in the OpenAI API's form: a `chat.completion` for an answer to a conversation,
        otherwise a `text_completion`. That API has no word for "cancelled": the finish reason is
        then None.
        """
        kind, prefix = (
            ("chat.completion", "chatcmpl") if self.is_chat else ("text_completion", "cmpl")
        )
        cancelled = self.finish_reason == "cancelled"
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": None if cancelled else self.finish_reason,
            "logprobs": self._openai_logprobs(),
        }
        if self.is_chat:
            said: dict[str, Any] = {"role": "assistant", "content": self.text, "refusal": None}
            if self.reasoning is not None:
                said["reasoning_content"] = self.reasoning
            if self.tool_calls:
                said["content"] = self.text or None
                said["tool_calls"] = [call.to_openai() for call in self.tool_calls]
            choice["message"] = said
        else:
            choice["text"] = self.text
        prompt, completion = self.usage.prompt_tokens, self.usage.completion_tokens
        return {
            "id": f"{prefix}-{int(self.created * 1e6):x}{self.seed:016x}",
            "object": kind,
            "created": int(self.created),
            "model": self.model,
            "choices": [choice],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
                "prompt_tokens_details": {"cached_tokens": self.usage.cached_tokens},
                "completion_tokens_details": {"reasoning_tokens": self.usage.reasoning_tokens},
            },
        }

    def _openai_logprobs(self) -> dict[str, Any] | None:
        if self.logprobs is None:
            return None
        if self.is_chat:
            return {"content": [each.to_openai() for each in self.logprobs], "refusal": None}
        return {
            "tokens": [each.text for each in self.logprobs],
            "token_logprobs": [each.logprob for each in self.logprobs],
            "top_logprobs": [{t.text: t.logprob for t in each.top} for each in self.logprobs],
        }
