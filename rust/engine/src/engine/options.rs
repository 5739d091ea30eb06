//! How a model is loaded.

use std::path::PathBuf;

use super::device::Device;
use crate::backend::cuda::run::dispatch::chosen_sizes;
use crate::backend::cuda::run::prefill::{check_chunk, DEFAULT_CHUNK};
use crate::backend::{pool_pages, GpuOptions, GraphMode, MOST_GUESSED};
use crate::error::{Error, Result};
use crate::quant::{self, QuantType};

/// Context where none is asked for: as much as the model was trained for, at most this.
pub const DEFAULT_CTX: usize = 8192;

/// Most sequences in flight.
pub const MAX_BATCH: usize = 1024;

/// Most tokens of all sequences together: their pages have numbers of 32 bits.
pub const MOST_KV_TOKENS: usize = 1 << 32;

/// Bytes of files with prefixes where no other number is asked for.
pub const DEFAULT_DIR_BYTES: u64 = 32 << 30;

/// What concerns graphs alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphOptions {
    pub mode: GraphMode,
    /// Batch sizes to capture; none: powers of two, then steps.
    pub batch_sizes: Option<Vec<usize>>,
    /// Largest batch to capture; none: `max_batch`.
    pub max_batch: Option<usize>,
    /// Round a step up to a captured size; if not, sizes are exact.
    pub padding: bool,
    /// Capture every size at load instead of at first need.
    pub warmup: bool,
    /// Programmatic dependent launch; none: where the card has it.
    pub pdl: Option<bool>,
}

impl Default for GraphOptions {
    fn default() -> Self {
        Self {
            mode: GraphMode::Full,
            batch_sizes: None,
            max_batch: None,
            padding: true,
            warmup: false,
            pdl: None,
        }
    }
}

/// Everything that may be chosen when a model is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    pub device: String,
    /// Tokens a sequence may have; none: the trained context, at most [`DEFAULT_CTX`].
    pub n_ctx: Option<usize>,
    /// Sequences in flight; more requests wait.
    pub max_batch: usize,
    /// Encoding of keys and values.
    pub kv_type: String,
    /// Tokens whose keys and values there is memory for, of all sequences together; none: a whole context
    /// of each.
    pub kv_tokens: Option<usize>,
    /// Bytes of the host's memory for sequences that are preempted where there are fewer; none: 8 GiB, but at
    /// most a quarter of what is available.
    pub kv_host_bytes: Option<usize>,
    /// CPU threads; none: as many as the machine runs at once.
    pub threads: Option<usize>,
    /// On a GPU, most tokens of a prompt in one pass; a power of two. None: 512, or 2,048 of a model with
    /// experts, of whom each then has some.
    pub prefill_chunk: Option<usize>,
    pub graph: GraphOptions,
    pub speculate: Speculate,
    /// The file of a model that drafts.
    pub draft: Option<PathBuf>,
    /// Whether keys and values of tokens that a prompt begins with are kept and found again.
    pub prefix_cache: bool,
    /// Bytes of the host's memory for those that are evicted from the device, and for states; none: 8 GiB, but at
    /// most a quarter of what is available.
    pub prefix_host_bytes: Option<usize>,
    /// A folder where they survive the process.
    pub cache_dir: Option<PathBuf>,
    /// Bytes of its files.
    pub cache_dir_bytes: u64,
    /// Folders where the Python package of NVRTC, the CUDA compiler, keeps its library.
    pub nvrtc_folders: Vec<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: "auto".into(),
            n_ctx: None,
            max_batch: 8,
            kv_type: quant::DEFAULT_KV.into(),
            kv_tokens: None,
            kv_host_bytes: None,
            threads: None,
            prefill_chunk: None,
            graph: GraphOptions::default(),
            speculate: Speculate::Auto,
            draft: None,
            prefix_cache: true,
            prefix_host_bytes: None,
            cache_dir: None,
            cache_dir_bytes: DEFAULT_DIR_BYTES,
            nvrtc_folders: Vec::new(),
        }
    }
}

/// What drafts tokens that a step then verifies (speculative decoding). No token depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speculate {
    /// Nothing but what requests ask for.
    Off,
    /// A draft model where one is given, else the model's own layer for that, where the file has one, as
    /// far as it pays.
    Auto,
    /// The draft model, which must be given; so many tokens a round, or as many as pay.
    Draft(Option<usize>),
    /// That layer, of a file that must have one; so many tokens a round, or as many as pay.
    Mtp(Option<usize>),
}

impl Speculate {
    /// What drafts on `device`: of several cards nothing does.
    ///
    /// # Errors
    /// [`Error::Argument`] where it was asked for.
    pub fn on(self, device: &Device) -> Result<Self> {
        let (value, other) = match self {
            Self::Mtp(_) => ("mtp", "auto, off,"),
            _ => ("draft", "off"),
        };
        match (self, device) {
            (Self::Mtp(_) | Self::Draft(_), Device::Cuda(cards)) if cards.len() > 1 => {
                let n = cards.len();
                Err(Error::Argument {
                    name: "speculate",
                    value: value.into(),
                    reason: format!("{n} cards draft nothing: use {other} or one card"),
                })
            }
            (_, Device::Cuda(cards)) if cards.len() > 1 => Ok(Self::Off),
            _ => Ok(self),
        }
    }

    /// By its name: `off`, `auto`, `mtp`, `mtp:N`, `draft` or `draft:N`.
    ///
    /// # Errors
    /// [`Error::Argument`].
    pub fn new(name: &str) -> Result<Self> {
        let (by, drafted) = match name.split_once(':') {
            Some((by, drafted)) => (by, Some(drafted.parse())),
            None => (name, None),
        };
        match (by, drafted) {
            ("off", None) => Ok(Self::Off),
            ("auto", None) => Ok(Self::Auto),
            ("mtp", None) => Ok(Self::Mtp(None)),
            ("draft", None) => Ok(Self::Draft(None)),
            ("mtp", Some(Ok(n @ 1..=MOST_GUESSED))) => Ok(Self::Mtp(Some(n))),
            ("draft", Some(Ok(n @ 1..=MOST_GUESSED))) => Ok(Self::Draft(Some(n))),
            _ => Err(Error::Argument {
                name: "speculate",
                value: name.into(),
                reason: format!(
                    "must be auto, off, mtp, draft, or mtp:1 to mtp:{MOST_GUESSED}, draft:1 to \
                     draft:{MOST_GUESSED}"
                ),
            }),
        }
    }

    /// Tokens a round, where that is said.
    pub fn fixed(self) -> Option<usize> {
        match self {
            Self::Mtp(drafted) | Self::Draft(drafted) => drafted,
            Self::Off | Self::Auto => None,
        }
    }
}

pub(super) fn in_range(name: &'static str, value: usize, low: usize, high: usize) -> Result<usize> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(Error::Argument {
        name,
        value: value.to_string(),
        reason: format!("must be from {low} to {high}"),
    })
}

impl Options {
    /// What a GPU is told of these.
    ///
    /// # Errors
    /// As [`Options::validate`] for the sizes.
    pub fn gpu(&self) -> Result<GpuOptions> {
        Ok(GpuOptions {
            mode: self.graph.mode,
            pdl: self.graph.pdl,
            nvrtc_folders: self.nvrtc_folders.clone(),
            batch_sizes: self.graph_sizes()?,
            max_batch: self.graph.max_batch,
            padding: self.graph.padding,
            warmup: self.graph.warmup,
            prefill_chunk: self.prefill_chunk.unwrap_or(DEFAULT_CHUNK),
            ..GpuOptions::default()
        })
    }

    fn graph_sizes(&self) -> Result<Option<Vec<usize>>> {
        let (most, limit) = match self.graph.max_batch {
            Some(n) => (n, format!("graph.max_batch = {n}")),
            None => (self.max_batch, format!("max_batch = {}", self.max_batch)),
        };
        let sizes = self.graph.batch_sizes.as_ref();
        sizes.map(|s| chosen_sizes(s, most, &limit)).transpose()
    }

    /// Checks all that needs no model.
    ///
    /// # Errors
    /// [`Error::Argument`] names the option, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        in_range("max_batch", self.max_batch, 1, MAX_BATCH)?;
        if let Some(n) = self.kv_tokens {
            in_range("kv_tokens", n, 2, MOST_KV_TOKENS)?;
        }
        if let Some(n) = self.threads {
            in_range("threads", n, 1, 1024)?;
        }
        if let Some(rows) = self.prefill_chunk {
            check_chunk(rows)?;
        }
        if let Some(n) = self.graph.max_batch {
            in_range("graph.max_batch", n, 1, self.max_batch)?;
        }
        self.graph_sizes()?;
        self.kv_type().map(|_| ())
    }

    /// The type of keys and values: one that can be written as well as read.
    ///
    /// # Errors
    /// [`Error::Argument`] lists the types.
    pub fn kv_type(&self) -> Result<&'static QuantType> {
        quant::kv_by_name(&self.kv_type)
    }

    /// What drafts: a draft model that is given, where nothing else is said.
    pub fn drafts_by(&self) -> Speculate {
        match (self.speculate, &self.draft) {
            (Speculate::Auto, Some(_)) => Speculate::Draft(None),
            (by, _) => by,
        }
    }

    /// The context for a model trained for `trained` tokens.
    ///
    /// # Errors
    /// [`Error::Argument`] where it is longer than that: what a model writes beyond the context it
    /// was trained for is noise. Room for one token of prompt and one of answer is the least.
    pub fn context(&self, trained: usize) -> Result<usize> {
        match self.n_ctx {
            None => {
                let most = self.kv_tokens.unwrap_or(DEFAULT_CTX).clamp(2, DEFAULT_CTX);
                Ok(trained.clamp(2, most))
            }
            Some(n) if self.kv_tokens.is_some_and(|tokens| tokens < n) => Err(Error::Argument {
                name: "kv_tokens",
                value: self.kv_tokens.unwrap_or_default().to_string(),
                reason: format!(
                    "must be at least n_ctx = {n}, so that one sequence fits; use more, or a \
                     smaller n_ctx"
                ),
            }),
            Some(n) if n > trained && n >= 2 => Err(Error::Argument {
                name: "n_ctx",
                value: n.to_string(),
                reason: format!("the model was trained for {trained} tokens, the maximum"),
            }),
            Some(n) => in_range("n_ctx", n, 2, trained.max(2)),
        }
    }

    /// Pages of a pool for sequences of `n_ctx` tokens, the reserved page included.
    pub fn pool_pages(&self, n_ctx: usize) -> usize {
        match self.kv_tokens {
            Some(tokens) => pool_pages(1, tokens.max(n_ctx)),
            None => pool_pages(self.max_batch, n_ctx),
        }
    }

    /// Worker threads of the CPU backend.
    pub fn cpu_threads(&self) -> usize {
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(available)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(options: &Options) -> String {
        options.validate().unwrap_err().to_string()
    }

    #[test]
    fn options_out_of_range_are_refused_by_name() {
        let base = Options::default;
        assert_eq!(base().validate(), Ok(()));
        let text = refused(&Options {
            max_batch: 0,
            ..base()
        });
        assert!(
            text.contains("max_batch = 0") && text.contains("1 to 1024"),
            "{text}"
        );
        let text = refused(&Options {
            threads: Some(0),
            ..base()
        });
        assert!(
            text.contains("threads = 0") && text.contains("1 to 1024"),
            "{text}"
        );
        let text = refused(&Options {
            kv_type: "q9".into(),
            ..base()
        });
        assert!(
            text.contains("kv_type = \"q9\"") && text.contains(quant::DEFAULT_KV),
            "{text}"
        );
        let text = refused(&Options {
            prefill_chunk: Some(100),
            ..base()
        });
        assert!(
            text.contains("prefill_chunk = 100") && text.contains("64 to 4096"),
            "{text}"
        );
        let graph = |batch_sizes: &[usize], max_batch| Options {
            graph: GraphOptions {
                batch_sizes: Some(batch_sizes.to_vec()),
                max_batch,
                ..GraphOptions::default()
            },
            ..base()
        };
        let text = refused(&graph(&[], None));
        assert!(text.contains("graph.batch_sizes = []"), "{text}");
        let text = refused(&graph(&[1, 9], None));
        assert!(
            text.contains("graph.batch_sizes = 9") && text.contains("1 to 8"),
            "{text}"
        );
        let text = refused(&graph(&[4, 1, 4], Some(0)));
        assert!(text.contains("graph.max_batch = 0"), "{text}");
        let text = refused(&graph(&[4, 1, 6], Some(5)));
        assert!(
            text.contains("graph.batch_sizes = 6") && text.contains("graph.max_batch = 5"),
            "{text}"
        );
        let sizes = graph(&[4, 1, 4], Some(4)).gpu().map(|gpu| gpu.batch_sizes);
        assert_eq!(sizes, Ok(Some(vec![1, 4])));
        assert_eq!(graph(&[4, 1, 4], Some(8)).validate(), Ok(()));
        let text = GraphMode::from_name("half").unwrap_err().to_string();
        assert!(
            text.contains("graph.mode") && text.contains("full_and_piecewise"),
            "{text}"
        );
        assert_eq!(GraphMode::from_name("none"), Ok(GraphMode::None));
    }

    #[test]
    fn the_context_is_at_most_the_trained_one() {
        let with = |n_ctx| Options {
            n_ctx,
            ..Options::default()
        };
        assert_eq!(with(None).context(2048), Ok(2048));
        assert_eq!(with(None).context(131_072), Ok(DEFAULT_CTX));
        assert_eq!(with(Some(131_072)).context(131_072), Ok(131_072));
        let text = with(Some(4096)).context(2048).unwrap_err().to_string();
        assert!(text.contains("4096") && text.contains("2048"), "{text}");
        let text = with(Some(1)).context(2048).unwrap_err().to_string();
        assert!(
            text.contains("n_ctx = 1") && text.contains("2 to 2048"),
            "{text}"
        );
    }
}
