//! An attention op: its shape, the memory that its blocks merge through, and whether a card has room for it.

use super::lowering::{Inputs, Lowering, Pass};
use super::shapes::Attention;
use crate::backend::cuda::driver::constants::{Constants, Group, Line};
use crate::backend::cuda::driver::info::DeviceInfo;
use crate::backend::cuda::driver::source::constants;
use crate::backend::cuda::driver::spec::{Kind, Spec, Traffic};
use crate::backend::PAGE_TOKENS;
use crate::error::{Error, Result};
use crate::plan::fuse::Stored;
use crate::plan::signature::Rotation;
use crate::plan::{BufferId, Chosen, KvShape, Op, Plan, RopeStyle, WeightId};
use crate::quant::{self, QuantType, KV_HEAD_MULTIPLE};

/// Splits of one row's attention; see attention_fixed.cu.
pub const MAX_SPLITS: usize = 32;

/// Most query heads of a block of attention_fixed.cu, and most numbers that they have together: more do
/// not fit the registers.
const BLOCK_HEADS: usize = 16;
const BLOCK_WIDTH: usize = 2048;

/// Rows of one launch over a prompt of a kernel for steps: its partial sums take memory.
pub const ATTENTION_ROWS: usize = 128;

/// Shared memory of a block of attention_fixed.cu that is not pages.
pub const STATIC_BYTES: usize = 16 << 10;

/// An attention op of a plan.
#[derive(Debug, Clone, Copy)]
pub struct AttentionOp {
    pub q: BufferId,
    pub out: BufferId,
    pub layer: usize,
    /// Of the layer's cache.
    pub kv: KvShape,
    pub n_head: usize,
    pub scale: f32,
    /// Most tokens that a row sees, where these are not all.
    pub window: Option<usize>,
    /// Whether a row sees none behind it.
    pub causal: bool,
    /// A logit a head, where softmax has one more.
    pub sinks: Option<WeightId>,
    /// The blocks of tokens that a row sees, where not all.
    pub chosen: Option<Chosen>,
    /// What it stores itself before.
    pub stored: Option<Stored>,
}

constants! {
    /// What rotate.cuh is compiled for.
    pub struct RotateConstants {
        half: uint32_t, interleaved: bool,
    }

    /// What kernels know of an attention op.
    pub struct AttentionConstants {
        n_head: int, n_head_kv: int, head_dim: int, value_dim: int,
        /// 2: keys and values; 1: keys, which have values in them.
        stored: uint32_t,
        /// 0: rows see all tokens.
        window: uint32_t,
        has_sinks: bool, kv: KvCodes,
    }
}

/// The layout of heads of `HEAD_DIM` keys or values of a type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvCodes(pub &'static QuantType);

impl Group for KvCodes {
    fn list(&self, list: &mut Constants) {
        if let Some(kv) = self.0.kernel.kv {
            list.push(Line::Using("Kv".into(), format!("{}<HEAD_DIM>", kv.name)));
        }
    }
}

impl RotateConstants {
    pub fn new(plan: &Plan, rotation: Rotation) -> Self {
        Self {
            half: plan.ropes[rotation.table].inv_freq.len(),
            interleaved: rotation.style == RopeStyle::Interleaved,
        }
    }

    /// Where nothing is rotated.
    pub fn none() -> Self {
        Self {
            half: 8,
            interleaved: false,
        }
    }
}

impl AttentionOp {
    /// Of an op, if it is one, and what its launch stores.
    pub fn new(plan: &Plan, op: &Op, stored: Option<Stored>) -> Option<Self> {
        match *op {
            Op::Attention {
                q,
                out,
                layer,
                n_head,
                scale,
                window,
                sinks,
                causal,
                chosen,
            } => Some(Self {
                q,
                out,
                layer,
                kv: plan.kv[layer],
                n_head,
                scale,
                window: match causal {
                    true => window,
                    false => window.map(|tokens| tokens / 2 * 2 + 1),
                },
                causal,
                sinks,
                chosen,
                stored,
            }),
            _ => None,
        }
    }

    /// What kernels know of it, where rows have up to `n_ctx` tokens.
    pub fn constants(&self, l: &Lowering) -> AttentionConstants {
        AttentionConstants {
            n_head: self.n_head,
            n_head_kv: self.kv.n_head_kv,
            head_dim: self.kv.head_dim,
            value_dim: self.kv.value_dim(),
            stored: self.kv.stored(),
            window: self.window_in(l.n_ctx).unwrap_or(0),
            has_sinks: self.sinks.is_some(),
            kv: KvCodes(l.kv_type),
        }
    }

    /// The window where rows have up to `n_ctx` tokens: of one around the row half is in front.
    fn window_in(&self, n_ctx: usize) -> Option<usize> {
        let reach = |tokens: usize| if self.causal { tokens } else { tokens / 2 + 1 };
        self.window.filter(|tokens| reach(*tokens) < n_ctx)
    }

    /// Whether the window is around a row, so that both ends of what it sees are given.
    pub fn has_spans(&self, n_ctx: usize) -> bool {
        !self.causal && self.window_in(n_ctx).is_some()
    }

    /// Where the last position stands that each row sees.
    pub fn last_seen(&self, inputs: &Inputs) -> u64 {
        match self.causal {
            true => inputs.positions,
            false => inputs.ends,
        }
    }

    /// Most splits of a row of up to `tokens` tokens: each has a page at least.
    pub fn most_splits(&self, tokens: usize) -> usize {
        let all = tokens.div_ceil(PAGE_TOKENS);
        // A window ends anywhere in its last page.
        let in_window = |window: usize| (window - 1).div_ceil(PAGE_TOKENS) + 1;
        let pages = self.window.map_or(all, |window| all.min(in_window(window)));
        pages.clamp(1, MAX_SPLITS)
    }
}

/// Memory that the blocks of one row merge through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MergeBytes {
    /// `[rows][n_head_kv][parts][MAX_SPLITS][heads of a part][VALUE_DIM + 2]` f32.
    pub partial: usize,
    /// `[rows][n_head_kv][parts]` u32, zero between launches.
    pub tickets: usize,
}

impl MergeBytes {
    /// Room for either.
    pub fn max(self, other: Self) -> Self {
        Self {
            partial: self.partial.max(other.partial),
            tickets: self.tickets.max(other.tickets),
        }
    }

    /// For passes of up to `rows` rows, `out` of them in a step.
    pub fn new(plan: &Plan, shapes: &Attention, rows: usize, out: usize) -> Self {
        let mut most = Self::default();
        for (n_head, kv) in plan.attentions() {
            let group = n_head / kv.n_head_kv.max(1);
            for single_row in [false, true] {
                let (parts, heads) = parts(shapes, group, kv.head_dim, single_row);
                let split_floats = heads * (kv.value_dim() + 2);
                // A step's attention is one launch, whatever its rows.
                let blocks = out.max(ATTENTION_ROWS).min(rows) * kv.n_head_kv * parts;
                most.partial = most.partial.max(blocks * MAX_SPLITS * split_floats * 4);
                most.tickets = most.tickets.max(blocks * 4);
            }
        }
        most
    }
}

/// Blocks of attention_fixed.cu that share a group of query heads, of a single row or of several, and heads
/// of each but the last. Its products take four at a time.
pub fn parts(
    shapes: &Attention,
    group: usize,
    head_dim: usize,
    single_row: bool,
) -> (usize, usize) {
    let most = match single_row {
        true => shapes.heads,
        false => (BLOCK_WIDTH / head_dim.max(1) / 4 * 4).clamp(4, BLOCK_HEADS),
    };
    // As few as have at most so many.
    let parts = group.div_ceil(most).max(1);
    (parts, group.div_ceil(parts))
}

/// What the launches of an op say of themselves.
pub fn describe(l: &Lowering, op: &AttentionOp, pass: &Pass, specs: &mut [Spec]) {
    let head_bytes = l.kv_type.kv_head_bytes(op.kv.head_dim).unwrap_or(0);
    let width = l.plan.buffer(op.q).width + l.plan.buffer(op.out).width;
    // Queries in, sums out; of each token the keys and values of all heads. Several launches share rows.
    let launches = specs.len().max(1);
    let rows = pass.rows * width * 4 / launches;
    for spec in specs {
        spec.kind = Kind::Attention;
        spec.traffic = Traffic {
            per_token: (op.kv.stored() * op.kv.n_head_kv * head_bytes) as u64,
            // Of scores and of values, each a product as wide.
            per_pair: (2 * width / launches) as u64,
            window: op.window,
            ..Traffic::rows(rows)
        };
        spec.label = format!("{} {}", spec.entry, op.layer);
    }
}

/// Whether a card keeps keys and values of these heads in `kv_type`, a page's keys of which its shared
/// memory has room for.
///
/// # Errors
/// [`Error::Argument`] with the numbers, and another type or device.
pub fn check(card: &DeviceInfo, kv_type: &QuantType, shapes: &[KvShape]) -> Result<()> {
    quant::check_kv_on_card(kv_type)?;
    let is_odd = |kv: &&KvShape| {
        let mut dims = [kv.head_dim, kv.value_dim()].into_iter();
        dims.any(|dim| !dim.is_multiple_of(KV_HEAD_MULTIPLE))
    };
    if let Some(kv) = shapes.iter().find(is_odd) {
        return Err(Error::Argument {
            name: "device",
            value: "cuda".into(),
            reason: format!(
                "GPUs need heads of a multiple of {KV_HEAD_MULTIPLE} values, but these have {}; \
                 use device=\"cpu\"",
                kv.head_dim
            ),
        });
    }
    let bytes = |ty: &QuantType, kv: &KvShape| page_bytes(ty, kv.head_dim) + STATIC_BYTES;
    let fits = |ty: &QuantType, kv: &KvShape| bytes(ty, kv) <= card.shared_bytes;
    let Some(kv) = shapes.iter().find(|kv| !fits(kv_type, kv)) else {
        return Ok(());
    };
    let able = |t: &&QuantType| t.sums_kv_exactly() && shapes.iter().all(|kv| fits(t, kv));
    let able = quant::kv_types().filter(able);
    let able: Vec<_> = able.map(|t| t.name.to_lowercase()).collect();
    let remedy = match able.is_empty() {
        true => "device=\"cpu\"".into(),
        false => able.join(" or "),
    };
    Err(Error::Argument {
        name: "kv_type",
        value: kv_type.name.to_lowercase(),
        reason: format!(
            "heads of {} values need {} bytes of shared memory per block, but this card has {}; \
             use {remedy}",
            kv.head_dim,
            bytes(kv_type, kv),
            card.shared_bytes
        ),
    })
}

/// Bytes of a page's keys of one head.
pub fn page_bytes(kv_type: &QuantType, head_dim: usize) -> usize {
    kv_type.kv_head_bytes(head_dim).unwrap_or(0) * PAGE_TOKENS
}

#[cfg(test)]
mod tests {
    use super::super::tests::blocks;
    use super::*;

    #[test]
    fn heads_that_no_block_has_room_for_are_refused() {
        for (arch, kv_type, head_dim, fits) in [
            ("sm_75", "I16", 256, true),
            ("sm_75", "I16", 512, false),
            ("sm_75", blocks(), 512, true),
            ("sm_75", blocks(), 1024, false),
            ("sm_86", "I16", 512, true),
            ("sm_86", "I16", 1024, false),
            ("sm_86", blocks(), 1024, true),
            ("sm_90", "I16", 1024, true),
        ] {
            let card = DeviceInfo::of_arch(arch, 16).unwrap();
            let shapes = [64, head_dim].map(|head_dim| KvShape::new(1, head_dim));
            let found = check(&card, quant::kv_by_name(kv_type).unwrap(), &shapes);
            assert_eq!(found.is_ok(), fits, "{arch} {kv_type} {head_dim}");
            if let Err(e) = found {
                let text = e.to_string();
                assert!(text.contains(&format!("{head_dim} values")), "{text}");
                let remedy = match (arch, head_dim) {
                    ("sm_75", 1024) => "device=\"cpu\"".into(),
                    _ => blocks().to_lowercase(),
                };
                assert!(text.ends_with(&format!("; use {remedy}")), "{text}");
            }
        }
    }

    #[test]
    fn what_no_card_keeps_is_refused_with_what_it_does() {
        let card = DeviceInfo::of_arch("sm_90", 16).unwrap();
        let check = |ty: &QuantType, head_dim| {
            let shape = KvShape::new(1, head_dim);
            check(&card, ty, &[shape]).map_err(|e| e.to_string())
        };
        let mut refused = 0;
        for ty in quant::kv_types() {
            match check(ty, 64) {
                Ok(()) => assert!(ty.sums_kv_exactly()),
                Err(text) => {
                    let value = format!("kv_type = {}:", ty.name.to_lowercase());
                    assert!(text.contains(&value), "{text}");
                    for kept in quant::kv_types().filter(|ty| ty.sums_kv_exactly()) {
                        let named = format!("{} (", kept.name.to_lowercase());
                        assert!(text.contains(&named), "{text}");
                    }
                    refused += 1;
                }
            }
        }
        assert_eq!(refused, quant::kv_types().count() - 2);
        let text = check(quant::kv_by_name("i16").unwrap(), 20).unwrap_err();
        assert!(
            text.contains("a multiple of 16 values, but these have 20"),
            "{text}"
        );
        assert!(text.contains("device=\"cpu\""), "{text}");
    }
}
