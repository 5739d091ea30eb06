//! Kernel sources as data, and what host and kernel must agree on: stated on this side, checked by
//! every compilation.

use std::fmt::Write;

use super::constants::Constants;
use super::stamps;
use crate::quant;

/// A kernel source of the crate.
#[derive(Debug)]
pub struct Source {
    /// Its file name.
    pub name: &'static str,
    pub text: &'static str,
    /// Numbers that it shares with the host: `host.cuh`.
    pub constants: &'static [(&'static str, u32)],
    /// The structs that it shares with the host.
    pub layouts: &'static [Layout],
}

/// How the host lays out a struct that a kernel declares too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Its name in the kernel.
    pub name: &'static str,
    pub bytes: usize,
    pub fields: &'static [Field],
}

/// One field of a shared struct; the name is the same on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    pub name: &'static str,
    pub offset: usize,
    pub bytes: usize,
}

/// A struct that goes to a kernel byte for byte.
pub trait Shared: bytemuck::Pod {
    const LAYOUT: Layout;
}

/// Declares structs that kernels declare too, by the name that they have there.
macro_rules! shared {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident = $theirs:literal {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $ty:ty,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $ty,)*
        }

        impl $crate::backend::cuda::driver::source::Shared for $name {
            const LAYOUT: $crate::backend::cuda::driver::source::Layout =
                $crate::backend::cuda::driver::source::Layout {
                    name: $theirs,
                    bytes: size_of::<$name>(),
                    fields: &[$($crate::backend::cuda::driver::source::Field {
                        name: stringify!($field),
                        offset: std::mem::offset_of!($name, $field),
                        bytes: size_of::<$ty>(),
                    }),*],
                };
        }
    )*};
}
pub(in crate::backend::cuda) use shared;

/// The source in the file of that name, which shares these constants and structs.
macro_rules! source {
    ($name:literal, $constants:expr, $($shared:ty),+ $(,)?) => {
        $crate::backend::cuda::driver::source::Source {
            name: $name,
            text: include_str!(concat!("../../../../kernels/", $name)),
            constants: $constants,
            layouts: &[$(<$shared as $crate::backend::cuda::driver::source::Shared>::LAYOUT),+],
        }
    };
}
pub(in crate::backend::cuda) use source;

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Source {}

impl std::hash::Hash for Source {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl Source {
    /// The text of `host.cuh`.
    pub fn host(&self) -> String {
        let mut text = String::from("#pragma once\n");
        for (name, value) in self.constants.iter().chain(&stamps::CONSTANTS) {
            let _ = writeln!(text, "constexpr uint32_t {name} = {value}u;");
        }
        text
    }

    /// The text with the host's layouts as assertions behind it: fields that changed places on one
    /// side alone do not compile.
    pub fn checked(&self) -> String {
        let mut text = self.text.to_owned();
        text.push('\n');
        for Layout {
            name,
            bytes,
            fields,
        } in self.layouts
        {
            let _ = writeln!(
                text,
                "static_assert(sizeof({name}) == {bytes}, \"{name} has {bytes} bytes on the host\");"
            );
            for field in *fields {
                let Field {
                    name: f,
                    offset,
                    bytes,
                } = field;
                let _ = writeln!(
                    text,
                    "static_assert(OFFSET_OF({name}, {f}) == {offset} && \
                     sizeof({name}::{f}) == {bytes}, \
                     \"{name}::{f} has {bytes} bytes at {offset} on the host\");"
                );
            }
        }
        text
    }
}

/// One kernel source specialised for shapes and types.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Variant {
    pub source: &'static Source,
    /// Whether its blocks stamp their moments: see [`super::stamps`].
    pub stamps: bool,
    /// What it is compiled for.
    pub constants: Constants,
}

impl Variant {
    /// Without stamps.
    pub fn new(source: &'static Source, constants: Constants) -> Self {
        Self {
            source,
            stamps: false,
            constants,
        }
    }
}

macro_rules! own_headers {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../../kernels/", $name)))),*]
    };
}

/// Every header that a kernel may include, name and text, the quant types' own among them.
pub fn headers() -> impl Iterator<Item = (&'static str, &'static str)> {
    let own = own_headers![
        "codes.cuh",
        "common.cuh",
        "epilogue.cuh",
        "experts.cuh",
        "fixed.cuh",
        "kv.cuh",
        "kv_fixed.cuh",
        "lattice.cuh",
        "math.cuh",
        "mix.cuh",
        "norm.cuh",
        "rotate.cuh",
        "route.cuh",
        "row.cuh",
        "row_superblock.cuh",
        "sample.cuh",
        "sample_row.cuh",
        "stamps.cuh",
        "state.cuh",
        "superblock.cuh",
        "warpgroup.cuh",
        "weight_tile.cuh",
        "x_tile.cuh",
    ];
    let types = quant::TYPES.iter();
    own.into_iter()
        .chain(types.map(|t| (t.kernel.header, t.kernel.text)))
}
