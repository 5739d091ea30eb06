//! The inputs of a pass's rows on the card: tokens, positions, slots.

use std::sync::Arc;

use crate::backend::cuda::driver::buffer::DeviceBuffer;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::cuda::lower::lowering::Inputs;
use crate::backend::cuda::lower::params::PADDING_SLOT;
use crate::backend::TextPart;
use crate::error::{Error, Result};
use crate::plan::{Op, Plan, TableRow};

/// Each `[rows]` of u32.
#[derive(Debug)]
pub struct RowBuffers {
    pub tokens: DeviceBuffer,
    pub positions: DeviceBuffer,
    /// The last position of the row's sequence in the pass, where an op looks ahead.
    pub ends: Option<DeviceBuffer>,
    /// The first and the last position that each row sees, where a window is around it: so many tokens to
    /// either side.
    pub spans: Option<(usize, DeviceBuffer)>,
    /// Which text of a pair each row is of, where an op looks at that.
    pub types: Option<DeviceBuffer>,
    /// Row of the page table.
    pub slots: DeviceBuffer,
    pub out_rows: DeviceBuffer,
    /// Which slot state a row has, where it has one.
    pub state_slots: DeviceBuffer,
}

impl RowBuffers {
    /// Buffers for up to `rows` rows of a plan, or of steps.
    ///
    /// # Errors
    /// [`crate::Error::Memory`]; [`Error::Internal`] for windows around rows that differ.
    pub fn new(context: &Arc<Context>, rows: usize, plan: Option<&Plan>) -> Result<Self> {
        let buffer = || DeviceBuffer::new(context, rows * 4);
        let mut spans = None;
        let ops = || plan.iter().flat_map(|plan| &plan.ops);
        for half in ops().filter_map(span) {
            if spans.as_ref().is_some_and(|(known, _)| *known != half) {
                return Err(Error::Internal("windows that differ around rows".into()));
            }
            spans = Some((half, DeviceBuffer::new(context, rows * 8)?));
        }
        let by_type = |op: &Op| {
            let row = TableRow::Type;
            matches!(op, Op::AddRow { row: of, .. } if *of == row)
        };
        let has_types = ops().any(by_type);
        let looks_ahead = plan.is_some_and(Plan::looks_ahead);
        Ok(Self {
            tokens: buffer()?,
            positions: buffer()?,
            ends: looks_ahead.then(buffer).transpose()?,
            spans,
            types: has_types.then(buffer).transpose()?,
            slots: buffer()?,
            out_rows: buffer()?,
            state_slots: buffer()?,
        })
    }

    /// Their addresses, for rows that the host gives.
    pub fn inputs(&self) -> Inputs {
        Inputs {
            tokens: self.tokens.address(),
            positions: self.positions.address(),
            ends: self.ends.as_ref().map_or(0, DeviceBuffer::address),
            spans: self.spans.as_ref().map_or(0, |(_, spans)| spans.address()),
            types: self.types.as_ref().map_or(0, DeviceBuffer::address),
            slots: self.slots.address(),
            out_rows: self.out_rows.address(),
            state_slots: self.state_slots.address(),
            state: 0,
        }
    }

    /// Says what the rows of the next pass are.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub fn write(&self, rows: &Rows, stream: &Stream) -> Result<()> {
        self.tokens.write(0, &rows.tokens, stream)?;
        self.write_types(&rows.types, stream)?;
        self.write_places(&rows.slots, &rows.positions, stream)?;
        self.out_rows.write(0, &rows.wanted, stream)
    }

    /// Says which text of a pair the rows of the next pass are of.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub fn write_types(&self, types: &[u32], stream: &Stream) -> Result<()> {
        let buffer = self.types.as_ref();
        buffer.map_or(Ok(()), |buffer| buffer.write(0, types, stream))
    }

    /// Says where the rows of the next pass stand.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub fn write_places(&self, slots: &[u32], positions: &[u32], stream: &Stream) -> Result<()> {
        self.positions.write(0, positions, stream)?;
        if let Some(ends) = &self.ends {
            let last = last_positions(slots, positions);
            ends.write(0, &last, stream)?;
            if let Some((half, spans)) = &self.spans {
                let half = u32::try_from(*half).unwrap_or(u32::MAX);
                let rows = positions.iter().zip(last);
                let around = rows.flat_map(|(at, end)| {
                    [at.saturating_sub(half), end.min(at.saturating_add(half))]
                });
                spans.write(0, &around.collect::<Vec<_>>(), stream)?;
            }
        }
        self.slots.write(0, slots, stream)
    }
}

/// Tokens to either side of a row that an op sees, where a window is around it.
fn span(op: &Op) -> Option<usize> {
    match op {
        Op::Attention {
            window: Some(tokens),
            causal: false,
            ..
        } => Some(tokens / 2),
        _ => None,
    }
}

/// Of each row the last position of those beside it that are of its slot.
fn last_positions(slots: &[u32], positions: &[u32]) -> Vec<u32> {
    let mut rest = positions;
    let runs = slots.chunk_by(|a, b| a == b).flat_map(|its| {
        let (run, more) = rest.split_at(its.len());
        rest = more;
        std::iter::repeat_n(run.last().copied().unwrap_or(0), its.len())
    });
    runs.collect()
}

/// What the rows of a pass are, on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    types: Vec<u32>,
    /// Those that give logits.
    wanted: Vec<u32>,
}

impl Rows {
    /// Adds tokens of `slot` from position `start` on, of which the `wanted` last give logits.
    pub fn push(&mut self, slot: usize, tokens: &[u32], start: usize, wanted: usize) {
        self.tokens.extend(tokens);
        self.positions.extend((start as u32..).take(tokens.len()));
        self.slots.resize(self.tokens.len(), slot as u32);
        self.types.resize(self.tokens.len(), 0);
        let end = self.tokens.len() as u32;
        self.wanted.extend(end - wanted as u32..end);
    }

    /// Adds a piece of a text, none of which gives logits.
    pub fn push_text(&mut self, piece: &TextPart<'_>) {
        let first = self.types.len();
        self.push(piece.slot, piece.tokens, piece.start, 0);
        self.types.truncate(first);
        self.types.extend(piece.types());
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Adds padding up to `rows` rows, which stores nothing and which nothing reads.
    pub fn pad(&mut self, rows: usize) {
        self.tokens.resize(rows, 0);
        self.positions.resize(rows, 0);
        self.slots.resize(rows, PADDING_SLOT);
        self.types.resize(rows, 0);
    }

    /// Has `wanted` rows give logits: for those that nothing reads the first row does again.
    pub fn pad_wanted(&mut self, wanted: usize) {
        self.wanted.resize(wanted, 0);
    }
}
