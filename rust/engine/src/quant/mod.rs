//! THE TABLE of quantization types. One type is one file and one row: the block layout, a scalar
//! `expand`, where wanted a `quantize`. Outside this folder no type is named.
//!
//! Sources of the layouts: the GGUF specification and the `gguf` Python package, which the tests
//! compare with bit for bit.

use rayon::prelude::*;

use crate::error::{Error, Result};

mod affine;
mod bf16;
mod codes;
mod f16;
mod f32;
mod fifth_bit;
mod half;
pub mod i16_blocks;
mod integers;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
pub mod kv;
mod lattice;
mod lone_scale;
mod mxfp4;
mod nvfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod search;

use i16_blocks::{I16Blocks, I16_ID};
pub use kv::{KvBlock, KvKernel, KvVisitor, KV_HEAD_MULTIPLE};

pub use integers::{
    four, Integers, Offsets, Scale, Sink, Words, BLOCKS, COLUMNS, MINS, MIN_WORDS, OFFSET_SUBS,
    SUBS, WORDS, X_BLOCK,
};

/// A block format. The CPU backend compiles one dot product for each implementor, under its own
/// instruction set, so `expand` must be `#[inline(always)]`, without calls or branches, and in
/// loops that vectorize; the float32 operations and their order are those of the `gguf` package.
pub trait Block: Send + Sync + 'static {
    /// Weights in a block.
    const ELEMS: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// The largest magnitude that a block holds, for formats that hold less than float32 does.
    const LARGEST: f32 = f32::INFINITY;
    /// Expands one block: `block.len() == BYTES`, `out.len() == ELEMS`.
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]);
}

/// What an instruction set may have an instruction for. The values are those of [`Plain`].
pub trait Arithmetic {
    /// The float32 of a half's bits.
    #[inline(always)]
    fn half(bits: u16) -> f32 {
        half::half_to_f32(bits)
    }

    /// `a * b + c`, where float32 holds `a * b` exactly: with one rounding or two, the same. A
    /// scale of 11 bits times integers of up to 13 bits together is such a product.
    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// Arithmetic in plain code.
pub struct Plain;

impl Arithmetic for Plain {}

/// Encodes whole blocks of floats.
pub type Quantize = fn(src: &[f32], dst: &mut [u8]);

/// One row of the table.
pub struct QuantType {
    /// ggml's number of the type, as stored in GGUF tensor records.
    pub id: u32,
    /// The usual name, e.g. as printed by other tools.
    pub name: &'static str,
    /// Weights in a block.
    pub block_elems: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bytes of a row of so many weights; `None` where they are no whole number of blocks, if there must
    /// be, or overflow.
    pub row_bytes: fn(usize) -> Option<usize>,
    /// Expands whole blocks: `src.len() / block_bytes * block_elems == dst.len()`.
    pub dequantize: fn(src: &[u8], dst: &mut [f32]),
    /// Quantizes whole blocks, on all threads where there are many; see [`Quantizer`].
    pub quantize: Option<Quantize>,
    /// See [`Block::LARGEST`].
    pub largest: f32,
    /// Whether its weights are small integers with scales: see [`Integers`].
    pub integers: bool,
    /// How kernels read it.
    pub kernel: KernelType,
}

/// The device side of a type: a struct in a header of its own, see `kernels/weight_tile.cuh`.
#[derive(Debug, Clone, Copy)]
pub struct KernelType {
    /// Name of the header file; its text is in `text`.
    pub header: &'static str,
    pub text: &'static str,
    /// Bytes of 16 rows x 256 columns as kernels read them; the kernels check it.
    pub tile_bytes: usize,
    /// Whether products of one row have its integers as signed bytes, not as float16; the kernels check it.
    pub in_bytes: bool,
    /// How kernels keep keys and values so, where a cache may.
    pub kv: Option<KvKernel>,
}

impl KernelType {
    /// Bytes of a key's or a value's integers; 0 where a cache on a card keeps none so.
    pub fn kv_bytes(&self) -> usize {
        self.kv.map_or(0, |kv| kv.bytes)
    }
}

impl std::fmt::Debug for QuantType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for QuantType {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl QuantType {
    /// Bytes of a row of `n` weights; `None` where `n` is no whole number of blocks or overflows.
    pub fn row_bytes(&self, n: usize) -> Option<usize> {
        (self.row_bytes)(n)
    }

    /// Sub-blocks of a superblock whose minimums are in one unit; 0 where there are none.
    pub fn shared_minimums(&self) -> usize {
        struct OfType;
        impl SumsVisitor for OfType {
            type Out = usize;
            fn integers<B: Integers>(self) -> usize {
                if B::OFFSETS.is_shared() {
                    COLUMNS / B::SUB
                } else {
                    0
                }
            }
            fn floats<B: Block>(self) -> usize {
                0
            }
        }
        dispatch_sums(self, OfType)
    }

    /// What its sub-blocks have beside their scales.
    pub fn offsets(&self) -> Offsets {
        struct OfType;
        impl SumsVisitor for OfType {
            type Out = Offsets;
            fn integers<B: Integers>(self) -> Offsets {
                B::OFFSETS
            }
            fn floats<B: Block>(self) -> Offsets {
                Offsets::None
            }
        }
        dispatch_sums(self, OfType)
    }
}

/// Something to do with a block format chosen at run time: see [`dispatch`].
pub trait Visitor {
    /// What comes back.
    type Out;
    /// Called with the format.
    fn visit<B: Block>(self) -> Self::Out;
}

/// Something to do with a block format by how its products are summed: see [`dispatch_sums`].
pub trait SumsVisitor {
    /// What comes back.
    type Out;
    /// Called with a format of small integers: sums are exact inside a sub-block.
    fn integers<B: Integers>(self) -> Self::Out;
    /// Called with a format of floats: sums are of float32.
    fn floats<B: Block>(self) -> Self::Out;
}

/// A block and its output as arrays: the one length check of an expansion, which folds away where
/// the caller's lengths are known.
#[inline(always)]
fn arrays<'a, const BYTES: usize, const ELEMS: usize, T>(
    block: &'a [u8],
    out: &'a mut [T],
) -> (&'a [u8; BYTES], &'a mut [T; ELEMS]) {
    match (block.try_into(), out.try_into()) {
        (Ok(block), Ok(out)) => (block, out),
        _ => unreachable!("callers pass one block and its weights"),
    }
}

fn whole_blocks<B: Block>(n: usize) -> Option<usize> {
    n.is_multiple_of(B::ELEMS)
        .then(|| (n / B::ELEMS).checked_mul(B::BYTES))?
}

fn dequantize_blocks<B: Block>(src: &[u8], dst: &mut [f32]) {
    for (block, out) in src
        .chunks_exact(B::BYTES)
        .zip(dst.chunks_exact_mut(B::ELEMS))
    {
        B::expand::<Plain>(block, out);
    }
}

/// A block format that can be written. Plain floats round to nearest, ties to even, and keep
/// infinity and NaN. In every other format NaN counts as 0, and infinity as well as what is beyond
/// the format's range becomes its largest magnitude: what is written expands to finite numbers.
pub trait Quantizer: Block {
    /// Writes one block: `x.len() == ELEMS`, `block.len() == BYTES`.
    fn quantize(x: &[f32], block: &mut [u8]);
}

/// A number of a block: NaN as 0, and nothing beyond `limit`.
pub fn saturated(x: f32, limit: f32) -> f32 {
    if x.is_nan() {
        0.0
    } else {
        x.clamp(-limit, limit)
    }
}

/// The numbers of a block, [`saturated`].
fn saturate<const ELEMS: usize>(x: &[f32], limit: f32) -> [f32; ELEMS] {
    std::array::from_fn(|i| saturated(x[i], limit))
}

/// `1 / x`, and 0 where that is no finite number.
fn reciprocal(x: f32) -> f32 {
    let inverse = 1.0 / x;
    if inverse.is_finite() {
        inverse
    } else {
        0.0
    }
}

/// Packs two 4-bit numbers a byte: the first half of `q` into the low halves.
fn pack_nibbles(q: &[u8], out: &mut [u8]) {
    let (low, high) = q.split_at(q.len() / 2);
    for ((low, high), out) in low.iter().zip(high).zip(out) {
        *out = low | high << 4;
    }
}

fn quantize_blocks<B: Quantizer>(src: &[f32], dst: &mut [u8]) {
    /// Weights of one thread's portion: milliseconds of a search, microseconds of a conversion.
    const PORTION: usize = 1 << 14;
    let blocks = PORTION / B::ELEMS;
    let run = |(src, dst): (&[f32], &mut [u8])| {
        for (x, block) in src
            .chunks_exact(B::ELEMS)
            .zip(dst.chunks_exact_mut(B::BYTES))
        {
            B::quantize(x, block);
        }
    };
    if src.len() <= PORTION {
        return run((src, dst));
    }
    src.par_chunks(blocks * B::ELEMS)
        .zip(dst.par_chunks_mut(blocks * B::BYTES))
        .for_each(run);
}

macro_rules! is_integers {
    (integers) => {
        true
    };
    (floats) => {
        false
    };
}

macro_rules! in_bytes {
    (bytes) => {
        true
    };
    () => {
        false
    };
}

macro_rules! kv_kernel {
    ($ty:ty, kv) => {
        Some(KvKernel::of::<$ty>())
    };
    ($ty:ty,) => {
        None
    };
}

macro_rules! visit_kv {
    ($visitor:ident, $ty:ty, kv) => {
        Ok($visitor.visit::<$ty>())
    };
    ($visitor:ident, $ty:ty,) => {
        Err($visitor)
    };
}

macro_rules! table {
    ($($id:literal $name:literal $ty:ty, $sums:ident $(in $form:ident)?, $header:literal $tile_bytes:literal $($kv:ident)?, $quantize:expr;)*) => {
        /// Every type that weights may have.
        pub static TYPES: &[QuantType] = &[$(QuantType {
            id: $id,
            name: $name,
            block_elems: <$ty as Block>::ELEMS,
            block_bytes: <$ty as Block>::BYTES,
            row_bytes: whole_blocks::<$ty>,
            dequantize: dequantize_blocks::<$ty>,
            quantize: $quantize,
            largest: <$ty as Block>::LARGEST,
            integers: is_integers!($sums),
            kernel: KernelType {
                header: $header,
                text: include_str!($header),
                tile_bytes: $tile_bytes,
                in_bytes: in_bytes!($($form)?),
                kv: kv_kernel!($ty, $($kv)?),
            },
        }),*];

        /// Calls `visitor` with the block format of `ty`.
        pub fn dispatch<V: Visitor>(ty: &QuantType, visitor: V) -> V::Out {
            match ty.id {
                $($id => visitor.visit::<$ty>(),)*
                _ => unreachable!("a QuantType comes from TYPES only"),
            }
        }

        /// Calls `visitor` with the block format of `ty`, by how its products are summed.
        pub fn dispatch_sums<V: SumsVisitor>(ty: &QuantType, visitor: V) -> V::Out {
            match ty.id {
                $($id => visitor.$sums::<$ty>(),)*
                _ => unreachable!("a QuantType comes from TYPES only"),
            }
        }

        /// Calls `visitor` with the format of keys and values of a type that
        /// [`QuantType::sums_kv_exactly`]; else gives it back.
        ///
        /// # Errors
        /// The visitor, of another type.
        pub fn dispatch_kv<V: KvVisitor>(ty: &QuantType, visitor: V) -> Result<V::Out, V> {
            match ty.id {
                $($id => visit_kv!(visitor, $ty, $($kv)?),)*
                I16_ID => Ok(visitor.visit::<I16Blocks>()),
                _ => Err(visitor),
            }
        }
    };
}

table! {
    0 "F32" f32::F32, floats, "f32.cuh" 16384, Some(quantize_blocks::<f32::F32>);
    1 "F16" f16::F16, floats, "f16.cuh" 8192, Some(quantize_blocks::<f16::F16>);
    2 "Q4_0" q4_0::Q4_0, integers, "q4_0.cuh" 2304, Some(quantize_blocks::<q4_0::Q4_0>);
    3 "Q4_1" q4_1::Q4_1, integers, "q4_1.cuh" 2560, Some(quantize_blocks::<q4_1::Q4_1>);
    6 "Q5_0" q5_0::Q5_0, integers, "q5_0.cuh" 2816, Some(quantize_blocks::<q5_0::Q5_0>);
    7 "Q5_1" q5_1::Q5_1, integers, "q5_1.cuh" 3072, Some(quantize_blocks::<q5_1::Q5_1>);
    8 "Q8_0" q8_0::Q8_0, integers in bytes, "q8_0.cuh" 4352 kv, Some(quantize_blocks::<q8_0::Q8_0>);
    10 "Q2_K" q2_k::Q2K, integers, "q2_k.cuh" 1344, Some(quantize_blocks::<q2_k::Q2K>);
    11 "Q3_K" q3_k::Q3K, integers, "q3_k.cuh" 1824, Some(quantize_blocks::<q3_k::Q3K>);
    12 "Q4_K" q4_k::Q4K, integers, "q4_k.cuh" 2368, Some(quantize_blocks::<q4_k::Q4K>);
    13 "Q5_K" q5_k::Q5K, integers, "q5_k.cuh" 2880, Some(quantize_blocks::<q5_k::Q5K>);
    14 "Q6_K" q6_k::Q6K, integers, "q6_k.cuh" 3360, Some(quantize_blocks::<q6_k::Q6K>);
    16 "IQ2_XXS" iq2_xxs::Iq2Xxs, integers, "iq2_xxs.cuh" 2208, None;
    17 "IQ2_XS" iq2_xs::Iq2Xs, integers, "iq2_xs.cuh" 2336, None;
    18 "IQ3_XXS" iq3_xxs::Iq3Xxs, integers, "iq3_xxs.cuh" 2208, None;
    19 "IQ1_S" iq1_s::Iq1S, integers, "iq1_s.cuh" 2208, None;
    20 "IQ4_NL" iq4_nl::Iq4Nl, integers in bytes, "iq4_nl.cuh" 2304, Some(quantize_blocks::<iq4_nl::Iq4Nl>);
    21 "IQ3_S" iq3_s::Iq3S, integers, "iq3_s.cuh" 2208, None;
    22 "IQ2_S" iq2_s::Iq2S, integers, "iq2_s.cuh" 2336, None;
    23 "IQ4_XS" iq4_xs::Iq4Xs, integers in bytes, "iq4_xs.cuh" 2208, Some(quantize_blocks::<iq4_xs::Iq4Xs>);
    29 "IQ1_M" iq1_m::Iq1M, integers, "iq1_m.cuh" 2336, None;
    30 "BF16" bf16::BF16, floats, "bf16.cuh" 8192, Some(quantize_blocks::<bf16::BF16>);
    39 "MXFP4" mxfp4::Mxfp4, integers, "mxfp4.cuh" 2304, Some(quantize_blocks::<mxfp4::Mxfp4>);
    40 "NVFP4" nvfp4::Nvfp4, integers, "nvfp4.cuh" 2304, Some(quantize_blocks::<nvfp4::Nvfp4>);
}

/// The types that keys and values may have.
pub fn kv_types() -> impl Iterator<Item = &'static QuantType> {
    let weights = TYPES.iter().filter(|t| t.holds_kv());
    weights.chain(std::iter::once(&i16_blocks::I16))
}

/// Encoding of keys and values where none is asked for: attention over it has one stated sum.
pub const DEFAULT_KV: &str = "i16";

/// The row of ggml's type number `id`.
pub fn by_id(id: u32) -> Result<&'static QuantType> {
    TYPES
        .iter()
        .find(|t| t.id == id)
        .ok_or_else(|| unsupported(format!("number {id}")))
}

/// The row of a type's name, case ignored.
pub fn by_name(name: &str) -> Result<&'static QuantType> {
    TYPES
        .iter()
        .find(|t| t.name.eq_ignore_ascii_case(name))
        .ok_or_else(|| unsupported(name.into()))
}

/// The type of keys and values of that name, case ignored.
///
/// # Errors
/// [`Error::Argument`] lists the types.
pub fn kv_by_name(name: &str) -> Result<&'static QuantType> {
    kv_types()
        .find(|t| t.name.eq_ignore_ascii_case(name))
        .ok_or_else(|| {
            let names: Vec<_> = kv_types().map(|t| t.name.to_lowercase()).collect();
            Error::Argument {
                name: "kv_type",
                value: format!("{name:?}"),
                reason: format!("must be one of {}", names.join(", ")),
            }
        })
}

/// Checks that a card keeps keys and values in `ty`.
///
/// # Errors
/// [`Error::Argument`] names the types that it does, and what they take.
pub fn check_kv_on_card(ty: &QuantType) -> Result<()> {
    if ty.sums_kv_exactly() {
        return Ok(());
    }
    let bits = |t: &QuantType| (8 * t.block_bytes) as f32 / t.block_elems as f32;
    let able = kv_types().filter(|t| t.sums_kv_exactly());
    let mut able: Vec<_> = able.map(|t| (t.name.to_lowercase(), bits(t))).collect();
    able.sort_by_key(|(name, _)| name != DEFAULT_KV);
    let able = able
        .iter()
        .map(|(name, bits)| format!("{name} ({bits:.1} bits)"));
    Err(Error::Argument {
        name: "kv_type",
        value: ty.name.to_lowercase(),
        reason: format!(
            "only the CPU supports floats or such blocks ({:.1} bits per value) for keys and \
             values; on a GPU use {}",
            bits(ty),
            able.collect::<Vec<_>>().join(" or ")
        ),
    })
}

fn unsupported(name: String) -> Error {
    let supported = TYPES.iter().map(|t| t.name).collect::<Vec<_>>().join(", ");
    Error::Unsupported {
        what: "quantization type",
        name,
        supported,
    }
}
