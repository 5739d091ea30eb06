//! One error type for the whole engine. Every variant says what is wrong, the numbers, and what
//! to do about it. [`Error::kind`] groups the variants into the classes a caller can catch.

/// Result of everything that can fail in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller may want to catch; the Python layer has one exception class per kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The model file is damaged, hostile or not supported.
    Model,
    /// An argument is out of range or of the wrong form.
    Argument,
    /// A prompt or request does not fit the context.
    Context,
    /// Not enough memory on host or device.
    Memory,
    /// A device, driver or compiler is missing or failed.
    Device,
    /// A file could not be read.
    Io,
    /// The object was closed or the process forked.
    Closed,
    /// The request was cancelled.
    Cancelled,
    /// A bug in onegraph.
    Internal,
}

/// Everything that can go wrong.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("cannot {action} {path}: {reason}; {remedy}")]
    Io {
        action: &'static str,
        path: String,
        reason: String,
        remedy: String,
    },

    /// The bytes are not a valid GGUF file. `field` names the place, `value` what stands there.
    #[error("invalid GGUF: {field} is {value}; {remedy}")]
    Gguf {
        field: String,
        value: String,
        remedy: String,
    },

    /// A metadata key is missing, has the wrong type, or is out of range.
    #[error("model metadata: {key} is {value}; expected {expected}")]
    Metadata {
        key: String,
        value: String,
        expected: String,
    },

    /// A tensor is missing or has the wrong shape or type.
    #[error("tensor {name}: found {found}, expected {expected}; {remedy}")]
    Tensor {
        name: String,
        found: String,
        expected: String,
        remedy: String,
    },

    /// An architecture, quantization type or tokenizer that this build does not know.
    #[error("{what} {name:?} is not supported; supported: {supported}")]
    Unsupported {
        what: &'static str,
        name: String,
        supported: String,
    },

    /// The model computed a logit that is not finite.
    #[error("the logit of token {token} is {value}; the model's numbers overflowed: its file is damaged, fetch it again, or use another quantization of it")]
    Logits { token: u32, value: String },

    /// Activations that a product of quantized weights has no grid for: 2^117 and more, or NaN.
    #[error("the product with {tensor} at position {position} of sequence slot {slot} has an input of {value}, but inputs must be below 2^117; the model's numbers overflowed: its file is damaged, fetch it again, or use another quantization of it")]
    Activations {
        tensor: String,
        slot: usize,
        position: u64,
        value: String,
    },

    /// A key or value that is no finite number: every later token of its sequence would be made of it.
    #[error("KV scatter of layer {layer}: a key or value at position {position} of sequence slot {slot} is {value}, but all must be finite; the model's numbers overflowed: its file is damaged, fetch it again, or use another quantization of it")]
    KvValues {
        layer: usize,
        slot: usize,
        position: u64,
        value: String,
    },

    /// The model computed a hidden state that is no number.
    #[error("dimension {dimension} of the embedding is {value}; the model's numbers overflowed: its file is damaged, fetch it again, or use another quantization of it")]
    Embedding { dimension: usize, value: String },

    /// The chat template cannot be used.
    #[error("chat template: {reason}; {remedy}")]
    Template { reason: String, remedy: String },

    /// An argument of a call is wrong.
    #[error("{name} = {value}: {reason}")]
    Argument {
        name: &'static str,
        value: String,
        reason: String,
    },

    /// The prompt does not fit the context.
    #[error(
        "the prompt has {}{prompt} tokens, but the context holds {context}; shorten the prompt \
         by {} \
         tokens{}",
        if *at_least { "at least " } else { "" },
        prompt.saturating_sub(*context).saturating_add(1), longer_context(*prompt, *trained)
    )]
    Context {
        prompt: usize,
        /// Whether it was not counted: so many it has for certain.
        at_least: bool,
        context: usize,
        /// The context that the model was trained for: no more can be loaded.
        trained: usize,
    },

    /// A text to embed does not fit the context.
    #[error(
        "the text has {}{tokens} tokens, but the context holds {context}; shorten it by {} tokens, \
         use truncate=True{}",
        if *at_least { "at least " } else { "" },
        tokens.saturating_sub(*context), context_of(*tokens, *trained)
    )]
    TextLength {
        tokens: usize,
        /// As of [`Error::Context`].
        at_least: bool,
        context: usize,
        /// As of [`Error::Context`].
        trained: usize,
    },

    /// Memory is (foreseen to be) too small.
    #[error("out of memory: {need}; {remedy}")]
    Memory { need: String, remedy: String },

    /// No device, driver or compiler, or one that failed.
    #[error("{what}: {reason}; {remedy}")]
    Device {
        what: String,
        reason: String,
        remedy: String,
    },

    /// The CUDA driver refused a call, or says what became of a kernel; `code` is its CUresult.
    #[error("{call}: {reason}; {remedy}")]
    Driver {
        call: &'static str,
        code: u32,
        reason: String,
        remedy: &'static str,
    },

    /// A position or page outside the KV cache reached a scatter.
    #[error("KV scatter: position {position} of sequence slot {slot} is outside the cache of {limit} tokens; nothing was written")]
    KvBounds {
        position: u64,
        slot: usize,
        limit: usize,
    },

    /// A constraint that cannot be held any longer.
    #[error("constrained output: {reason}; make the schema or grammar simpler")]
    Constraint { reason: String },

    /// The object was closed.
    #[error("{what} is closed; open it again")]
    Closed { what: &'static str },

    /// The process is a fork of the one that loaded the model.
    #[error("the model was loaded by process {parent}, but this is its fork {child}, which has neither its threads nor its device; load the model after the fork, or start workers with multiprocessing's \"spawn\" method")]
    Forked { parent: u32, child: u32 },

    /// The request was cancelled before it finished.
    #[error("cancelled")]
    Cancelled,

    /// A bug.
    #[error("internal error: {0}; this is a bug in onegraph, please report it")]
    Internal(String),
}

/// What a longer context would do for a prompt.
fn longer_context(prompt: usize, trained: usize) -> String {
    match prompt < trained {
        true => format!(" or load with n_ctx >= {}", prompt.saturating_add(1)),
        false => format!("; the model was trained for {trained}, the largest possible n_ctx"),
    }
}

/// What a longer context would do for a text of which nothing is generated.
fn context_of(tokens: usize, trained: usize) -> String {
    match tokens <= trained {
        true => format!(", or load with n_ctx >= {tokens}"),
        false => format!("; the model was trained for {trained}, the largest possible n_ctx"),
    }
}

impl Error {
    /// An allocation of `bytes` that the system refused; `what` they are for.
    pub(crate) fn no_room(what: &str, bytes: usize) -> Self {
        Error::Memory {
            need: format!("{what} need {bytes} bytes, more than the system can allocate"),
            remedy: "close other programs, raise the memory limit, or use a smaller n_ctx, \
                     max_batch or number of threads"
                .into(),
        }
    }

    /// The slot of the one sequence that it is about, where those beside it go on.
    pub(crate) fn slot(&self) -> Option<usize> {
        match self {
            Error::KvBounds { slot, .. }
            | Error::KvValues { slot, .. }
            | Error::Activations { slot, .. } => Some(*slot),
            _ => None,
        }
    }

    /// The class of this error.
    pub fn kind(&self) -> Kind {
        match self {
            Error::Io { .. } => Kind::Io,
            Error::Gguf { .. }
            | Error::Metadata { .. }
            | Error::Tensor { .. }
            | Error::Unsupported { .. }
            | Error::Logits { .. }
            | Error::Activations { .. }
            | Error::KvValues { .. }
            | Error::Embedding { .. }
            | Error::Template { .. } => Kind::Model,
            Error::Argument { .. } | Error::Constraint { .. } => Kind::Argument,
            Error::Context { .. } | Error::TextLength { .. } => Kind::Context,
            Error::Memory { .. } => Kind::Memory,
            Error::Device { .. } | Error::Driver { .. } => Kind::Device,
            Error::Closed { .. } | Error::Forked { .. } => Kind::Closed,
            Error::Cancelled => Kind::Cancelled,
            Error::KvBounds { .. } | Error::Internal(_) => Kind::Internal,
        }
    }
}
