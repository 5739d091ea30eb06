//! A fused product with weights, for whichever kernel computes it: which weights it reads and in
//! what order, and what becomes of its sums.

use super::experts;
use super::layout::{arrangement, Matrix, Order};
use super::lowering::{Lowering, Pass};
use super::params::{QkvRotation, Segment, SharedExpert};
use super::shape::TILE_ROWS;
use crate::backend::cuda::driver::source::constants;
use crate::backend::cuda::driver::spec::Spec;
use crate::error::Result;
use crate::plan::fuse::{Epilogue, Gate, PassFusion, ProductOp, MOST_PARTS};
use crate::quant::QuantType;

constants! {
    /// What epilogue.cuh is compiled for.
    pub struct EpilogueConstants with {
        EPILOGUE_STORE, EPILOGUE_ADD, EPILOGUE_SWIGLU, EPILOGUE_GEGLU, EPILOGUE_CLAMPED_SWIGLU,
        EPILOGUE_QKV
    } with { ORDER_NATURAL, ORDER_NEIGHBOURS, ORDER_HALVES } {
        epilogue: name, order: name, scale_bits: bits, scaled: bool, head_dim: int,
    }
}

/// Its weights and what becomes of the sums.
#[derive(Debug)]
pub struct Product {
    pub types: Vec<&'static QuantType>,
    /// Columns.
    pub n_in: usize,
    /// That of an expert that its launch has too comes behind its own.
    pub segment: [Segment; MOST_PARTS],
    /// Of each segment of its own.
    pub tiles: Vec<usize>,
    /// Of weights.
    pub bytes: usize,
    /// The epilogue's constants.
    pub constants: EpilogueConstants,
    /// By what the epilogue rotates heads, if it does.
    pub rotation: QkvRotation,
    /// The last product of an expert that every row goes to, where the launch makes it.
    pub shared: SharedExpert,
    /// The tiles of an expert that every row goes to.
    pub shared_tiles: usize,
    /// Floats of a row that are written, and of those that are read before.
    written: usize,
    read_first: usize,
    /// Sums of a row.
    summed: usize,
    /// The tensors, for people.
    names: String,
}

impl Product {
    /// What the launch of `kernel` with `m` rows of `n_in` columns reports: label and traffic.
    pub fn describe(&self, spec: &mut Spec, kernel: &str, m: usize, n_in: usize) {
        spec.label = format!("{kernel} {}", self.names);
        spec.traffic.weights = self.bytes as u64;
        spec.traffic.rows = (m * (n_in + self.written + self.read_first) * 4) as u64;
        spec.traffic.operations = (2 * m * n_in * self.summed) as u64;
    }

    /// The same with the product of an expert that every row goes to.
    fn beside(
        mut self,
        l: &Lowering,
        shared: &ProductOp,
        by_experts: bool,
        pass: &Pass,
    ) -> Result<Self> {
        let its = product(l, shared, pass)?;
        self.segment[self.types.len()] = its.segment[0];
        self.types.extend(its.types);
        self.shared_tiles = its.tiles[0];
        self.bytes += its.bytes;
        // By experts it counts as one more of them.
        if !by_experts {
            self.summed += its.summed;
        }
        self.names = format!("{} {}", self.names, its.names);
        if let PassFusion::Gate(gate) = shared.fusion {
            self.shared = SharedExpert {
                x: l.address(gate.x),
                gate: l.address(gate.gate),
                product: shared.number as u32,
                unused: 0,
            };
        }
        Ok(self)
    }
}

/// Weights and epilogue of `op`.
pub fn product(l: &Lowering, op: &ProductOp, pass: &Pass) -> Result<Product> {
    let ProductOp {
        parts, epilogue, ..
    } = op;
    let plan = &l.plan;
    let arrangement = arrangement(plan, parts, epilogue);
    let mut product = Product {
        types: Vec::new(),
        n_in: plan.weight(parts[0].weight).n_in,
        segment: [<Segment as bytemuck::Zeroable>::zeroed(); MOST_PARTS],
        tiles: Vec::new(),
        bytes: 0,
        constants: epilogue_constants(op, arrangement[0].1),
        rotation: match epilogue {
            Epilogue::Qkv {
                rotation,
                key_table,
                ..
            } => QkvRotation {
                cos_sin: l.at.cos_sin[rotation.table],
                key_cos_sin: l.at.cos_sin[*key_table],
                positions: pass.inputs.positions,
                n_ctx: l.n_ctx as u32,
                unused: 0,
            },
            _ => bytemuck::Zeroable::zeroed(),
        },
        shared: bytemuck::Zeroable::zeroed(),
        shared_tiles: 0,
        written: 0,
        read_first: 0,
        summed: 0,
        names: String::new(),
    };
    for (i, (ids, order)) in arrangement.iter().enumerate() {
        let matrix = Matrix::new(plan, ids, *order)?;
        let out = match epilogue {
            Epilogue::Add { out, .. } | Epilogue::Gated { out, .. } => *out,
            Epilogue::Store | Epilogue::Qkv { .. } => parts[i].out,
        };
        // Of joined matrices the second is part 1; of a parted one both are part 0.
        let last = &parts[i + ids.len() - 1];
        product.segment[i] = Segment {
            weights: l.weights(ids, *order)?,
            out: l.address(out),
            bias: [l.vector(parts[i].bias)?, l.vector(last.bias)?],
            scale: [l.vector(parts[i].scale)?, l.vector(last.scale)?],
            tiles: matrix.expert_tiles as u32,
            rows: matrix.gives as u32,
        };
        product.types.push(matrix.ty);
        product.tiles.push(matrix.expert_tiles);
        // At most one expert a pair, and each once.
        let experts = op.experts.map_or(1, |experts| {
            let pairs = l.rows_of(op.x, pass) * experts::ranks(plan, experts.routes);
            pairs.min(matrix.n_expert)
        });
        product.bytes += matrix.bytes() / matrix.n_expert * experts;
        product.written += matrix.gives;
        product.summed += matrix.ids.len() * matrix.n_out;
        product.read_first += match epilogue {
            Epilogue::Add { .. } => matrix.n_out,
            _ => 0,
        };
    }
    let mut names: Vec<_> = arrangement
        .iter()
        .flat_map(|a| &a.0)
        .map(|id| plan.weight(*id).name.as_str())
        .collect();
    // Of one that is cut into several.
    names.dedup();
    product.names = names.join(" ");
    match &op.shared {
        Some(shared) => product.beside(l, shared, op.experts.is_some(), pass),
        None => Ok(product),
    }
}

/// What becomes of sums of rows in this order.
fn epilogue_constants(op: &ProductOp, order: Order) -> EpilogueConstants {
    EpilogueConstants {
        epilogue: match &op.epilogue {
            Epilogue::Store => "EPILOGUE_STORE",
            Epilogue::Add { .. } => "EPILOGUE_ADD",
            Epilogue::Gated { gate, .. } => match gate {
                Gate::Swi => "EPILOGUE_SWIGLU",
                Gate::Ge => "EPILOGUE_GEGLU",
                Gate::ClampedSwi => "EPILOGUE_CLAMPED_SWIGLU",
            },
            Epilogue::Qkv { .. } => "EPILOGUE_QKV",
        },
        order: match order {
            Order::Neighbours => "ORDER_NEIGHBOURS",
            Order::Halves { .. } => "ORDER_HALVES",
            Order::Natural | Order::Joined | Order::Parted { .. } | Order::Slice(_) => {
                "ORDER_NATURAL"
            }
        },
        scale_bits: match op.epilogue {
            Epilogue::Add { scale, .. } => scale,
            _ => 1.0,
        },
        scaled: op.parts.iter().any(|part| part.scale.is_some()),
        // Without heads, the least that there are.
        head_dim: match op.epilogue {
            Epilogue::Qkv { head_dim, .. } => head_dim,
            _ => TILE_ROWS,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::params::MatVec;
    use super::super::pass::specs;
    use super::super::tests::{at, id, lowering, step, superblocks, with};
    use super::*;
    use crate::plan::fuse::{Fused, FusedOp};
    use crate::plan::sketch as s;
    use crate::plan::{BufferId, Op, Plan, Rows, WeightId};
    use crate::quant;

    const N_EXPERT: usize = 8;
    const RANKS: usize = 2;
    /// Of the experts that are chosen.
    const N_FF: usize = 512;

    /// The small plan with a layer of experts behind, the shared one `n_ff` wide and behind a gate of
    /// `gates` numbers.
    fn experts(n_ff: usize, gates: usize) -> Lowering {
        let mut l = lowering("sm_90", superblocks(), "I16", true);
        let mut plan = Plan::clone(&l.plan);
        let width = plan.buffer(id("x")).width;
        // As many multiprocessors as tiles, so that ranks are chained.
        l.card.sm_count = (width / 16) as u32;
        let buffer = |l: &mut Lowering, plan: &mut Plan, name: &str, width: usize| {
            l.at.buffers.push((l.at.buffers.len() as u64 + 1) << 32);
            plan.add_buffer(name, width, Rows::Batch)
        };
        let [router, share, routes, gate, up, act, down] = [
            ("router", N_EXPERT),
            ("share", gates),
            ("routes", 2 * RANKS),
            ("gates", RANKS * N_FF),
            ("ups", RANKS * N_FF),
            ("acts", RANKS * N_FF),
            ("downs", RANKS * width),
        ]
        .map(|(name, width)| buffer(&mut l, &mut plan, name, width));
        let shared = ["gate_shexp", "up_shexp", "act_shexp", "gated_shexp"];
        let shared = shared.map(|name| buffer(&mut l, &mut plan, name, n_ff));
        let floats = quant::TYPES[0].name;
        let norm = plan.weights.iter().position(|w| w.name == "norm").unwrap();
        let norm = s::norm_of(WeightId(norm));
        // Of a product, of none yet.
        let scale = s::weight(&mut plan, "scale", [1; 3], floats);
        l.at.vectors.insert(scale, 1 << 60);
        let ty = superblocks();
        let mut of = |name, shape, ty| s::weight(&mut plan, name, shape, ty);
        let (x, delta) = (id("x"), id("delta"));
        let gate_shexp = of("gate_shexp", [width, n_ff, 1], ty);
        let up_shexp = of("up_shexp", [width, n_ff, 1], ty);
        let by_share = of("share", [width, gates, 1], floats);
        let by_router = of("router", [width, N_EXPERT, 1], floats);
        let last = of("last", [n_ff, width, 1], ty);
        let [gates, ups] = ["gates", "ups"].map(|name| of(name, [width, N_FF, N_EXPERT], ty));
        let downs = of("downs", [N_FF, width, N_EXPERT], ty);
        let ops = vec![
            s::matvec(x, norm, gate_shexp, shared[0]),
            s::matvec(x, norm, up_shexp, shared[1]),
            s::swiglu([shared[0], shared[1], shared[2]]),
            s::matvec(x, norm, by_share, share),
            s::matvec(x, norm, by_router, router),
            s::route(router, routes),
            s::by_experts(x, norm, routes, gates, gate),
            s::by_experts(x, norm, routes, ups, up),
            s::swiglu([gate, up, act]),
            s::by_experts(act, None, routes, downs, down),
            s::mix(down, routes, delta),
            s::add(delta, x),
            s::sigmoid_mul(shared[2], share, shared[3]),
            s::matvec(shared[3], None, last, delta),
            s::add(delta, x),
        ];
        let head = |op: &Op| matches!(op, Op::SelectRows { .. });
        let head = plan.ops.iter().position(head).unwrap();
        plan.ops.splice(head..head, ops);
        with(l, plan)
    }

    fn labels(list: &[Spec]) -> Vec<&str> {
        let its = list.iter().map(|s| s.label.as_str());
        its.filter(|label| {
            ["gates", "shexp", "last"]
                .iter()
                .any(|of| label.contains(of))
        })
        .collect()
    }

    #[test]
    fn of_one_row_it_is_a_rank_more_where_it_is_like_the_others() {
        let joined = "route matvec gates ups gate_shexp up_shexp";
        let first = "matvec gate_shexp up_shexp";
        let (chained, last) = ("matvec downs last mix", "gate matvec last");
        for (n_ff, gates, wanted) in [
            (N_FF, 1, vec![joined, chained]),
            // Of other rows the first product alone.
            (2 * N_FF, 1, vec![joined, last]),
            // A gate for each value.
            (N_FF, N_FF, vec![joined, last]),
        ] {
            let l = experts(n_ff, gates);
            let list = specs(&l, &step(1)).unwrap();
            assert_eq!(labels(&list), wanted, "{n_ff} {gates}");
            // A few rows as one, each by itself, but for the gate of a product of its own.
            let few = specs(&l, &step(4)).unwrap();
            assert_eq!(labels(&few)[0], wanted[0]);
            assert_eq!(labels(&few)[1] == wanted[1], wanted[1] == chained);
            assert!(few.iter().any(|s| s.label == wanted[0] && s.grid[2] == 4));
            let several = specs(&l, &step(5)).unwrap();
            assert!(labels(&several)[0].contains("gate_shexp up_shexp"));
            assert!(!labels(&several)
                .iter()
                .any(|label| label.contains("downs last")));
            let floats = list.iter().position(|s| s.label == "matvec share router");
            let its = list.iter().position(|s| s.label == joined);
            assert!(
                floats.unwrap() < its.unwrap(),
                "the router before the choice"
            );
        }
        // On more multiprocessors ranks are not chained.
        let mut l = experts(N_FF, 1);
        l.card.sm_count *= 3;
        let list = specs(&l, &step(1)).unwrap();
        assert_eq!(labels(&list), [joined, last]);
        // Nor is it the same product with other scales, or where what it writes is read before.
        for change in [
            |plan: &mut Plan| {
                let by = plan.weights.iter().position(|w| w.name == "scale");
                for op in &mut plan.ops {
                    if let Op::MatVec { weight, scale, .. } = op {
                        if plan.weights[weight.0].name.ends_with("_shexp") {
                            *scale = by.map(WeightId);
                        }
                    }
                }
            },
            |plan: &mut Plan| {
                let named = |id: &BufferId| plan.buffer(*id).name == "act_shexp";
                let outs = plan.ops.iter().map(|op| match op {
                    Op::SwiGlu { out, .. } => Some(*out).filter(named),
                    _ => None,
                });
                let mut outs = outs.enumerate().filter_map(|(at, out)| Some((at, out?)));
                let (at, x) = outs.next().unwrap();
                plan.ops.insert(at + 1, Op::Scale { x, factor: 2.0 });
            },
        ] {
            let l = experts(N_FF, 1);
            let mut plan = Plan::clone(&l.plan);
            change(&mut plan);
            let list = specs(&with(l, plan), &step(1)).unwrap();
            assert!(labels(&list).contains(&first), "{:?}", labels(&list));
        }
    }

    #[test]
    fn its_launch_finds_weights_rows_and_gate() {
        let l = experts(N_FF, 1);
        let address = |name: &str| {
            let found = l.plan.buffers.iter().position(|b| b.name == name);
            l.address(BufferId(found.unwrap()))
        };
        let list = specs(&l, &step(1)).unwrap();
        let of = |part: &str| {
            let found = list.iter().position(|s| s.label.contains(part)).unwrap();
            (&list[found], list[found].params::<MatVec>().unwrap())
        };
        let (first, params) = of("gate_shexp");
        assert_eq!(first.grid[1] as usize, RANKS + 1);
        assert_eq!(params.segment[0].out, address("acts"));
        assert_eq!(params.segment[1].out, address("act_shexp"));
        assert_eq!((params.x, params.shared.x), (at("x"), 0));
        let (last, params) = of("downs last mix");
        assert_eq!(last.grid[1], 1);
        // A warp a superblock of each.
        assert_eq!(last.block as usize, 32 * (RANKS + 1) * N_FF / 256);
        assert_eq!((params.x, params.mixed), (address("acts"), at("x")));
        let shared = params.shared;
        assert_eq!(
            (shared.x, shared.gate),
            (address("act_shexp"), address("share"))
        );
        let number = |fused: &FusedOp| {
            matches!(&fused.op, Fused::MatVec(op)
            if l.plan.weight(op.parts[0].weight).name == "last")
        };
        let number = l.fused.list.iter().position(number).unwrap();
        assert_eq!(shared.product as usize, number);
        assert!(params.segment[1].weights != params.segment[0].weights);
    }
}
