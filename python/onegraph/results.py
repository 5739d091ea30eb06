"""What a generation gives back."""

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
    #: Tokens of the result; the token that ended the text is not counted.
    completion_tokens: int
    #: Of the prompt, those whose keys and values were there: see `prefix_cache` of `onegraph.LLM`.
    cached_tokens: int
    #: Tokens that `prompt_lookup_num_tokens` drafted, and those of them that were right.
    drafted_tokens: int
    accepted_tokens: int
    #: Of the result, those up to the end of the reasoning.
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall clock of a request, in seconds, and rates, in tokens a second."""

    #: Loading the model.
    load_seconds: float
    #: From the call to the first work on it.
    queue_seconds: float
    #: From there to the first token; of a prompt in the cache only what is not in it.
    prefill_seconds: float
    #: From the first token to the last.
    decode_seconds: float
    prefill_tokens_per_second: float
    #: Tokens after the first, by `decode_seconds`.
    decode_tokens_per_second: float
    #: The same without the time for choosing tokens and making text.
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
    #: The token's text, of a control token its spelling. What is no whole character of its own
    #: stands as U+FFFD; `Tokenizer.token_bytes` gives the bytes.
    text: str

    def to_openai(self) -> dict[str, Any]:
        """One entry of `logprobs.content` of an OpenAI chat completion."""
        top = [_openai_token(*each) for each in self.top]
        return {**_openai_token(self.token_id, self.logprob, self.text), "top_logprobs": top}


@dataclass(frozen=True, slots=True)
class Scored:
    """A token of a text that was there, from `LLM.score`. Of the first one nothing more is known:
    no place stands before it."""

    token_id: int
    #: Natural logarithm of its probability behind the tokens before it.
    logprob: float | None
    #: Its place among all tokens by probability, the most probable one at 1.
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
    """What is new in a stream. Printed, it is its text."""

    #: Whole characters only; text that may become a stop string waits for a later piece.
    text: str
    token_ids: list[int]
    #: Set on the last piece; see `Result`.
    finish_reason: Literal["stop", "length", "cancelled", "tool_calls"] | None
    #: One for each of `token_ids` where `logprobs` was given.
    logprobs: list[TokenLogprob] | None
    #: What is new of the reasoning.
    reasoning: str = ""
    #: All that is new of an answer to a conversation, text and reasoning too, in order.
    events: list[AnswerEvent] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Result:
    """A finished generation. Printed, it is its text."""

    #: The generated text, without the stop string; with `echo`, behind the prompt's.
    text: str
    #: The generated tokens, without the one that ended the text, and without the prompt's.
    token_ids: list[int]
    #: "stop": the model ended its text, or a stop string or stop token came up. "length":
    #: `max_tokens`, or the context is full. "cancelled": the stream was cancelled. "tool_calls":
    #: the model calls tools; what came behind a whole call may be cut.
    finish_reason: Literal["stop", "length", "cancelled", "tool_calls"]
    #: Of "length", which of the two cut it; of "tool_calls", what cut the text behind the calls.
    cut: Literal["max_tokens", "context"] | None
    #: Of "stop", the stop string, or the id of the token that ended it.
    stop_reason: str | int | None
    usage: Usage
    timings: Timings
    #: One for each of `token_ids` where `logprobs` was given.
    logprobs: list[TokenLogprob] | None
    #: What the draws depended on; the same seed gives the same text.
    seed: int
    #: The file of the model.
    model: str
    #: Whether it answers a conversation.
    is_chat: bool
    #: When it ended: seconds since 1970.
    created: float
    #: Of an answer to a conversation, what the model thought before it, where it shows that.
    reasoning: str | None = None
    #: The calls that it asks for.
    tool_calls: list[ToolCall] = field(default_factory=list)
    #: Calls that went wrong, with the reason.
    invalid_tool_calls: list[InvalidToolCall] = field(default_factory=list)
    #: Of the prompt's tokens, as `LLM.score` gives them, where a server was asked for them.
    prompt_logprobs: list[Scored] | None = field(default=None, repr=False)
    #: The `schema` that the text was held to.
    schema: Any = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    @property
    def parsed(self) -> Any:
        """The value of a text that was held to a `schema`: of the type, where one was given, else
        as JSON has it. None without a schema, and where the text was cut off, or calls tools.

        Raises `ArgumentError` where the type refuses what its schema allows.
        """
        if self.schema is None or self.finish_reason != "stop":
            return None
        return structured.parsed(self.schema, self.text)

    @property
    def message(self) -> dict[str, Any]:
        """It as the message of the assistant, to go on the end of the conversation that it answers:
        text, calls and reasoning."""
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
        """It as the OpenAI API gives it: a `chat.completion` of an answer to a conversation, else a
        `text_completion`. That API has no word for "cancelled": the finish reason is then None.
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
