//! The fusion pass: neighbouring ops that one kernel can do become one fused op. A backend that
//! lowers a plan runs fused ops; the interpreter runs the plan itself and stays the oracle.

use super::{BufferId, Op, Plan, RopeStyle, WeightId};

/// What a fused mat-vec does with its sums.
#[derive(Debug, Clone, PartialEq)]
pub enum Epilogue {
    /// `out = sum`.
    Store,
    /// `out += sum`: a residual.
    Add { out: BufferId },
    /// Two matrices of the same shape: `out = silu(first) * second`.
    SwiGlu { out: BufferId },
    /// Three matrices: rotate q and k, store q, scatter k and v into the cache of `layer`.
    Qkv { layer: usize, style: RopeStyle },
}

/// One matrix of a fused mat-vec.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    pub weight: WeightId,
    pub bias: Option<WeightId>,
    /// Where its sums go; not written where the epilogue takes them.
    pub out: BufferId,
}

/// An op of the fused list.
#[derive(Debug, Clone, PartialEq)]
pub enum Fused {
    /// An op as it is.
    Single(Op),
    /// Mat-vecs of one `x`, with the norm before and what follows.
    MatVec {
        x: BufferId,
        /// Weight and epsilon of an RMSNorm over the whole row of `x`.
        norm: Option<(WeightId, f32)>,
        parts: Vec<Part>,
        epilogue: Epilogue,
    },
}

/// What the backend can fuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Off: every op stays single.
    pub fuse: bool,
    /// Whether the cache can be written value by value.
    pub scatter: bool,
}

/// Fuses `plan.ops`.
pub fn fuse(plan: &Plan, rules: Rules) -> Vec<Fused> {
    let mut fused = Vec::new();
    let mut at = 0;
    while at < plan.ops.len() {
        let rest = &plan.ops[at..];
        match rules.fuse.then(|| mat_vecs(plan, at, rules)).flatten() {
            Some((op, used)) => {
                fused.push(op);
                at += used;
            }
            None => {
                fused.push(single(&rest[0]));
                at += 1;
            }
        }
    }
    fused
}

fn single(op: &Op) -> Fused {
    match *op {
        Op::MatVec {
            x,
            weight,
            bias,
            out,
        } => Fused::MatVec {
            x,
            norm: None,
            parts: vec![Part { weight, bias, out }],
            epilogue: Epilogue::Store,
        },
        ref op => Fused::Single(op.clone()),
    }
}

/// Whether any op from `from` on reads `id` before it is written again.
fn read_later(plan: &Plan, from: usize, id: BufferId) -> bool {
    for op in &plan.ops[from..] {
        let op = op.signature();
        if op.inputs().any(|input| input == id) {
            return true;
        }
        if op.overwritten().any(|output| output == id) {
            return false;
        }
    }
    false
}

/// A norm and the mat-vecs behind it, with what follows them; and how many ops that are.
fn mat_vecs(plan: &Plan, start: usize, rules: Rules) -> Option<(Fused, usize)> {
    let ops = &plan.ops[start..];
    let (x, norm, input, mut at) = match ops[0] {
        Op::RmsNorm {
            x,
            weight,
            out,
            group,
            eps,
        } if group == plan.buffer(x).width => (x, Some((weight, eps)), out, 1),
        Op::MatVec { x, .. } => (x, None, x, 0),
        _ => return None,
    };
    let mut parts = Vec::new();
    while let Some(Op::MatVec {
        x,
        weight,
        bias,
        out,
    }) = ops.get(at)
    {
        if *x != input {
            break;
        }
        parts.push(Part {
            weight: *weight,
            bias: *bias,
            out: *out,
        });
        at += 1;
    }
    if parts.is_empty() || (norm.is_some() && read_later(plan, start + at, input)) {
        return None;
    }
    let (epilogue, used) = epilogue(plan, start + at, &parts, rules);
    // Without an epilogue that joins them, a kernel takes up to three matrices.
    if epilogue == Epilogue::Store && parts.len() > 3 {
        return None;
    }
    Some((
        Fused::MatVec {
            x,
            norm,
            parts,
            epilogue,
        },
        at + used,
    ))
}

/// The epilogue that the ops from `at` on allow, and how many of them it stands for.
fn epilogue(plan: &Plan, at: usize, parts: &[Part], rules: Rules) -> (Epilogue, usize) {
    let dead = |ids: &[BufferId], from: usize| ids.iter().all(|id| !read_later(plan, from, *id));
    match (parts, &plan.ops[at..]) {
        ([part], [Op::Add { x, out }, ..]) if *x == part.out && dead(&[*x], at + 1) => {
            (Epilogue::Add { out: *out }, 1)
        }
        ([a, b], [Op::SwiGlu { gate, up, out }, ..])
            if *gate == a.out
                && *up == b.out
                && plan.weight(a.weight).ty == plan.weight(b.weight).ty
                && a.bias.is_none()
                && b.bias.is_none()
                && dead(&[*gate, *up], at + 1) =>
        {
            (Epilogue::SwiGlu { out: *out }, 1)
        }
        (
            [q, k, v],
            [Op::Rope {
                x: q_rope, style, ..
            }, Op::Rope {
                x: k_rope,
                style: k_style,
                ..
            }, Op::KvScatter {
                k: k_in,
                v: v_in,
                layer,
            }, ..],
        ) if rules.scatter
            && (*q_rope, *k_rope, *k_in, *v_in) == (q.out, k.out, k.out, v.out)
            && style == k_style
            && plan.kv.head_dim == 2 * plan.rope.inv_freq.len()
            && plan.kv.head_dim.is_multiple_of(8)
            && dead(&[k.out, v.out], at + 3) =>
        {
            (
                Epilogue::Qkv {
                    layer: *layer,
                    style: *style,
                },
                3,
            )
        }
        _ => (Epilogue::Store, 0),
    }
}
