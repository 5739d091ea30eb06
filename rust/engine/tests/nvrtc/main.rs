//! Every kernel, for every type and row bucket, through the real NVRTC for supported architectures, of
//! which a run has two: it compiles, and from sm_80 up no register is spilled. The variants are those that
//! the backend lowers a layer to on such a card; none of it takes one. What the compiler reported is kept
//! in `target/nvrtc`, so that only kernels whose text has changed are compiled again.

mod layer;

use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use onegraph::backend::cuda::driver::ahead::Ahead;
use onegraph::backend::cuda::driver::compile::Compiler;
use onegraph::backend::cuda::driver::constants::Value;
use onegraph::backend::cuda::driver::context::Context;
use onegraph::backend::cuda::driver::info::DeviceInfo;
use onegraph::backend::cuda::driver::nvrtc::Nvrtc;
use onegraph::backend::cuda::driver::peaks;
use onegraph::backend::cuda::driver::source::{Source, Variant};
use onegraph::backend::cuda::lower::drafting::Launches;
use onegraph::backend::cuda::lower::layout::repack_variant;
use onegraph::backend::cuda::lower::lowering::{Pass, Path};
use onegraph::backend::cuda::lower::rounds::Drawn;
use onegraph::backend::cuda::lower::sample;
use onegraph::backend::cuda::run::card::Card;
use onegraph::backend::cuda::study::exact_sums;
use onegraph::backend::{GpuOptions, RunnerOptions, Weights};
use onegraph::plan::{BufferId, KvShape, Op, Plan, RopeStyle, Rows, Share, Weight};
use onegraph::quant::{self, QuantType};
use onegraph::Result;
use rayon::prelude::*;

use layer::{beside_latent, between, few_rows, shared_expert, Layer};

const ARCHITECTURES: [u32; 7] = [75, 80, 86, 89, 90, 100, 120];
const MOST_USED: u32 = 90;

/// Rows of a prompt's chunk.
const PROMPT: usize = 512;

struct Zeros(Vec<u8>, Arc<Plan>);

impl Weights for Zeros {
    fn bytes(&self, name: &str) -> Result<&[u8]> {
        let w = self.1.weights.iter().find(|w| w.name == name).unwrap();
        Ok(&self.0[..w.ty.row_bytes(w.n_in).unwrap() * w.n_out])
    }
}

fn model(arch: &str, plan: Plan, kv: &'static QuantType, fuse: bool) -> Card {
    model_of_context(arch, plan, kv, fuse, 64)
}

fn model_of_context(
    arch: &str,
    plan: Plan,
    kv: &'static QuantType,
    fuse: bool,
    n_ctx: usize,
) -> Card {
    let plan = Arc::new(plan);
    plan.check().unwrap();
    let bytes = |w: &Weight| w.bytes().unwrap();
    let zeros = vec![0; plan.weights.iter().map(bytes).max().unwrap_or(0)];
    let options = RunnerOptions {
        n_slots: 64,
        n_ctx,
        n_pages: n_ctx + 1,
        windows: None,
        kv_type: kv,
        threads: 1,
        gpu: GpuOptions {
            fuse,
            ..GpuOptions::default()
        },
    };
    let context = Context::described(DeviceInfo::of_arch(arch, 132).unwrap());
    let zeros = Zeros(zeros, plan.clone());
    Card::new(&context, plan, &zeros, &options, PROMPT, 64).unwrap()
}

fn add(kernels: &mut HashSet<Variant>, card: &Card) {
    let steps = [1, 8, 64].map(|n| (n, n, Path::Decode));
    let prompt = (PROMPT, 1, Path::Prefill { steps: 0 });
    let round = (8, 8, Path::Round);
    for (rows, out, path) in steps.into_iter().chain([prompt, round]) {
        let pass = |hidden| Pass {
            rows,
            out,
            inputs: card.rows.inputs(),
            path,
            all: false,
            hidden,
        };
        // Not every plan here ends as a model does.
        let has_hidden = card.plan().hidden().is_some();
        for pass in [false, true]
            .into_iter()
            .filter(|hidden| !hidden || has_hidden)
            .map(pass)
        {
            kernels.extend(card.specs(&pass).unwrap().into_iter().map(|s| s.variant));
        }
    }
    let commits = card.commits(&Drawn {
        rows: 8,
        inputs: card.rows.inputs(),
        ring: 0,
        step: 0,
        max_rows: 64,
    });
    kernels.extend(commits.into_iter().map(|s| s.variant));
}

/// The most used card, and one other, which the texts of the kernels deal: each change of them may deal
/// another. With `ONEGRAPH_ALL_CARDS=1` all of them, several times as long.
fn cards() -> Vec<u32> {
    if std::env::var_os("ONEGRAPH_ALL_CARDS").is_some() {
        return ARCHITECTURES.to_vec();
    }
    let kernels = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let entries = fs::read_dir(kernels).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut hasher = DefaultHasher::new();
    for path in paths {
        fs::read_to_string(path).unwrap().hash(&mut hasher);
    }
    let others: Vec<_> = ARCHITECTURES
        .into_iter()
        .filter(|a| *a != MOST_USED)
        .collect();
    vec![others[hasher.finish() as usize % others.len()], MOST_USED]
}

/// Whether kernels of the type of this number are compiled for a card: for the one that most were made
/// for, all; of the six others each takes every sixth type, so that each type is compiled for two cards.
/// With `ONEGRAPH_EXHAUSTIVE=1` all types for all cards, several times as long.
fn is_compiled(number: usize, arch: u32) -> bool {
    let mut others = ARCHITECTURES.iter().filter(|a| **a != MOST_USED);
    let is_dealt = others.position(|a| *a == arch) == Some(number % 6);
    std::env::var_os("ONEGRAPH_EXHAUSTIVE").is_some() || arch == MOST_USED || is_dealt
}

/// Every kernel that the backend lowers layers to on a card of this compute capability; all types, all
/// caches, both rotations, fused and not.
fn kernels(number: u32) -> HashSet<Variant> {
    let mut kernels = HashSet::new();
    let default = quant::kv_by_name(quant::DEFAULT_KV).unwrap();
    let common = quant::by_name("Q4_K").unwrap();
    let arch = format!("sm_{number}");
    let mut of = |plan, kv, fuse| add(&mut kernels, &model(&arch, plan, kv, fuse));
    for (i, ty) in quant::TYPES.iter().enumerate() {
        if is_compiled(i, number) {
            of(Layer::plan(ty, RopeStyle::Halves, false), default, true);
        }
    }
    for kv in quant::kv_types().filter(|t| t.sums_kv_exactly()) {
        of(Layer::plan(common, RopeStyle::Interleaved, false), kv, true);
    }
    of(
        Layer::plan(common, RopeStyle::Halves, false),
        default,
        false,
    );
    of(Layer::plan(common, RopeStyle::Halves, true), default, true);
    // What a load runs itself.
    kernels.extend(quant::TYPES.iter().map(repack_variant));
    for (n_vocab, verifies) in [(32_003, false), (151_936, false), (151_936, true)] {
        kernels.insert(sample::variant(n_vocab, 4096, verifies));
    }
    for n_embd in [0, 5120] {
        let drafts = Launches {
            n_vocab: 151_936,
            n_tokens: 151_936,
            n_embd,
            moves: true,
        };
        kernels.insert(drafts.variant());
    }
    kernels.insert(exact_sums::variant());
    kernels.extend(peaks::variants());
    kernels
}

/// `ONEGRAPH_TEST_NVRTC`, or what the Python package brought into an environment of this
/// repository. Not `ONEGRAPH_NVRTC`, which names the simulated one.
fn real_nvrtc() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("ONEGRAPH_TEST_NVRTC") {
        return Some(named.into());
    }
    let python = std::env::var_os("PYO3_PYTHON").map(PathBuf::from);
    let root = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let environments = python
        .iter()
        .filter_map(|p| Some(p.parent()?.parent()?.to_owned()))
        .chain([root.join(".venv")]);
    environments
        .filter_map(|e| std::fs::read_dir(e.join("lib")).ok())
        .flatten()
        .flatten()
        .map(|e| {
            let wheel = e.path().join("site-packages/nvidia/cuda_nvrtc/lib");
            wheel.join("libnvrtc.so.12")
        })
        .find(|p| p.exists())
}

/// The most bytes that a kernel of the compiler's report stores for want of registers.
fn spilled(log: &str) -> u32 {
    let stores = log
        .split(',')
        .filter_map(|part| part.trim().strip_suffix(" bytes spill stores"));
    stores
        .map(|bytes| bytes.trim().parse().unwrap())
        .max()
        .unwrap()
}

/// Bytes that a kernel may spill: none, but for the product of several rows and for a prompt's attention
/// over integers, which keeps there what a page needs once. Of the product: on the card that it was made
/// for two registers of the epilogue may wait in memory for the loop to end. On others the compiler loads
/// so far ahead that some of its 255 registers go there: 7 below compute capability 9.0, up to 13 from
/// 10.0 on. (Hiding the segment's number from the compiler until the epilogue frees some in the kernels
/// that store q, k and v, and costs others more: 40 bytes on 8.0.) Products of experts keep which rows
/// they have beside that. Types with sixteen scales a superblock have up to 17 registers more than the 128
/// of a kernel of which four blocks are to share a processor. Attention over integers for eight heads of
/// 256 that share one of keys has four registers too many on 12.0.
fn allowed(kernel: &Variant, arch: u32) -> u32 {
    match (kernel.source.name, arch) {
        ("matmul.cu", ..90) => 28,
        ("matmul.cu", 90) if kernel.constants.has("MIN_BLOCKS", 4) => 68,
        ("matmul.cu", 90) if kernel.constants.has("RANKS", 0) => 8,
        ("matmul.cu", 90) => 36,
        ("matmul.cu", 100..) => 52,
        ("attention_fixed.cu", 120) if kernel.constants.has("HEAD_DIM", 256) => 16,
        // A lone row's, one.
        ("attention_fixed.cu", 120) if kernel.constants.has("STORED", 1) => 8,
        // Two teams of five to eight wide heads: with more than 128 registers a thread there is no
        // room for the kernel behind them beside them. 1.5B on an H200: 879 -> 828 us a step so.
        ("attention_fixed.cu", _) if kernel.constants.has("TEAMS", 2) => 36,
        ("prompt_attention_fixed.cu", _) => 64,
        _ => 0,
    }
}

#[test]
fn every_kernel_compiles_without_spills() {
    let Some(path) = real_nvrtc() else {
        eprintln!(
            "skipped: pip install 'nvidia-cuda-nvrtc-cu12>=12.9', or set ONEGRAPH_TEST_NVRTC"
        );
        return;
    };
    let jobs: Vec<(u32, Variant)> = cards()
        .into_iter()
        .flat_map(|arch| kernels(arch).into_iter().map(move |k| (arch, k)))
        .collect();
    let sources: HashSet<_> = jobs.iter().map(|(_, k)| k.source.name).collect();
    assert!(sources.len() >= 12, "{sources:?}");
    compile(&path, &jobs);
}

#[test]
fn kernels_of_experts_compile_without_spills() {
    let Some(path) = real_nvrtc() else { return };
    let kv = quant::kv_by_name(quant::DEFAULT_KV).unwrap();
    let mut jobs = Vec::new();
    for arch in cards() {
        let mut kernels = HashSet::new();
        let types = ["Q4_K", "Q6_K", "F16"].map(|ty| quant::by_name(ty).unwrap());
        for (i, ty) in types.into_iter().enumerate() {
            if !is_compiled(i, arch) {
                continue;
            }
            let mut layer = Layer {
                plan: Layer::plan(ty, RopeStyle::Halves, false),
                ty,
            };
            let before = layer.plan.ops.len();
            layer.experts(BufferId(0));
            layer.plan.ops.drain(..before);
            add(
                &mut kernels,
                &model(&format!("sm_{arch}"), layer.plan, kv, true),
            );
        }
        jobs.extend(kernels.into_iter().map(|k| (arch, k)));
    }
    let shares = |k: &Variant| k.constants.has("SHARES", true);
    assert!(!jobs.iter().any(|(_, k)| shares(k)));
    let mut shared = Vec::new();
    for arch in cards() {
        let mut kernels = HashSet::new();
        for (ty, other) in [("Q4_K", "Q4_K"), ("Q4_K", "Q8_0"), ("Q6_K", "Q5_0")] {
            let [ty, other] = [ty, other].map(|ty| quant::by_name(ty).unwrap());
            let plan = shared_expert(ty, other);
            add(&mut kernels, &model(&format!("sm_{arch}"), plan, kv, true));
        }
        shared.extend(kernels.into_iter().map(|k| (arch, k)));
    }
    let products = |what: &str, value: Value| {
        let its = shared.iter().map(|(arch, k)| (*arch, k.source.name, k));
        let its = its.filter(|(arch, name, _)| (*arch, *name) == (90, "matvec.cu"));
        its.map(|(.., k)| k)
            .filter(|k| k.constants.has(what, value))
            .collect::<Vec<_>>()
    };
    for what in ["CHOOSES", "CHAINED"] {
        let its = products(what, true.into());
        assert!(its.iter().filter(|k| shares(k)).count() >= 3, "{what}");
    }
    assert!(!products("N_SEGMENTS", 4.into()).is_empty());
    jobs.extend(shared);
    compile(&path, &jobs);
}

/// Products of one row and of a small batch, so wide that none is light, as have clusters, of tiles so
/// many that warps have two of them.
#[test]
fn kernels_of_few_rows_compile_for_cards_with_clusters_without_spills() {
    let Some(path) = real_nvrtc() else { return };
    let kv = quant::kv_by_name(quant::DEFAULT_KV).unwrap();
    let mut jobs = Vec::new();
    for arch in cards().into_iter().filter(|arch| [90, 100].contains(arch)) {
        let mut kernels = HashSet::new();
        for (i, ty) in quant::TYPES.iter().enumerate() {
            if !ty.integers || !is_compiled(i, arch) {
                continue;
            }
            let card = model(&format!("sm_{arch}"), few_rows(ty), kv, true);
            for rows in [1, 4, 8] {
                let pass = Pass {
                    rows,
                    out: rows,
                    inputs: card.rows.inputs(),
                    path: Path::Decode,
                    all: false,
                    hidden: false,
                };
                kernels.extend(card.specs(&pass).unwrap().into_iter().map(|s| s.variant));
            }
        }
        let names = ["matvec.cu", "skinny.cu"];
        let kernels = kernels
            .into_iter()
            .filter(|k| names.contains(&k.source.name));
        jobs.extend(kernels.map(|k| (arch, k)));
    }
    let pairs = |k: &Variant| k.constants.has("W_TILES", 2);
    assert!(jobs.iter().any(|(_, k)| pairs(k)) && jobs.iter().any(|(_, k)| !pairs(k)));
    compile(&path, &jobs);
}

/// What several cards store for each other.
#[test]
fn exchanges_compile_without_spills() {
    let Some(path) = real_nvrtc() else { return };
    let kv = quant::kv_by_name(quant::DEFAULT_KV).unwrap();
    let ty = quant::by_name("Q4_K").unwrap();
    let mut jobs = Vec::new();
    for arch in cards() {
        let mut kernels = HashSet::new();
        for cards in [2, 4] {
            let whole = Layer::plan(ty, RopeStyle::Halves, false);
            let plan = whole.shared(Share { rank: 1, cards });
            add(&mut kernels, &model(&format!("sm_{arch}"), plan, kv, true));
        }
        kernels.retain(|k| k.source.name == "exchange.cu");
        for cards in [2, 4] {
            assert!(kernels.iter().any(|k| k.constants.has("CARDS", cards)));
        }
        jobs.extend(kernels.into_iter().map(|k| (arch, k)));
    }
    compile(&path, &jobs);
}

/// What stands between products where rows are normalized before they are added, experts are beside a
/// feed-forward part, and values are normalized too.
#[test]
fn kernels_between_products_compile_without_spills() {
    let Some(path) = real_nvrtc() else { return };
    let f32 = quant::by_name("F32").unwrap();
    let kv = quant::kv_by_name(quant::DEFAULT_KV).unwrap();
    let mut jobs = Vec::new();
    for arch in cards() {
        let mut kernels = HashSet::new();
        for (width, head_dim, are_keys) in [(2816, 256, false), (5376, 512, true)] {
            let plan = between(f32, width, head_dim, are_keys);
            let card = model(&format!("sm_{arch}"), plan, kv, true);
            add(&mut kernels, &card);
        }
        jobs.extend(kernels.into_iter().map(|k| (arch, k)));
    }
    compile(&path, &jobs);
}

/// Heads that several blocks share, or that are as wide as any model's, and rows alone of long texts; rows
/// of a text that see a window around them.
#[test]
fn attention_by_itself_compiles_without_spills() {
    let Some(path) = real_nvrtc() else { return };
    let mut jobs = Vec::new();
    for arch in cards() {
        let mut kernels = HashSet::new();
        for kv_type in quant::kv_types().filter(|t| t.sums_kv_exactly()) {
            for (n_head, n_head_kv, head_dim, n_ctx) in [
                (8, 1, 256, 64),
                (12, 1, 512, 64),
                (1, 1, 512, 64),
                (4, 1, 64, 8192),
                (8, 1, 64, 8192),
                (8, 1, 128, 8192),
            ] {
                // Their pages do not fit its shared memory.
                if arch == 75 && kv_type.kernel.kv_bytes() == 2 && head_dim == 512 {
                    continue;
                }
                let shape = KvShape::new(n_head_kv, head_dim);
                let card = attention_alone(arch, kv_type, n_head, shape, n_ctx, None);
                add(&mut kernels, &card);
            }
            let shape = KvShape::new(1, 256);
            let card = attention_alone(arch, kv_type, 3, shape, 2048, Some(512));
            add(&mut kernels, &card);
        }
        jobs.extend(kernels.into_iter().map(|k| (arch, k)));
    }
    compile(&path, &jobs);
}

/// Keys that have values in them, which all heads share, as wide as any model's; heads side by side; and
/// experts in groups.
#[test]
fn latent_attention_compiles_without_spills() {
    let Some(path) = real_nvrtc() else { return };
    let mut jobs = Vec::new();
    for arch in cards() {
        let mut kernels = HashSet::new();
        for kv_type in quant::kv_types().filter(|t| t.sums_kv_exactly()) {
            // A page does not fit its shared memory.
            if arch == 75 && kv_type.kernel.kv_bytes() == 2 {
                continue;
            }
            for (n_head, n_ctx) in [(20, 64), (128, 8192), (1, 64)] {
                let shape = KvShape {
                    values_in_keys: Some(512),
                    ..KvShape::new(1, 576)
                };
                let card = attention_alone(arch, kv_type, n_head, shape, n_ctx, None);
                add(&mut kernels, &card);
            }
        }
        let kv = quant::kv_by_name(quant::DEFAULT_KV).unwrap();
        let card = model(&format!("sm_{arch}"), beside_latent(), kv, true);
        add(&mut kernels, &card);
        let has = |what, value: usize| kernels.iter().any(|k| k.constants.has(what, value));
        assert!(has("STORED", 1) && has("ROUTE_GROUPS", 8) && has("GROUP", 512));
        assert!(has("PLAIN", 192));
        jobs.extend(kernels.into_iter().map(|k| (arch, k)));
    }
    compile(&path, &jobs);
}

/// Attention alone, over a cache of this type, of rows that see a window `around` them or all before.
fn attention_alone(
    arch: u32,
    kv_type: &'static QuantType,
    n_head: usize,
    shape: KvShape,
    n_ctx: usize,
    around: Option<usize>,
) -> Card {
    let mut plan = Plan {
        kv: vec![shape],
        ..Plan::default()
    };
    let mut buffer = |name, width| plan.add_buffer(name, width, Rows::Batch);
    let q = buffer("q", n_head * shape.head_dim);
    let out = buffer("out", n_head * shape.value_dim());
    let width = shape.n_head_kv * shape.head_dim;
    let k = buffer("k", width);
    let v = match shape.values_in_keys {
        Some(_) => k,
        None => buffer("v", width),
    };
    plan.logits = plan.add_buffer("logits", 1, Rows::Out);
    plan.ops.push(Op::KvScatter { k, v, layer: 0 });
    plan.ops.push(Op::Attention {
        q,
        out,
        layer: 0,
        n_head,
        scale: 1.0,
        window: around,
        sinks: None,
        causal: around.is_none(),
        chosen: None,
    });
    model_of_context(&format!("sm_{arch}"), plan, kv_type, true, n_ctx)
}

/// What the compiler says of a kernel, registers and spills, from `folder` where the same compiler has
/// said it of the same texts.
fn report(folder: &FilePath, compiler: &Compiler, kernel: &Variant) -> Result<String> {
    let kept = folder.join(compiler.key_of(kernel));
    let text = fs::read_to_string(&kept).unwrap_or_default();
    if text.contains("spill") {
        return Ok(text);
    }
    let log = compiler.log(kernel)?;
    // Tests beside each other have kernels in common.
    let thread = std::thread::current().id();
    let partial = kept.with_extension(format!("{}-{thread:?}", std::process::id()));
    fs::create_dir_all(folder).unwrap();
    fs::write(&partial, &log).unwrap();
    fs::rename(&partial, &kept).unwrap();
    Ok(log)
}

/// Where the reports of the compiler at `path` are kept between runs.
fn reports(path: &FilePath) -> PathBuf {
    let (major, minor) = Nvrtc::open(path).unwrap().version();
    let bytes = fs::metadata(path).unwrap().len();
    let target = FilePath::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    target.join(format!("nvrtc/{major}.{minor}-{bytes}"))
}

#[test]
fn a_report_is_kept_for_the_texts_that_it_is_of() {
    let Some(path) = real_nvrtc() else { return };
    let folder = FilePath::new(env!("CARGO_TARGET_TMPDIR")).join("a_report_is_kept");
    let _ = fs::remove_dir_all(&folder);
    let compiler = Compiler::with(90, Nvrtc::open(&path).unwrap());
    let kernel = repack_variant(quant::by_name("Q8_0").unwrap());
    let of = |compiler: &Compiler, kernel: &Variant| report(&folder, compiler, kernel).unwrap();
    assert_eq!(spilled(&of(&compiler, &kernel)), 0);
    let kept = folder.join(compiler.key_of(&kernel));
    fs::write(&kept, "2 bytes spill stores").unwrap();
    assert_eq!(spilled(&of(&compiler, &kernel)), 2);
    // One that was slice short is made again; those of other texts, or for another card, are others.
    fs::write(&kept, "2 bytes").unwrap();
    assert_eq!(spilled(&of(&compiler, &kernel)), 0);
    of(
        &compiler,
        &edited(
            &kernel,
            "#include \"weight_tile.cuh\"",
            "#include \"weight_tile.cuh\"\n",
        ),
    );
    of(&Compiler::with(80, Nvrtc::open(&path).unwrap()), &kernel);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
}

/// Compiles all of them; fails where one does not, or spills more than it may.
fn compile(path: &FilePath, jobs: &[(u32, Variant)]) {
    let folder = reports(path);
    let failed: Vec<String> = jobs
        .par_iter()
        .filter_map(|(arch, kernel)| {
            let source = kernel.source.name;
            let compiler = Compiler::with(*arch, Nvrtc::open(path).unwrap());
            let log = match report(&folder, &compiler, kernel) {
                Ok(log) => log,
                Err(error) => return Some(format!("{source} for sm_{arch}: {error}")),
            };
            assert!(log.contains("spill"), "no report: {log}");
            let spilled = spilled(&log);
            let text = || {
                format!(
                    "{source} for sm_{arch}: {spilled} bytes\n{}",
                    kernel.constants.text()
                )
            };
            (*arch >= 80 && spilled > allowed(kernel, *arch)).then(text)
        })
        .collect();
    println!("{} compilations", jobs.len());
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// `source` with `old` once replaced by `new`.
fn edited(variant: &Variant, old: &str, new: &str) -> Variant {
    let source = variant.source;
    assert_eq!(source.text.matches(old).count(), 1, "{old}");
    let edited = Source {
        name: source.name,
        text: source.text.replace(old, new).leak(),
        constants: source.constants,
        layouts: source.layouts,
    };
    Variant::new(Box::leak(Box::new(edited)), variant.constants.clone())
}

/// Fields of one type too, which no type checker tells apart.
#[test]
fn a_kernel_whose_fields_changed_places_does_not_compile() {
    let simulated = std::env::var_os("ONEGRAPH_NVRTC").map(PathBuf::from);
    let f16 = quant::by_name("F16").unwrap();
    let kv = quant::kv_by_name(quant::DEFAULT_KV).unwrap();
    let mut kernels = HashSet::new();
    add(
        &mut kernels,
        &model(
            "sm_90",
            Layer::plan(f16, RopeStyle::Halves, false),
            kv,
            false,
        ),
    );
    let find = |name| kernels.iter().find(|k| k.source.name == name).unwrap();
    for path in real_nvrtc().into_iter().chain(simulated) {
        let compiler = Compiler::with(90, Nvrtc::open(&path).unwrap());
        for (name, fields, swapped, named) in [
            (
                "kv_scatter_fixed.cu",
                "const uint32_t* positions;  // [m]\n    const uint32_t* slots;",
                "const uint32_t* slots;  // [m]\n    const uint32_t* positions;",
                "Params::positions has 8 bytes at",
            ),
            (
                "rms_norm.cu",
                "float eps;\n    uint32_t groups;",
                "uint32_t groups;\n    float eps;",
                "Params::eps has 4 bytes at 40",
            ),
            (
                "elementwise.cu",
                "struct AddParams {\n",
                "struct AddParams {\n    uint64_t more;\n",
                "AddParams has 24 bytes on the host",
            ),
        ] {
            compiler.log(find(name)).unwrap();
            let error = compiler.log(&edited(find(name), fields, swapped));
            let text = error.unwrap_err().to_string();
            assert!(text.contains(named), "{}: {text}", path.display());
        }
    }
}

#[test]
fn kernels_are_compiled_on_the_side_while_others_wait_for_theirs() {
    let simulated = std::env::var_os("ONEGRAPH_NVRTC").map(PathBuf::from);
    let f16 = quant::by_name("F16").unwrap();
    let mut kernels = HashSet::new();
    let kv = quant::kv_by_name(quant::DEFAULT_KV).unwrap();
    let plan = Layer::plan(f16, RopeStyle::Halves, false);
    add(&mut kernels, &model("sm_90", plan, kv, false));
    let wanted: Vec<Variant> = kernels.into_iter().take(5).collect();
    for path in real_nvrtc().into_iter().chain(simulated) {
        let name = format!("onegraph-ahead-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let compiler = Compiler::with(90, Nvrtc::open(&path).unwrap()).keeping(folder.clone());
        let compiler = Arc::new(compiler);
        let ahead = Ahead::new(&compiler, wanted.clone(), 2);
        let image = compiler.image(&wanted[0]).unwrap();
        ahead.finish();
        assert!(wanted.iter().all(|variant| compiler.is_cached(variant)));
        assert_eq!(compiler.image(&wanted[0]).unwrap().bytes(), image.bytes());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), wanted.len());
        // One that goes early ends what it has begun, and begins nothing more.
        let none = folder.join("none");
        let compiler = Compiler::with(90, Nvrtc::open(&path).unwrap()).keeping(none.clone());
        let compiler = Arc::new(compiler);
        let urgent = compiler.urge();
        let ahead = Ahead::new(&compiler, wanted.clone(), 2);
        drop(ahead);
        assert!(!none.exists(), "compiled while others waited");
        drop(urgent);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
