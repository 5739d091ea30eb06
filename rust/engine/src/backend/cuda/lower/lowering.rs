//! The inputs of lowering: plan, card, addresses, and the pass.

use std::collections::HashMap;
use std::sync::Arc;

use super::layout::Order;
use super::params::KvView;
use super::shapes::Shapes;
use crate::backend::cuda::driver::info::DeviceInfo;
use crate::error::{Error, Result};
use crate::plan::fuse::{FusedPlan, PassShape};
use crate::plan::signature::Over;
use crate::plan::{BufferId, Op, Plan, Rows, WeightId, MOST_CARDS};
use crate::quant::QuantType;

/// A plan, what it runs on, and where everything lies.
#[derive(Debug, Clone)]
pub struct Lowering {
    pub plan: Arc<Plan>,
    pub fused: FusedPlan,
    pub card: DeviceInfo,
    /// What is fastest on it.
    pub shapes: Shapes,
    /// Encoding of keys and values.
    pub kv_type: &'static QuantType,
    /// Sequences at a time, and tokens that each may have.
    pub n_slots: usize,
    pub n_ctx: usize,
    /// Most rows of one pass, and most rows of its logits.
    pub max_rows: usize,
    pub max_out: usize,
    pub at: Addresses,
}

/// Where on the card everything lies that a launch may name.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    /// By [`BufferId`], `[rows][width]` f32.
    pub buffers: Vec<u64>,
    /// `[tiles][superblocks]` of one matrix, or of two joined ones.
    pub matrices: HashMap<(Vec<WeightId>, Order), u64>,
    /// f32 of norms and biases.
    pub vectors: HashMap<WeightId, u64>,
    /// By layer.
    pub kv: Vec<KvView>,
    /// By table of angles, `[n_ctx][half][cos, sin]` f32.
    pub cos_sin: Vec<u64>,
    /// By the plan's states, `[n_slots][width]` f32.
    pub states: Vec<u64>,
    pub rounds: RoundAddresses,
    /// `[n_slots]` u64: see [`super::overflow`].
    pub overflows: u64,
    pub scratch: ScratchAddresses,
    /// Of a plan that is shared.
    pub exchange: ExchangeAddresses,
}

/// Where what rounds keep lies.
#[derive(Debug, Clone, Default)]
pub struct RoundAddresses {
    /// By the plan's states, what is kept of rows: `[ROUND_ROWS]` of [`Plan::kept_widths`], f32.
    pub kept: Vec<u64>,
    /// `[states]` of the addresses of a state and of what is kept of it, in the order of [`super::rounds::places`].
    pub places: u64,
    /// `[ROUND_ROWS]` u32.
    pub accepted: u64,
}

/// Where kernels leave for each other what is no buffer of the plan; see [`super::pass::scratch`].
#[derive(Debug, Clone, Copy, Default)]
pub struct ScratchAddresses {
    pub partial: u64,
    pub tickets: u64,
    pub tiles: u64,
    pub squares: u64,
    pub sums: u64,
    /// Blocks of rows by expert, and their pairs.
    pub groups: u64,
}

/// Where cards store what others wait for.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExchangeAddresses {
    /// By card, `[2][MOST_CARDS][capacity]` f32.
    pub landing: [u64; MOST_CARDS],
    /// By card, `[MOST_CARDS][MOST_BLOCKS]` u64.
    pub flags: [u64; MOST_CARDS],
    /// One u64, and behind it one u32.
    pub count: u64,
    /// One u64 in host memory.
    pub abort: u64,
    /// Numbers of a card in one exchange, at most.
    pub capacity: usize,
}

/// Addresses of what the rows of a pass are, each `[rows]` of u32; with `state`, tokens and
/// positions come from there.
#[derive(Debug, Clone, Copy)]
pub struct Inputs {
    pub tokens: u64,
    pub positions: u64,
    /// The last position of each row's sequence in the pass; 0 where no op looks ahead.
    pub ends: u64,
    /// The first and the last position that each row sees; 0 where no window is around a row.
    pub spans: u64,
    /// Which text of a pair each row is of; 0 where no op looks at that.
    pub types: u64,
    /// Rows of the page table.
    pub slots: u64,
    pub out_rows: u64,
    /// Which slot state a row has, where it has one.
    pub state_slots: u64,
    pub state: u64,
}

/// What the rows of a pass are: a matter of launches, never of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Steps.
    Decode,
    /// Steps that verify drafts, which are rows of their sequence.
    Round,
    /// A drafter's guesses, each of a sequence of its own.
    Guess,
    /// Parts of prompts. The last `steps` rows are those of a step beside them, sequences of their own.
    Prefill { steps: usize },
}

/// One pass to lower.
#[derive(Debug, Clone, Copy)]
pub struct Pass {
    pub rows: usize,
    /// Rows that give logits.
    pub out: usize,
    pub inputs: Inputs,
    pub path: Path,
    /// Whether every row's logits are wanted, in order: then no row is picked.
    pub all: bool,
    /// Whether hidden states are wanted in the place of logits, of all rows.
    pub hidden: bool,
}

impl Pass {
    /// A step of `rows` rows all of whose logits are wanted, in order.
    pub fn step(rows: usize, inputs: Inputs) -> Self {
        Self {
            rows,
            out: rows,
            inputs,
            path: Path::Decode,
            all: true,
            hidden: false,
        }
    }

    /// Whether no two rows are of one sequence.
    pub fn one_row_per_sequence(&self) -> bool {
        self.rows == 1 || self.inputs.state != 0 || self.path == Path::Guess
    }

    /// How many rows, from the first on, may be neighbours in a sequence: those behind are alone.
    pub fn prompt_rows(&self) -> usize {
        match self.path {
            _ if self.one_row_per_sequence() => 0,
            Path::Decode | Path::Round | Path::Guess => self.rows,
            Path::Prefill { steps } => self.rows.saturating_sub(steps),
        }
    }

    /// How many rows it has of a kind.
    pub fn count(&self, rows: Rows) -> usize {
        rows.of(self.rows, self.out)
    }
}

impl Lowering {
    /// Where a buffer lies.
    pub fn address(&self, id: BufferId) -> u64 {
        self.at.buffers[id.0]
    }

    /// The buffer that an op reads: where no row is picked, the one to pick from.
    pub fn source(&self, id: BufferId, pass: &Pass) -> u64 {
        let may_be_picked = pass.all && self.plan.buffer(id).rows == Rows::Out;
        let picked = may_be_picked.then(|| self.picked_from(id)).flatten();
        self.address(picked.unwrap_or(id))
    }

    /// The buffer whose rows are picked for `id`, if any are.
    fn picked_from(&self, id: BufferId) -> Option<BufferId> {
        let mut ops = self.plan.ops.iter().map(Op::signature);
        let picks = ops.find(|op| op.over == Over::Picked && op.outputs().any(|out| out == id))?;
        let picked = picks.inputs().next();
        picked
    }

    /// Rows of a buffer in `pass`.
    pub fn rows_of(&self, id: BufferId, pass: &Pass) -> usize {
        pass.count(self.plan.buffer(id).rows)
    }

    /// Floats of a buffer in `pass`.
    pub fn elements(&self, id: BufferId, pass: &Pass) -> u64 {
        (self.rows_of(id, pass) * self.plan.buffer(id).width) as u64
    }

    /// Where the tiles of a matrix, or of two joined ones, lie.
    pub fn weights(&self, ids: &[WeightId], order: Order) -> Result<u64> {
        let found = self.at.matrices.get(&(ids.to_vec(), order));
        found.copied().ok_or_else(|| {
            Error::Internal(format!("weights {ids:?} have no place in order {order:?}"))
        })
    }

    /// What fusion goes by of `pass`.
    pub fn shape(&self, pass: &Pass) -> PassShape {
        PassShape {
            rows: pass.rows,
            out: pass.out,
            is_step: matches!(pass.path, Path::Decode | Path::Guess) && pass.one_row_per_sequence(),
            sms: self.card.sm_count as usize,
            expert_rows: self.shapes.matvec.expert_rows,
        }
    }

    /// Where a vector lies; 0 where there is none.
    pub fn vector(&self, id: Option<WeightId>) -> Result<u64> {
        let Some(id) = id else { return Ok(0) };
        let found = self.at.vectors.get(&id);
        found
            .copied()
            .ok_or_else(|| Error::Internal(format!("vector {} has no place", id.0)))
    }

    /// What kernels need to find the tokens of `layer`.
    pub fn kv(&self, layer: usize) -> Result<KvView> {
        let found = self.at.kv.get(layer);
        found
            .copied()
            .ok_or_else(|| Error::Internal(format!("layer {layer} has no cache")))
    }
}
