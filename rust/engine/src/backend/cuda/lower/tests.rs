//! A small plan lowered for cards that are only described: no driver, no simulator.

use std::sync::Arc;

use bytemuck::Zeroable;

use super::layout::{wanted, Matrix, Order};
use super::lowering::{Addresses, Inputs, Lowering, Pass, Path, ScratchAddresses};
use super::params::{
    AttentionFixed, Embed, KvView, MatMul, MatVec, PromptAttention, RmsNorm, SelectRows, Split,
};
use super::pass::{specs, Scratch};
use super::shapes::Shapes;
use crate::backend::cuda::driver::info::DeviceInfo;
use crate::backend::cuda::driver::spec::{Kind, Spec};
use crate::plan::fuse::{Fused, FusedOp, FusedPlan};
use crate::plan::sketch as s;
use crate::plan::{BufferId, KvShape, Op, Plan, RopeStyle, Rows, WeightId};
use crate::quant::{self, QuantType};

const HEAD_DIM: usize = 128;
const N_HEAD: usize = 4;
const WIDTH: usize = N_HEAD * HEAD_DIM;
const N_VOCAB: usize = 1000;
const MAX_ROWS: usize = 512;

/// The buffers of [`plan`], in order.
const NAMES: [&str; 11] = [
    "x", "q", "k", "v", "heads", "delta", "gate", "up", "act", "last", "logits",
];

pub fn named(fits: impl Fn(&&'static QuantType) -> bool) -> impl Iterator<Item = &'static str> {
    quant::TYPES.iter().filter(fits).map(|t| t.name)
}

/// The first type of superblocks, and the last.
pub fn superblocks() -> &'static str {
    named(|t| t.block_elems == 256).next().unwrap()
}

/// The type of blocks that a cache may have too.
pub fn blocks() -> &'static str {
    named(|t| t.sums_kv_exactly()).next().unwrap()
}

pub fn id(name: &str) -> BufferId {
    BufferId(NAMES.iter().position(|n| *n == name).unwrap())
}

/// One layer between an embedding and a head, with matrices in `ty`.
fn plan(ty: &str) -> Plan {
    let mut plan = Plan {
        ropes: s::angles(HEAD_DIM / 2),
        kv: vec![KvShape::new(1, HEAD_DIM)],
        logits: id("logits"),
        ..Plan::default()
    };
    for name in NAMES {
        let (width, rows) = match name {
            "k" | "v" => (HEAD_DIM, Rows::Batch),
            "gate" | "up" | "act" => (2 * WIDTH, Rows::Batch),
            "last" => (WIDTH, Rows::Out),
            "logits" => (N_VOCAB, Rows::Out),
            _ => (WIDTH, Rows::Batch),
        };
        plan.add_buffer(name, width, rows);
    }
    let weight = s::weight(&mut plan, "norm", [WIDTH, 1, 1], quant::TYPES[0].name);
    let norm = s::norm_of(weight);
    let table = s::weight(&mut plan, "table", [WIDTH, N_VOCAB, 1], ty);
    let mut product = |name: &str, [x, out]: [&str; 2], norm| {
        let shape = [x, out].map(|name| plan.buffer(id(name)).width);
        let weight = s::weight(&mut plan, name, [shape[0], shape[1], 1], ty);
        s::matvec(id(x), norm, weight, id(out))
    };
    let (x, out, scale) = (id("x"), id("x"), 1.0);
    let weight = table;
    let ops = vec![
        Op::Embed { weight, out, scale },
        product("wq", ["x", "q"], norm),
        product("wk", ["x", "k"], norm),
        product("wv", ["x", "v"], norm),
        s::rope(id("q"), N_HEAD, RopeStyle::Halves),
        s::rope(id("k"), 1, RopeStyle::Halves),
        s::kv_scatter(id("k"), id("v")),
        s::attention(id("q"), id("heads"), N_HEAD),
        product("wo", ["heads", "delta"], None),
        s::add(id("delta"), x),
        product("gate", ["x", "gate"], norm),
        product("up", ["x", "up"], norm),
        s::swiglu(["gate", "up", "act"].map(id)),
        product("down", ["act", "delta"], None),
        s::add(id("delta"), x),
        Op::SelectRows { x, out: id("last") },
        product("table", ["last", "logits"], norm),
    ];
    plan.ops = ops;
    plan.check().unwrap();
    plan
}

/// The shapes of every card here.
pub fn table() -> Shapes {
    Shapes::of(&DeviceInfo::of_arch("sm_90", 132).unwrap()).unwrap()
}

/// Where a buffer lies: each has 4 GiB to itself.
pub fn at(name: &str) -> u64 {
    (id(name).0 as u64 + 1) << 32
}

const WEIGHTS: u64 = 1 << 44;

pub fn lowering(arch: &str, ty: &str, kv_type: &str, is_fused: bool) -> Lowering {
    let plan = Arc::new(plan(ty));
    let kv_type = quant::kv_by_name(kv_type).unwrap();
    let fused = FusedPlan::new(&plan, is_fused);
    let wanted = wanted(std::iter::once((&*plan, &fused.list[..]))).unwrap();
    let matrix = |(i, m): (u64, &Matrix)| ((m.ids.clone(), m.order), WEIGHTS + (i << 32));
    let vector = |(i, id): (u64, &WeightId)| (*id, 2 * WEIGHTS + (i << 32));
    let kv = KvView {
        k: 1 << 50,
        v: 1 << 51,
        ..KvView::zeroed()
    };
    let at = Addresses {
        buffers: NAMES.map(at).to_vec(),
        matrices: (0..).zip(&wanted.matrices).map(matrix).collect(),
        vectors: (0..).zip(&wanted.vectors).map(vector).collect(),
        states: vec![],
        rounds: Default::default(),
        kv: vec![kv],
        cos_sin: vec![3 * WEIGHTS],
        overflows: 9 * WEIGHTS,
        scratch: ScratchAddresses {
            partial: 4 * WEIGHTS,
            tickets: 5 * WEIGHTS,
            ..Default::default()
        },
        exchange: Default::default(),
    };
    Lowering {
        plan,
        fused,
        card: DeviceInfo::of_arch(arch, 100).unwrap(),
        shapes: table(),
        kv_type,
        n_slots: 64,
        n_ctx: 4096,
        max_rows: MAX_ROWS,
        max_out: 64,
        at,
    }
}

/// The same of another plan.
pub fn with(mut l: Lowering, plan: Plan) -> Lowering {
    plan.check().unwrap();
    l.plan = Arc::new(plan);
    l.fused = FusedPlan::new(&l.plan, true);
    let wanted = wanted(std::iter::once((&*l.plan, &l.fused.list[..]))).unwrap();
    let places = (1u64..).zip(wanted.matrices);
    l.at.matrices = places.map(|(i, m)| ((m.ids, m.order), i << 44)).collect();
    l
}

/// Of rows that the host gives.
fn inputs() -> Inputs {
    Inputs {
        tokens: 1 << 20,
        positions: 2 << 20,
        ends: 0,
        spans: 0,
        types: 0,
        slots: 3 << 20,
        out_rows: 4 << 20,
        state_slots: 5 << 20,
        state: 0,
    }
}

pub fn step(rows: usize) -> Pass {
    Pass::step(rows, inputs())
}

pub fn chunk(rows: usize, out: usize) -> Pass {
    Pass {
        out,
        path: Path::Prefill { steps: 0 },
        all: false,
        hidden: false,
        ..step(rows)
    }
}

pub fn entries(specs: &[Spec]) -> Vec<&str> {
    specs.iter().map(|s| s.entry).collect()
}

#[test]
fn a_fused_step_is_a_kernel_a_product_and_attention_between() {
    for arch in ["sm_75", "sm_90"] {
        let l = lowering(arch, superblocks(), quant::DEFAULT_KV, true);
        let list = specs(&l, &step(1)).unwrap();
        let wanted = [&["embed", "matvec", "attention_fixed"][..], &["matvec"; 4]].concat();
        assert_eq!(entries(&list), wanted, "{arch}");
        let kinds = list.iter().filter(|s| s.kind == Kind::Attention);
        assert_eq!(kinds.count(), 1);
        assert_eq!(list[0].grid, [1, 1, 1]);
        // A block an SM, the most that a row alone has.
        assert_eq!(list[2].grid, [100, 1, 1]);
        // No more than a block an SM.
        assert!(list.iter().all(|s| s.entry != "matvec" || s.grid[0] <= 100));
    }
}

#[test]
fn every_launch_fits_the_shared_memory_of_its_card() {
    let mut with_shared = 0;
    for arch in ["sm_75", "sm_80", "sm_86", "sm_90", "sm_120"] {
        for ty in quant::TYPES {
            let l = lowering(arch, ty.name, quant::DEFAULT_KV, true);
            for pass in [step(1), step(7), step(64), chunk(8, 1), chunk(512, 0)] {
                for spec in specs(&l, &pass).unwrap() {
                    let (shared, most) = (spec.shared as usize, l.card.shared_bytes);
                    assert!(shared <= most, "{} {ty:?} on {arch}: {shared}", spec.label);
                    assert!(spec.block <= 1024 && spec.grid.iter().all(|n| *n > 0));
                    with_shared += usize::from(shared > 0);
                }
            }
        }
    }
    assert!(with_shared > 1000);
}

#[test]
fn launches_name_the_buffers_of_their_ops() {
    let l = lowering("sm_90", blocks(), blocks(), true);
    let list = specs(&l, &step(1)).unwrap();
    let embed: Embed = list[0].params().unwrap();
    assert_eq!((embed.out, embed.tokens), (at("x"), inputs().tokens));
    let table = WeightId(1);
    assert_eq!(embed.weights, l.weights(&[table], Order::Natural).unwrap());

    let qkv: MatVec = list[1].params().unwrap();
    assert_eq!((qkv.x, qkv.segment[0].out), (at("x"), at("q")));
    assert_eq!(qkv.norm, l.vector(Some(WeightId(0))).unwrap());
    assert_eq!(
        (
            qkv.rotation.cos_sin,
            qkv.rotation.positions,
            qkv.rotation.n_ctx
        ),
        (l.at.cos_sin[0], inputs().positions, 4096)
    );
    assert_eq!(qkv.segment.map(|s| s.rows), [512, 128, 128, 0]);

    let attention: AttentionFixed = list[2].params().unwrap();
    assert_eq!((attention.q, attention.out), (at("q"), at("heads")));
    assert_eq!((attention.kv.k, attention.kv.v), (1 << 50, 1 << 51));
    assert_eq!(attention.partial, l.at.scratch.partial);

    let residual: MatVec = list[3].params().unwrap();
    assert_eq!(
        (residual.x, residual.segment[0].out),
        (at("heads"), at("x"))
    );
    let act: MatVec = list[4].params().unwrap();
    assert_eq!((act.x, act.segment[0].out), (at("x"), at("act")));
    // Every row gives logits: the head reads where the rows are, and none is picked.
    let head: MatVec = list[6].params().unwrap();
    assert_eq!((head.x, head.segment[0].out), (at("x"), at("logits")));
    assert_eq!(head.segment[0].weights, embed.weights, "tied");
    // What was not written by the step's first kernel may be read before it has ended.
    let located = |i: usize| list[i].params::<MatVec>().unwrap().located;
    assert_eq!((located(1), located(3)), (0, 1));
}

#[test]
fn a_prompts_chunk_goes_to_tensor_cores_where_the_card_has_room() {
    let l = lowering("sm_90", superblocks(), quant::DEFAULT_KV, true);
    let list = specs(&l, &chunk(512, 1)).unwrap();
    let product = ["split", "matmul"];
    let mut wanted = vec!["embed"];
    wanted.extend(product);
    wanted.extend(["kv_scatter_fixed", "prompt_attention_fixed"]);
    wanted.extend([product, product, product].concat());
    wanted.extend(["select_rows", "matvec"]);
    assert_eq!(entries(&list), wanted);
    // 4 heads of 512 rows, 64 queries a block.
    assert_eq!(list[4].grid, [1, 32, 1]);
    assert_eq!(list[4].kind, Kind::Attention);
    let attention: PromptAttention = list[4].params().unwrap();
    assert_eq!((attention.q, attention.m), (at("q"), 512));
    let split: Split = list[1].params().unwrap();
    let matmul: MatMul = list[2].params().unwrap();
    assert_eq!((split.x, split.tiles), (at("x"), matmul.tiles));
    assert_eq!((split.m, matmul.m, matmul.n_tiles), (512, 512, 64));
    assert_eq!(split.squares, matmul.squares);
    let picked: SelectRows = list[11].params().unwrap();
    assert_eq!((picked.x, picked.out), (at("x"), at("last")));
    assert_eq!(picked.rows, inputs().out_rows);
    let head: MatVec = list[12].params().unwrap();
    assert_eq!((head.x, head.segment[0].out), (at("last"), at("logits")));

    // Two pages of keys and values do not fit beside the queries: the kernel for steps, 128 rows at a time.
    let small = lowering("sm_75", superblocks(), quant::DEFAULT_KV, true);
    let list = specs(&small, &chunk(300, 0)).unwrap();
    let attentions: Vec<&Spec> = list.iter().filter(|s| s.kind == Kind::Attention).collect();
    let rows: Vec<_> = attentions.iter().map(|s| (s.entry, s.grid[2])).collect();
    assert_eq!(rows, [128, 128, 44].map(|rows| ("attention_fixed", rows)));
    let second: AttentionFixed = attentions[1].params().unwrap();
    assert_eq!(second.q, at("q") + 128 * 4 * WIDTH as u64);
    assert_eq!(second.positions, inputs().positions + 128 * 4);
    assert!(!entries(&list).contains(&"select_rows"), "no row is wanted");
    // For hidden states the last norm stands in the place of the head.
    let hidden = |hidden| Pass {
        hidden,
        ..chunk(512, 0)
    };
    let [states, logits] = [true, false].map(|h| specs(&l, &hidden(h)).unwrap());
    assert_eq!(
        entries(&states),
        [entries(&logits), vec!["rms_norm"]].concat()
    );
    let norm: RmsNorm = states[states.len() - 1].params().unwrap();
    assert_eq!((norm.x, norm.out, norm.groups), (at("x"), at("x"), 512));
}

#[test]
fn rows_of_a_step_share_the_weights_and_where_few_blocks_do_split_the_columns() {
    for (arch, most_rows, of_wide) in [("sm_80", 64, 32), ("sm_90", 32, 64)] {
        let l = lowering(arch, superblocks(), quant::DEFAULT_KV, true);
        for rows in [2, 8, 9, 32, 64] {
            let list = specs(&l, &step(rows)).unwrap();
            let products = list.iter().filter(|s| s.entry == "matmul");
            let seen: Vec<_> = products.map(|s| (s.grid[0], s.grid[2])).collect();
            // 512 columns have two parts, 1,024 four.
            let x = rows.div_ceil(most_rows) as u32;
            assert_eq!(seen[..4], [(x, 2), (x, 2), (x, 2), (x, 4)], "{rows}");
            assert_eq!(seen.len(), 5, "{rows}");
        }
        // Enough blocks for the card: no part goes through memory.
        let list = specs(&l, &chunk(512, 0)).unwrap();
        let products = list.iter().filter(|s| s.entry == "matmul");
        let seen: Vec<_> = products.map(|s| (s.grid[0], s.grid[2])).collect();
        // Rows of a block: more where there are blocks enough, of gate and up.
        let rows = [32, 32, of_wide, 32];
        assert_eq!(seen, rows.map(|rows| (512 / rows, 1)));
    }
}

#[test]
fn without_fusion_every_op_is_a_kernel() {
    let l = lowering("sm_90", superblocks(), quant::DEFAULT_KV, false);
    let list = specs(&l, &step(1)).unwrap();
    let wanted = [
        "embed",
        "matvec",
        "matvec",
        "matvec",
        "rope",
        "rope",
        "attention_fixed",
        "matvec",
        "add",
        "matvec",
        "matvec",
        "swiglu",
        "matvec",
        "add",
        "matvec",
    ];
    assert_eq!(entries(&list), wanted);
    let labels: Vec<&str> = list.iter().map(|s| s.label.as_str()).collect();
    assert_eq!(labels[1], "matvec wq");
    assert_eq!(labels[6], "attention_fixed 0");
}

#[test]
fn more_rows_than_there_is_memory_for_are_refused() {
    let l = lowering("sm_90", superblocks(), quant::DEFAULT_KV, true);
    for (pass, said) in [
        (step(0), "0 rows"),
        (step(65), "65 of them out"),
        (chunk(513, 0), "513 rows"),
    ] {
        let text = specs(&l, &pass).unwrap_err().to_string();
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn scratch_grows_with_rows_and_the_widest_product() {
    let l = lowering("sm_90", superblocks(), quant::DEFAULT_KV, true);
    let of = |rows, out| Scratch::new(&l.plan, &l.fused.list, &l.shapes, rows, out);
    // Whole blocks of 64 rows, each of four superblocks.
    let row = |rows: usize| of(rows, 64).products.tiles / rows;
    assert!(row(512) >= 4 * WIDTH && row(512) < 6 * WIDTH);
    assert_eq!(of(1, 64).products.tiles, of(64, 64).products.tiles);
    assert_eq!(of(512, 64).products.tiles, 8 * of(64, 64).products.tiles);
    // Columns are split for up to 256 rows.
    assert_eq!(of(256, 64).products.sums, 4 * of(64, 64).products.sums);
    assert_eq!(of(512, 64).products.sums, of(256, 64).products.sums);
    // A prompt's attention is launched for 128 rows at a time, a step's for all.
    assert_eq!(of(512, 64).merge.tickets, 128 * 4);
    assert_eq!(of(512, 300).merge.tickets, 300 * 4);
    assert_eq!(of(4, 64).merge.tickets, 4 * 4);
}

#[test]
fn the_host_checks_the_parameters_of_every_kernel() {
    let mut checked = Vec::new();
    for (ty, kv) in [(superblocks(), quant::DEFAULT_KV), (blocks(), blocks())] {
        for is_fused in [true, false] {
            let mut l = lowering("sm_90", ty, kv, is_fused);
            // Not of this model: a norm that is no part of a product.
            let op = Fused::Single(s::norm(id("q"), Some(WeightId(0)), id("q"), WIDTH));
            let (rule, ops) = (None, vec![0]);
            l.fused.list.push(FusedOp { op, rule, ops });
            for pass in [step(1), chunk(64, 1)] {
                checked.extend(specs(&l, &pass).unwrap());
            }
        }
    }
    for spec in &checked {
        let source = spec.variant.source;
        for kernel in source.text.split("\nKERNEL").skip(1) {
            let struct_name = kernel.split([',', ')']).nth(1).unwrap().trim();
            let layout = source.layouts.iter().find(|l| l.name == struct_name);
            let layout = layout.unwrap_or_else(|| panic!("{}: {struct_name}", source.name));
            let fields: usize = layout.fields.iter().map(|f| f.bytes).sum();
            assert_eq!(fields, layout.bytes, "{}: padding", source.name);
        }
        assert!(source.checked().contains("static_assert(sizeof("));
    }
    let mut names: Vec<&str> = checked.iter().map(|s| s.variant.source.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 10, "{names:?}");
}
