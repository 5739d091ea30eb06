//! Kernel sources as data, and what host and kernel must agree on: stated on this side, checked by
//! every compilation.

use std::fmt::Write;

use super::constants::{Constants, Group};
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

/// Declares groups of constants. A field of a C type is one, by its own name in capitals; `bits` are those of a
/// float, `name` is one that the kernel knows. Any other is a group. `in` a source, the group is all that its
/// kernels are compiled for; `with` names, they have an `enum` of these.
macro_rules! constants {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(in $source:ident)? $(with { $($known:ident),+ })* {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $ty:ident,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field:
                $crate::backend::cuda::driver::source::constants!(@type $ty),)*
        }

        impl $crate::backend::cuda::driver::constants::Group for $name {
            fn list(&self, list: &mut $crate::backend::cuda::driver::constants::Constants) {
                $(list.push($crate::backend::cuda::driver::constants::Line::Names(
                    &[$(stringify!($known)),+],
                ));)*
                $($crate::backend::cuda::driver::source::constants!(
                    @list list, $field, self.$field, $ty
                );)*
            }
        }

        $(impl $crate::backend::cuda::driver::source::Kernel for $name {
            fn source() -> &'static $crate::backend::cuda::driver::source::Source {
                &$source
            }
        })?
    )*};
    (@type int) => { usize };
    (@type uint32_t) => { usize };
    (@type float) => { f32 };
    (@type bits) => { f32 };
    (@type name) => { &'static str };
    (@type $ty:ident) => { $ty };
    (@list $list:ident, $field:ident, $value:expr, int) => {
        $list.constant("int", stringify!($field), $value)
    };
    (@list $list:ident, $field:ident, $value:expr, uint32_t) => {
        $list.constant("uint32_t", stringify!($field), $value)
    };
    (@list $list:ident, $field:ident, $value:expr, bool) => {
        $list.constant("bool", stringify!($field), $value)
    };
    (@list $list:ident, $field:ident, $value:expr, float) => {
        $list.constant("float", stringify!($field), $value)
    };
    (@list $list:ident, $field:ident, $value:expr, bits) => {
        $list.constant("uint32_t", stringify!($field), $value)
    };
    (@list $list:ident, $field:ident, $value:expr, name) => {
        $list.constant("int", stringify!($field), $value)
    };
    (@list $list:ident, $field:ident, $value:expr, $ty:ident) => {
        $crate::backend::cuda::driver::constants::Group::list(&$value, $list)
    };
}
pub(in crate::backend::cuda) use constants;

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

/// All that a kernel of one source is compiled for.
pub trait Kernel: Group {
    fn source() -> &'static Source;
}

impl<K: Kernel> From<K> for Variant {
    fn from(kernel: K) -> Self {
        Self::new(K::source(), kernel.constants())
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
        "delta.cuh",
        "epilogue.cuh",
        "expand.cuh",
        "experts.cuh",
        "fixed.cuh",
        "kv.cuh",
        "kv_fixed.cuh",
        "lattice.cuh",
        "mamba2.cuh",
        "math.cuh",
        "matrix.cuh",
        "mix.cuh",
        "norm.cuh",
        "rotate.cuh",
        "round.cuh",
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

#[cfg(test)]
mod tests {
    use super::*;

    constants! {
        struct Inner with { NEAR, FAR } {
            place: name,
            factor: float,
        }

        struct Outer {
            n: uint32_t,
            own: usize,
            inner: Inner,
            half_bits: bits,
            is_last: bool,
        }
    }

    #[test]
    fn groups_are_listed_where_they_stand_and_found_by_name() {
        let inner = Inner {
            place: "FAR",
            factor: 0.5,
        };
        let list = Outer {
            n: 3,
            own: 7,
            inner,
            half_bits: 1.0,
            is_last: true,
        };
        let list = list.constants();
        let lines = [
            "constexpr uint32_t N = 3;",
            "enum { NEAR, FAR };",
            "constexpr int PLACE = FAR;",
            "constexpr float FACTOR = 5e-1f;",
            "constexpr uint32_t HALF_BITS = 1065353216u;",
            "constexpr bool IS_LAST = true;\n",
        ];
        assert_eq!(list.text(), lines.join("\n"));
        assert_eq!(list.get("FACTOR"), Some(0.5.into()));
        assert!(list.has("PLACE", "FAR") && list.has("N", 3) && !list.has("N", 4));
        assert_eq!([list.get("NEAR"), list.get("OWN")], [None; 2]);
    }
}
